"""A run that chooses its strategy by itself, from how fast its workers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plesio.entry import entry
from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.choosing import Choosing
from plesio.strategy.recipes.phases import in_words, phases

__all__ = ["auto"]


@entry("setting of auto", StrategyError)
def auto(
    strategies: Sequence[Strategy],
    *apart: object,
    every_s: float = 30.0,
    apart_s: float = 60.0,
    better: float = 1.25,
    close: float = 1.1,
    in_a_row: int = 2,
    measured_only: bool = True,
) -> Strategy:
    """One of several strategies, chosen anew as the speeds of the workers change.

    Now and then what the workers did lately is replayed under each strategy. The run goes over to the tightest of those that are
    about as fast as the fastest. For a looser one than the present it does so if that would be `better` times as fast.

    This compares samples a second. How many samples a strategy needs for the same accuracy nobody knows in advance. So only those
    are chosen from which docs/convergence.md holds to be within 1% of `sync_sgd` with as many workers, or the next larger number
    that was measured.

    Args:
        strategies: the tightest first. The run begins with it.
        every_s, apart_s: how often to look, and how long to stay with a choice at least.
        better: how many times as fast a looser strategy has to be.
        close: how many times as fast as another the fastest may be, for that to be as good.
        in_a_row: how many looks have to agree.
        measured_only: False: choose from all, also those that nobody has measured.

    Raises:
        StrategyError: fewer than two strategies, one that cannot be a phase (`phases`), or numbers that cannot be.

    >>> ps.auto([ps.sync_sgd(), ps.bounded_staleness(4), ps.async_sgd()]).name
    'auto(sync_sgd, bounded_staleness(4), async_sgd)'
    """
    rules = Choosing(
        every_s=every_s, apart_s=apart_s, better=better, close=close, in_a_row=in_a_row, measured_only=measured_only
    )
    given = list(strategies) if isinstance(strategies, list | tuple) and not apart else []
    if len(given) < 2 or not all(isinstance(one, Strategy) for one in given):
        raise StrategyError(
            "auto: give a list of at least two strategies, the tightest first: ps.auto([ps.sync_sgd(), ps.async_sgd()]); got "
            + ", ".join(map(in_words, [strategies, *apart]))
        )
    names = ", ".join(one.name for one in given)
    return replace(phases(*given), name=f"auto({names})", chooses=rules)
