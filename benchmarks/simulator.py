"""How fast virtual time goes: the sequencer alone, and 10,000 simulated workers.

    python benchmarks/simulator.py --json FILE [--quick]

All on one core. `MEASURES` lists what is measured: a name, a function that measures it once, its unit and its target.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from _digits import digits_overhead
from _report import Row, interleave, parser, report, row
from plesio import async_sgd, ringmaster
from plesio.cluster import Cluster, Exponential, Group
from plesio.core.events import Joined, Pushed
from plesio.core.sequencer import Sequencer
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.strategy import Strategy
from problems import Quadratic, run

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from torture import run_seed

WORKERS = 10_000


class Measure(NamedTuple):
    """One line of the table."""

    name: str
    once: Callable[[argparse.Namespace], float]
    unit: str
    target: str | None = None


@contextmanager
def timed(count: int) -> Iterator[list[float]]:
    """Gives a list, and puts into it how many of `count` a second of this core went through.

    Processor time, so that others' work on the machine counts less; no walks of the collector.
    """
    rate: list[float] = []
    gc.collect()
    gc.disable()
    started_s = time.process_time()
    try:
        yield rate
        rate.append(count / (time.process_time() - started_s))
    finally:
        gc.enable()


def sequencer_alone(args: argparse.Namespace) -> float:
    """Events a second: 16 workers push in turn, each contribution is folded and answered."""
    workers, count = 16, 20_000 if args.quick else 200_000
    sequencer = Sequencer(async_sgd(), workers)
    for worker in range(workers):
        sequencer.receive(Joined(worker, 1), 0.0)
    events = [Pushed(number % workers, 1, number // workers + 1, 1, 8, 1) for number in range(count)]
    with timed(count) as rate:
        for event in events:
            sequencer.receive(event, 0.0)
    return rate[0]


def timing_only(strategy: Strategy, args: argparse.Namespace) -> float:
    """Contributions a second where nothing is computed: what a what-if study costs."""
    cluster, count = Cluster((Group(WORKERS, Exponential(1.0)),)), 10_000 if args.quick else 100_000
    participants = [TimedWorker(one, strategy) for one in cluster.timetables(0)]
    simulated = VirtualRun(strategy, cluster, participants, limits={"contributions": count}, timeline=False)
    with timed(count) as rate:
        simulated.run()
    return rate[0]


def quadratic(dimension: int, args: argparse.Namespace) -> float:
    """Contributions a second on the quadratic: every gradient with its noise is computed and folded."""
    cluster, count = Cluster((Group(WORKERS, Exponential(1.0)),)), 10_000 if args.quick else 200_000
    problem = Quadratic(dimension, single=True)
    with timed(count) as rate:
        run(problem, async_sgd("plain"), cluster, lr=1.0, contributions=count)
    return rate[0]


def fault_simulation(args: argparse.Namespace) -> float:
    """Seeds a second of 8 workers x 200 contributions, with the faults that each seed draws."""
    count = 5 if args.quick else 40
    with timed(count) as rate:
        for seed in range(count):
            assert run_seed(seed, workers=8, contributions=200).failure is None
    return rate[0]


MEASURES = [
    Measure("sequencer alone", sequencer_alone, "events/s", ">= 200000"),
    Measure("10,000 workers, async, timing only", functools.partial(timing_only, async_sgd()), "contributions/s"),
    Measure(
        "10,000 workers, ringmaster(1000), timing only",
        functools.partial(timing_only, ringmaster(1000)),
        "contributions/s",
    ),
    Measure(
        "10,000 workers, quadratic of 100 dimensions",
        functools.partial(quadratic, 100),
        "contributions/s",
        ">= 20000",
    ),
    Measure("10,000 workers, quadratic of 1,729 dimensions", functools.partial(quadratic, 1729), "contributions/s"),
    Measure("fault simulation, 8 workers x 200 contributions", fault_simulation, "seeds/s", ">= 20"),
    Measure(
        "256 workers of examples/digits.py, over as many plain steps",
        lambda args: digits_overhead(steps=500 if args.quick else 5_000),
        "times",
        "<= 3",
    ),
]


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """Every measure, run in turn with the others."""
    runs = 1 if args.quick else args.runs
    values = interleave({one.name: functools.partial(one.once, args) for one in MEASURES}, runs)
    for one in MEASURES:
        yield row(one.name, values[one.name], one.unit, target=one.target)


if __name__ == "__main__":
    given = parser((__doc__ or "").splitlines()[0], runs=3).parse_args()
    report("virtual time, one core", list(rows(given)), given.json, threads="1")
