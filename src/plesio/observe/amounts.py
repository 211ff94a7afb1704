"""Rates and shares as people read them: what there is little of is not called nothing, nor what is nearly all, all."""

from __future__ import annotations

from plesio.observe.summary import Summary
from plesio.observe.svg import number


def rate(per_s: float, decimals: int = 0) -> str:
    """With two significant digits below 10, and so many decimals from there on.

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
    exact = round(share, 9)  # beyond that is what adding up seconds leaves
    if whole == "0%" and exact > 0:
        return "<1%"
    return ">99%" if whole == "100%" and exact < 1 else whole


def of_ideal(summary: Summary, least: str = "≥ ") -> str:
    """The share of the ideal; where it is a lower bound, so many percent at `least`."""
    share = summary.ideal_share
    return f"{least}{share:.0%}" if summary.ideal_share_is_least else percent(share)
