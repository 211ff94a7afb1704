"""Rounds that do not wait for everybody and keep what comes late."""

from __future__ import annotations

from plesio.strategy import Strategy
from plesio.strategy.answers import AfterFold, Fresh, Polynomial, Round, UserOptimizer
from plesio.strategy.answers.answer import COUNT, POSITIVE_OR_NONE, WHOLE
from plesio.strategy.recipes.naming import call

__all__ = ["quorum"]


def quorum(k: int, grace_s: float | None = None, within: int = 8) -> Strategy:
    """Rounds of the first `k`: late gradients are folded into the round they reach, discounted by their staleness.

    Rule: w -= lr * sum_i s_i g_i / n over the n >= k gradients of the round, s_i = (1 + tau_i)^-1/2 with tau_i the versions
    made since the one that g_i was computed at.

    Args:
        k: how many make a round; more than half of the workers is usual. At most the number of workers.
        grace_s: for how many seconds after the k-th the round stays open; it ends before that when all have come.
        within: how many versions late a gradient may be; its data is leased again if it is later.

    Source: the quorum and the grace window of the decoupled merge, arXiv 2604.21428; the discount is that of Xie et al. 2019,
    arXiv 1903.03934.

    Raises:
        StrategyError: `k` is no whole number of at least 1, `grace_s` no number above 0, or `within` no whole number.

    >>> quorum(3).name, quorum(3, grace_s=0.05).name
    ('quorum(3)', 'quorum(3, grace_s=0.05)')
    """
    COUNT.check("quorum", "k", k)
    POSITIVE_OR_NONE.check("quorum", "grace_s", grace_s)
    WHOLE.check("quorum", "within", within)
    return Strategy(
        name=call(quorum, str(k), grace_s=grace_s, within=within),
        admit=Fresh(within),
        weigh=Polynomial(0.5),
        gather=Round(k, grace_s),
        outer=UserOptimizer(lr_scale="full"),
        release=AfterFold(),
    )
