"""Workers train on their own for a while, then their parameters are averaged."""

from __future__ import annotations

from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import (
    AfterFold,
    Average,
    BySamples,
    Equal,
    Every,
    Fresh,
    Parameters,
    Round,
    Seconds,
    Steps,
)
from plesio.strategy.recipes.naming import call

__all__ = ["local_sgd"]


def local_sgd(every: int | Every = 16) -> Strategy:
    """Local SGD: each worker takes its own optimizer steps, then all take the mean of their parameters.

    Rule: every H steps, w = mean_i w_i. With `Seconds(t)` each worker takes as many steps as fit into t seconds, so a
    straggler does not set the pace; the mean is then weighted by samples.

    Args:
        every: `Steps(h)`, `Seconds(t)`, or a whole number of steps.

    Source: Stich 2018, arXiv 1805.09767.

    Raises:
        StrategyError: `every` is no whole number of at least 1, nor steps or seconds.

    >>> local_sgd(every=8).name, local_sgd(every=Seconds(0.3)).name
    ('local_sgd(every 8 steps)', 'local_sgd(every 0.3 s)')
    """
    if not isinstance(every, (Steps, Seconds)):
        if isinstance(every, float):
            raise StrategyError(
                f"local_sgd(every={every!r}): whole steps, such as every=16, or every=ps.Seconds({every!r})"
            )
        every = Steps(every)
    return Strategy(
        name=call(local_sgd, str(every)),
        every=every,
        send=Parameters(),
        admit=Fresh(within=0),
        weigh=Equal() if isinstance(every, Steps) else BySamples(),
        gather=Round(),
        outer=Average(),
        release=AfterFold(),
    )
