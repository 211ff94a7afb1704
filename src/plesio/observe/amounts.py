"""Numbers, bytes, rates and shares for people: a small share is never shown as 0%, nor one below 1 as 100%."""

from __future__ import annotations

import math

from plesio.observe.summary import Summary


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about `digits` significant digits, for people.

    >>> number(1234.5), number(0.01234), number(None), number(float("nan"))
    ('1,234', '0.0123', '–', 'not finite')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.97 is 10 in two digits
    if not -4 < exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def byte_size(count: float) -> str:
    """Bytes for people, in powers of 1,000.

    >>> byte_size(0), byte_size(1536), byte_size(2_500_000)
    ('0 B', '1.54 kB', '2.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{number(count)} {unit}" if unit != "B" else f"{count:.0f} B"


def percent(share: float) -> str:
    """A share, 0 to 1, in whole percent.

    >>> percent(0.0), percent(0.003), percent(0.126), percent(0.998), percent(1.0)
    ('0%', '<1%', '13%', '>99%', '100%')
    """
    whole = f"{share:.0%}"
    exact = round(share, 9)  # further digits are rounding errors of summed seconds
    if whole == "0%" and exact > 0:
        return "<1%"
    return ">99%" if whole == "100%" and exact < 1 else whole


def duration(seconds: float, decimals: int = 2) -> str:
    """Seconds up to ten minutes; then hours, minutes and whole seconds.

    >>> duration(10.342), duration(33400.95), duration(754.4)
    ('10.34 s', '9 h 16 min 41 s', '12 min 34 s')
    """
    if seconds < 600:
        return f"{seconds:.{decimals}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours = f"{minutes // 60:,} h " if minutes >= 60 else ""
    return f"{hours}{minutes % 60} min {rest} s"


def of_ideal(summary: Summary, least: str = "≥ ") -> str:
    """The share of the ideal in percent, after `least` where it is a lower bound."""
    share = summary.ideal_share
    return f"{least}{share:.0%}" if summary.ideal_share_is_least else percent(share)
