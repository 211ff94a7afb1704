"""The result of a run, or of several strategies, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plesio.observe.amounts import number, of_ideal, percent
from plesio.observe.comparison import Target
from plesio.observe.summary import Summary, lower_is_better

_BASELINES = ("sync_sgd", "allreduce")  # what others are compared with


def finding(summaries: Sequence[Summary], target: Target | None) -> str:
    """The result in one sentence, e.g. "async_sgd reached accuracy 0.95 in 2.1 s, 6.3 times sooner than sync_sgd."."""
    if not summaries:
        return "There is no run to report."
    if target is None:
        return _finding_of_speed(summaries)
    metric, value = target
    goal = f"{metric} {value:g}"
    reached = sorted((time_s, k) for k, s in enumerate(summaries) if (time_s := s.time_to(metric, value)) is not None)
    if not reached:
        return _finding_of_failure(summaries, metric, goal)
    best_s, winner = reached[0]
    best = summaries[winner]
    sentence = f"{best.strategy} reached {goal} in {number(best_s)} s"
    if len(summaries) == 1:
        return f"{sentence}, at {of_ideal(best, 'at least ')} of the ideal throughput."
    rival = _rival(winner, summaries, [k for _, k in reached[1:]])
    rival_s = rival.time_to(metric, value)
    if rival_s is None:
        return f"{sentence}; {rival.strategy} did not reach it in {number(rival.wall_s)} s."
    times = rival_s / best_s if best_s > 0 else math.inf
    if times < 1.05 or not math.isfinite(times):
        return f"{sentence}, about as soon as {rival.strategy} ({number(rival_s)} s)."
    return f"{sentence}, {number(times, 2)} times sooner than {rival.strategy}."


def _rival(winner: int, summaries: Sequence[Summary], runners_up: Sequence[int]) -> Summary:
    """The run to compare with: the synchronous baseline if it was run, else the next best, else the next."""
    others = [k for k in range(len(summaries)) if k != winner]
    baselines = [k for recipe in _BASELINES for k in others if summaries[k].recipe == recipe]
    return summaries[[*baselines, *runners_up, *others][0]]


def _finding_of_speed(summaries: Sequence[Summary]) -> str:
    order = sorted(range(len(summaries)), key=lambda k: -summaries[k].steps_per_s)
    best = summaries[order[0]]
    rate = f"{number(best.steps_per_s)} steps a second"
    if len(summaries) == 1:
        shares = f"{of_ideal(best, 'at least ')} of the ideal; its workers waited {percent(best.waiting_share)}"
        return f"{best.strategy} made {rate}, {shares} of the time."
    rival = _rival(order[0], summaries, order[1:])
    of_rival = f"{number(rival.steps_per_s)} of {rival.strategy}"
    times = best.steps_per_s / rival.steps_per_s if rival.steps_per_s > 0 else math.inf
    against = f"{number(times, 2)} times the" if 1.05 <= times < math.inf else "against the"
    return f"{best.strategy} made the most steps, {rate}, {against} {of_rival}."


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
