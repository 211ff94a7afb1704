"""Clusters by name: the usual cases to compare strategies in. Each is the fields of a `Cluster`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from plesio.cluster.faults import AnyFault, Crash, Restart
from plesio.cluster.machines import Group, Link
from plesio.cluster.steps import LogNormal, Pareto

Fields = dict[str, Any]
JITTER = 0.1
HORIZON_STEPS = 10_000  # usual steps over which the spot market preempts machines


def _groups(workers: int, slow: int, step_s: float, factor: float) -> tuple[Group, ...]:
    """`slow` of `workers` are `factor` times slower."""
    fast = (Group(workers - slow, LogNormal(step_s, JITTER)),) if workers > slow else ()
    return (*fast, Group(slow, LogNormal(factor * step_s, JITTER)))


def uniform(workers: int, step_s: float) -> Fields:
    """Equal workers with 10% jitter."""
    return {"groups": (Group(workers, LogNormal(step_s, JITTER)),)}


def one_straggler(workers: int, step_s: float) -> Fields:
    """The last worker is ten times slower."""
    return {"groups": _groups(workers, 1, step_s, 10.0)}


def two_speeds(workers: int, step_s: float) -> Fields:
    """A quarter of the workers, the last ones, are five times slower."""
    return {"groups": _groups(workers, max(1, workers // 4), step_s, 5.0)}


def heavy_tail(workers: int, step_s: float) -> Fields:
    """Any step of any worker may take very long: Pareto with shape 1.5, of infinite variance."""
    return {"groups": (Group(workers, Pareto(step_s, 1.5)),)}


def spot_market(workers: int, step_s: float) -> Fields:
    """Machines are preempted, each after about 1,000 steps' time, and come back after about 200."""
    rng = random.Random(f"spot market {workers}")
    faults: list[AnyFault] = []
    for worker in range(workers):
        at_s = rng.expovariate(1 / (1000 * step_s))
        while at_s < HORIZON_STEPS * step_s:
            faults.append(Crash(worker=worker, at_s=at_s))
            at_s += rng.expovariate(1 / (200 * step_s))
            faults.append(Restart(worker=worker, at_s=at_s))
            at_s += rng.expovariate(1 / (1000 * step_s))
    return {"groups": (Group(workers, LogNormal(step_s, JITTER)),), "faults": tuple(faults)}


def cross_region(workers: int, step_s: float) -> Fields:
    """Half the workers are near the server (10 Gbit/s); the others have 40 ms and 1 Gbit/s each."""
    near, far = Link(0.0001, 1.25e9), Link(0.04, 1.25e8)
    half = workers // 2
    groups = [Group(workers - half, LogNormal(step_s, JITTER), near)]
    groups += [Group(half, LogNormal(step_s, JITTER), far)] if half else []
    return {"groups": tuple(groups), "server": Link(0.0, 1.25e9)}


PRESETS: dict[str, Callable[[int, float], Fields]] = {
    "uniform": uniform,
    "one-straggler": one_straggler,
    "two-speeds": two_speeds,
    "heavy-tail": heavy_tail,
    "spot-market": spot_market,
    "cross-region": cross_region,
}
