"""The result of a run, or of several strategies, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

from plesio.observe.amounts import number, of_ideal, percent
from plesio.observe.comparison import Target
from plesio.observe.repeats import cost, tied
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
    winner = order[0]
    best = summaries[winner]
    if target is not None and cost(best, target) == inf:
        return _finding_of_failure(summaries, target[0], _goal(target))
    if len(summaries) == 1:
        return _finding_of_one(best, target, repeats[0])
    ties = tied(repeats, winner, target)
    others = [k for k in order if k != winner and k not in ties]
    sentence = _tie([summaries[k] for k in sorted([winner, *ties])], target) if ties else _won(best, target)
    return f"{sentence}{_of_runs(repeats)}{_against(best, [summaries[k] for k in others], target)}.{_unranked(summaries, target)}"


def _goal(target: Target) -> str:
    return f"{target[0]} {target[1]:g}"


def _won(best: Summary, target: Target | None) -> str:
    if target is None:
        return f"{best.strategy} made the most steps, {number(best.steps_per_s)} steps a second"
    return f"{best.strategy} reached {_goal(target)} in {number(cost(best, target))} s"


def _tie(runs: Sequence[Summary], target: Target | None) -> str:
    names = _listed([one.strategy for one in runs])
    if target is None:
        return f"{names} tie: {_listed([number(one.steps_per_s) for one in runs])} steps a second"
    times = [cost(one, target) for one in runs]
    words = [
        number(time) if time < inf else f"more than {number(one.wall_s)}" for one, time in zip(runs, times, strict=True)
    ]
    return f"{names} tie: they reached {_goal(target)} in {_listed(words)} s"


def _unranked(summaries: Sequence[Summary], target: Target | None) -> str:
    """How to compare by quality, where only speeds are compared."""
    if target is not None:
        return ""
    metrics = [name for one in summaries for evaluation in one.history for name in evaluation.metrics]
    how = (
        f"--until {metrics[0]}=VALUE"
        if metrics
        else "a function evaluate(model) in the script, and --until METRIC=VALUE"
    )
    return f" This is speed, and ranks nothing by quality: that takes {how}."


def _of_runs(repeats: Sequence[Sequence[Summary]]) -> str:
    most = max(map(len, repeats))
    return f" (the {'' if most % 2 else 'upper '}median of {most} runs)" if most > 1 else ""


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
    if target is None:
        return f", {number(times, 2)} times the {number(rival.steps_per_s)} of {rival.strategy}" if times < inf else ""
    return f", {number(times, 2)} times sooner than {rival.strategy}" if times < inf else ""


def _finding_of_one(run: Summary, target: Target | None, repeats: Sequence[Summary]) -> str:
    if target is not None:
        share = f"at {of_ideal(run, 'at least ')} of the ideal throughput"
        return f"{_won(run, target)}{_of_runs([repeats])}, {share}."
    shares = f"{of_ideal(run, 'at least ')} of the ideal; its workers waited {percent(run.waiting_share)}"
    return f"{run.strategy} made {number(run.steps_per_s)} steps a second{_of_runs([repeats])}, {shares} of the time."


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b"]), _listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])


def _finding_of_failure(summaries: Sequence[Summary], metric: str, goal: str) -> str:
    alone = len(summaries) == 1
    within = f"within {number(max(s.wall_s for s in summaries))} s"
    verdict = (
        f"{summaries[0].strategy} did not reach {goal} {within}" if alone else f"No strategy reached {goal} {within}"
    )
    sign = -1 if lower_is_better(metric) else 1
    seen = [
        (sign * one.metrics[metric], -one.time_s, s.strategy)
        for s in summaries
        for one in s.history
        if math.isfinite(one.metrics.get(metric, math.nan))
    ]
    if not seen:
        known = any(metric in one.metrics for s in summaries for one in s.history)
        return f"{verdict}: {metric} was never {'finite' if known else 'evaluated'}."
    best, minus_s, who = max(seen, key=lambda one: one[:2])  # of equals the first
    reached = f"{number(sign * best, 4)} after {number(-minus_s)} s"
    return f"{verdict}; its best was {reached}." if alone else f"{verdict}; the best was {who} with {reached}."


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
