"""Warnings to the user of a worker: they point at the line of the training loop, not at ours."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

INSIDE = ("plesio.", "torch.", "contextlib")
"""Modules whose frames may lie between the training loop and the warning: a torch scheduler wraps `step`, too."""


_silent = False


def warn_no_more() -> None:
    """In this process: another rank of its worker warns of the same."""
    global _silent
    _silent = True


def warn(message: str) -> None:
    if not _silent:
        warnings.warn(message, RuntimeWarning, stacklevel=_users_level())


def warn_at_end(message: str) -> None:
    """Warn after the last step, where a filter that raises warnings as errors would cost the whole run."""
    with suppress(RuntimeWarning):
        warn(message)


def warn_not_finite(worker: int) -> None:
    warn(
        f"worker {worker}: a contribution held a NaN or an infinity and was discarded; look at the learning rate and "
        "the data, or stop at the first one with on_nonfinite='raise'"
    )


def listed(names: Sequence[str]) -> str:
    """The first three names, and how many more there are.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _users_level() -> int:
    """How many calls up the user's own line is, counted as `stacklevel` by the caller of this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    return level
