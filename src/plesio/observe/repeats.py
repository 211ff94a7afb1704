"""Several runs of the same work under the same strategy: the one that stands for them, and how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from plesio.observe.comparison import Target, on_staleness, time_of
from plesio.observe.summary import Summary

FEWEST = 3  # runs of each strategy from which their own spread tells what chance makes
SEEDS = 2.5
"""By what factor fewer runs have to differ in time to the target: of 40 seeds of one strategy the slowest takes up to 2.4 times
as long as the fastest, on the digits (benchmarks/winners.py)."""
SPEEDS = 1.1  # the same without a target, by steps a second, which hardly depend on seeds
GAP = 0.5
"""How far apart the times of three runs each have to be, as a share of the wider spread. Without a gap chance alone parts two
equal strategies in one comparison of ten; of four runs each, in one of 35."""


def cost(run: Summary, target: Target | None) -> float:
    """What a comparison is about: seconds to the target, infinite where it was not reached; without a target, seconds a step."""
    if target is None:
        return 1 / run.steps_per_s if run.steps_per_s > 0 else inf
    time_s = run.time_to(*target)
    return inf if time_s is None else time_s


def middle(runs: Sequence[Summary], target: Target | None) -> Summary:
    """The run in the middle, by cost; of two the dearer one."""
    return sorted(runs, key=lambda one: cost(one, target))[len(runs) // 2]


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
    if best < 0 or middles[best] == inf:
        return []
    return [k for k in range(len(repeats)) if k == best or not _apart(repeats[best], repeats[k], target)]


def _apart(best: Sequence[Summary], other: Sequence[Summary], target: Target | None) -> bool:
    """Whether all runs of one are better than all of the other, and by so much that it is hardly chance. A run that missed the
    target took as long as it lasted, at least."""
    costs = [cost(one, target) for one in best]
    least, most = min(costs), max(costs)
    known = [min(cost(one, target), one.wall_s) if target else cost(one, target) for one in other]
    runs = min(len(best), len(other))
    if runs < FEWEST:
        return min(known) > max(most, least * (SEEDS if target else SPEEDS))
    gap = GAP * max(most - least, max(known) - min(known)) if runs == FEWEST and most < inf else 0.0
    return min(known) > most + gap


def notes(summaries: Sequence[Summary], target: Target | None, metric: str | None, repeats: int = 1) -> list[str]:
    """What readers of the columns ask; `repeats`: how many runs there are of each strategy."""
    found = []
    if repeats < FEWEST and target and len(summaries) > 1:
        found.append(
            f"Seeds alone make times differ, by up to 2.4 times on the digits (benchmarks/winners.py): of fewer than {FEWEST} "
            f"runs the best is named only where it is {SEEDS:g} times better. plesio compare --repeats {FEWEST} measures your "
            "own spread."
        )
    if repeats > 1:
        found.append(
            f"Each strategy ran {repeats} times. In brackets: the least and the greatest time. All other figures are of one run: "
            f"the median by {'time to the target' if target else 'steps a second'}."
        )
    if target and metric == target[0]:
        found.append(
            f"Time is until a snapshot first reached {metric} {target[1]:g}; the last snapshot may be below it."
        )
    starts = [one.start_up_s for one in summaries if one.start_up_s]
    if starts:
        words = " to ".join(dict.fromkeys(f"{one:.1f}" for one in (min(starts), max(starts))))
        each = "each run" if len(starts) > 1 else "the run"
        found.append(f"Times are of training alone. Before it, {each} took {words} s to start.")
    return [*found, *dict.fromkeys(note for one in summaries for note in on_staleness(one.strategy))]
