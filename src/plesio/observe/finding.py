"""The result of a run, or of several strategies, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

from plesio.observe.amounts import number, of_ideal
from plesio.observe.comparison import Target
from plesio.observe.repeats import cost, first
from plesio.observe.summary import Summary, lower_is_better

_BASELINES = ("sync_sgd", "allreduce")  # what others are compared with


def finding(summaries: Sequence[Summary], target: Target | None, repeats: Sequence[Sequence[Summary]] = ()) -> str:
    """The result in one sentence, e.g. "async_sgd reached accuracy 0.95 in 2.1 s, 6.3 times sooner than sync_sgd.".

    `repeats`: all runs of each strategy, of which `summaries` has the ones in the middle.
    """
    if not summaries:
        return "There is no run to report."
    repeats = repeats or [[one] for one in summaries]
    order = sorted(range(len(summaries)), key=lambda k: cost(summaries[k], target))
    best = summaries[order[0]]
    if target is not None and cost(best, target) == inf:
        return _missed(summaries, target)
    winners = first(repeats, target) or order[:1]
    others = [summaries[k] for k in order if k not in winners]
    most = max(map(len, repeats))
    runs = f" (the {'' if most % 2 else 'upper '}median of {most} runs)" if most > 1 else ""
    sentence = f"{_won([summaries[k] for k in winners], target)}{runs}{_against(best, others, target)}"
    if len(summaries) == 1:
        return f"{sentence}, at {of_ideal(best, 'at least ')} of the ideal throughput."
    if target is not None:
        return f"{sentence}."
    how = "--until METRIC=VALUE"
    if not any(one.history for one in summaries):
        how = f"a function evaluate(model) in the script, and {how}"
    return f"{sentence}. This is speed, and ranks nothing by quality: that takes {how}."


def _won(runs: Sequence[Summary], target: Target | None) -> str:
    """What the best run did, or those that tie."""
    names = _listed([one.strategy for one in runs]) + (" tie: they" if len(runs) > 1 else "")
    if target is None:
        return f"{names} made {_listed([number(one.steps_per_s) for one in runs])} steps a second"
    costs = [(cost(one, target), one.wall_s) for one in runs]
    times = [number(time_s) if time_s < inf else f"more than {number(wall_s)}" for time_s, wall_s in costs]
    return f"{names} reached {target[0]} {target[1]:g} in {_listed(times)} s"


def _against(best: Summary, others: Sequence[Summary], target: Target | None) -> str:
    """How much better it is than the synchronous baseline, if that was run, else than the next best."""
    baselines = [one for recipe in _BASELINES for one in others if one.recipe == recipe]
    rival = next(iter([*baselines, *others]), None)
    if rival is None:
        return ""
    if target is not None and cost(rival, target) == inf:
        return f"; {rival.strategy} did not reach it in {number(rival.wall_s)} s"
    least = cost(best, target)
    times = cost(rival, target) / least if least > 0 else inf
    if times == inf:
        return ""
    than = f"the {number(rival.steps_per_s)} of" if target is None else "sooner than"
    return f", {number(times, 2)} times {than} {rival.strategy}"


def _missed(summaries: Sequence[Summary], target: Target) -> str:
    metric = target[0]
    within = f"within {number(max(s.wall_s for s in summaries))} s"
    sign = -1 if lower_is_better(metric) else 1
    seen = [
        (sign * one.metrics[metric], -one.time_s, s.strategy)
        for s in summaries
        for one in s.history
        if math.isfinite(one.metrics.get(metric, math.nan))
    ]
    if not seen:
        return f"No run reached {metric} {target[1]:g} {within}: no finite {metric} was evaluated."
    best, minus_s, who = max(seen, key=lambda one: one[:2])  # of equals the first
    reached = f"{number(sign * best, 4)} after {number(-minus_s)} s"
    return f"No run reached {metric} {target[1]:g} {within}; the best was {who} with {reached}."


def setting(summaries: Sequence[Summary]) -> str:
    """How many workers took part, and how much their speeds differed."""
    counts = sorted({len(s.workers) for s in summaries})
    plural = "s" if counts[0] != 1 else ""
    workers = f"{counts[0]} to {counts[-1]} workers" if len(counts) > 1 else f"{counts[0]} worker{plural}"
    speeds: dict[int, list[float]] = {}
    for worker in (w for s in summaries for w in s.workers if w.speed > 0):
        speeds.setdefault(worker.worker, []).append(worker.speed)
    if len(speeds) < 2:
        return f"{workers}."
    typical = {worker: sorted(values)[len(values) // 2] for worker, values in speeds.items()}
    slow, fast = min(typical, key=lambda w: typical[w]), max(typical, key=lambda w: typical[w])
    ratio = typical[fast] / typical[slow]
    if ratio < 1.25:
        return f"{workers}, about equally fast."
    return f"{workers}; the slowest, worker {slow}, takes {number(ratio, 2)} times as long for a step as the fastest."


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b"]), _listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])
