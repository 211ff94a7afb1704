"""Several runs of the same work under the same strategy: the one that stands for them, and how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from plesio.observe.comparison import Target, time_of
from plesio.observe.summary import Summary

ALONE = 1.1
"""By what factor single runs have to differ for one to be better: seeds alone make about as much."""


def cost(run: Summary, target: Target | None) -> float:
    """What a comparison is about: seconds to the target, infinite where it was not reached; without a target, seconds a step."""
    if target is None:
        return 1 / run.steps_per_s if run.steps_per_s > 0 else inf
    time_s = run.time_to(*target)
    return inf if time_s is None else time_s


def middle(runs: Sequence[Summary], target: Target | None) -> Summary:
    """The run in the middle, by cost; of two the dearer one."""
    return sorted(runs, key=lambda one: cost(one, target))[len(runs) // 2]


def spread(runs: Sequence[Summary], target: Target | None) -> tuple[float, float]:
    """The least and the greatest cost."""
    costs = [cost(one, target) for one in runs]
    return min(costs), max(costs)


def times_of(runs: Sequence[Summary], target: Target | None) -> tuple[float, float] | None:
    """The least and the greatest time in the column of times, infinite where the target was not reached; None of a single run."""
    if len(runs) == 1:
        return None
    times = [time_of(one, target) for one in runs]
    known = [inf if one is None else one for one in times]
    return min(known), max(known)


def first(repeats: Sequence[Sequence[Summary]], target: Target | None) -> list[int]:
    """Which strategies are the best, as far as these runs can tell: the one whose middle run is, and those that tie with it.
    None where no middle run reached the target."""
    middles = [cost(middle(runs, target), target) for runs in repeats]
    best = min(range(len(repeats)), key=middles.__getitem__, default=-1)
    return [] if best < 0 or middles[best] == inf else sorted([best, *tied(repeats, best, target)])


def tied(repeats: Sequence[Sequence[Summary]], best: int, target: Target | None) -> list[int]:
    """Which strategies are no worse than the `best`, as far as these runs can tell: their middle run reached the target, too, and
    their spreads overlap. A single run is taken to spread by `ALONE`."""
    most = spread(repeats[best], target)[1] * (ALONE if len(repeats[best]) == 1 else 1.0)
    others = [k for k in range(len(repeats)) if k != best and cost(middle(repeats[k], target), target) < inf]
    return [k for k in others if spread(repeats[k], target)[0] <= most]
