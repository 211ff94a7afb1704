"""Rates and shares for people: a small share is never shown as 0%, nor one below 1 as 100%."""

from __future__ import annotations

from plesio.observe.summary import Summary
from plesio.observe.svg import number


def rate(per_s: float, decimals: int = 0) -> str:
    """Two significant digits below 10, `decimals` decimals from there on.

    >>> rate(1 / 3), rate(1234.5), rate(56.25, decimals=1)
    ('0.33', '1,234', '56.2')
    """
    return number(per_s, 2) if per_s < 10 else f"{per_s:,.{decimals}f}"


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


def of_ideal(summary: Summary, least: str = "≥ ") -> str:
    """The share of the ideal in percent, after `least` where it is a lower bound."""
    share = summary.ideal_share
    return f"{least}{share:.0%}" if summary.ideal_share_is_least else percent(share)
