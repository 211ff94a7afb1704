"""Names that strategies had in runs that are stored."""

from __future__ import annotations

WITH_H = ("diloco", "slowmo", "async_local_sgd")  # recipes whose `every` was called `h`


def name_today(stored: str) -> str:
    """What a strategy of that stored name is called now.

    >>> name_today("diloco(h=8)")
    'diloco(every=8)'
    """
    for recipe in WITH_H:
        stored = stored.replace(f"{recipe}(h=", f"{recipe}(every=")
    return stored
