"""No server, no lock: every worker writes into the same parameters."""

from __future__ import annotations

from plesio.strategy import Strategy
from plesio.strategy.answers import Each, SharedMemory, UserOptimizer
from plesio.strategy.recipes.naming import call

__all__ = ["hogwild"]


def hogwild(*, lr_scale: str = "share") -> Strategy:
    """Hogwild!: the parameters lie in shared memory and every worker's optimizer steps on them in place, unlocked.

    Rule: each worker, whenever it likes: w -= (lr/N) g, in place. Reads may be torn (half one version, half the next)
    and an update may be lost where two workers write the same number at once; sparse problems hardly notice. Each
    worker keeps its own optimizer state.

    Args:
        lr_scale: "share" gives each of N workers lr/N (Adam and its kin lr/N^(3/4): docs/decisions/0006), "full" leaves
            it (the paper's rule, for sparse problems).

    Source: Niu et al. 2011, arXiv 1106.5730.

    Raises:
        StrategyError: unknown lr_scale.

    >>> hogwild().via
    SharedMemory()
    """
    return Strategy(
        name=call(hogwild, lr_scale=lr_scale),
        gather=Each(),
        outer=UserOptimizer(lr_scale=lr_scale),
        via=SharedMemory(),
    )
