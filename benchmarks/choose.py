"""Which strategy pays where: the digits to 95% on simulated machines of seven kinds, and what `plesio whatif` foretells.

    python benchmarks/choose.py --json FILE [--quick]

8 workers with steps of 20 ms. `--runs` seeds of each strategy; the median is taken, and a run that does not get there in 60 s of
virtual time counts as that. Everybody has the rate of `examples/digits.py`, which was tuned for `sync_sgd` with 4 workers.
The gradients are real and the time is virtual, so that the figures are the same on any machine. docs/choose.md has the table.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import plesio as ps
from _report import Row, parser, progress, report, row
from plesio.cluster import Group, Link, LogNormal
from plesio.launch.simulated.whatif import what_if
from plesio.observe.times import measured

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import digits

WORKERS, STEP_S, MOST_S = 8, 0.02, 60.0
STRATEGIES: dict[str, Callable[[], ps.Strategy]] = {
    "sync_sgd": ps.sync_sgd,
    "first_of(7)": functools.partial(ps.first_of, WORKERS - 1),
    "bounded_staleness(4)": ps.bounded_staleness,
    "buffered(2)": functools.partial(ps.buffered, 2),
    "async_sgd": ps.async_sgd,
    "local_sgd(16)": ps.local_sgd,
}


def clusters() -> dict[str, ps.Cluster]:
    """The presets; and equal workers behind a link on which an exchange takes about as long as a step."""
    names = ("uniform", "heavy-tail", "spot-market", "one-straggler", "two-speeds", "cross-region")
    slow = ps.Cluster((Group(WORKERS, LogNormal(STEP_S, 0.1)),), server=Link(0.0, 1e7))
    return {**{name: ps.Cluster.preset(name, WORKERS, STEP_S) for name in names}, "slow link": slow}


def one_run(cluster: ps.Cluster, strategy: ps.Strategy, seed: int) -> ps.Run:
    """A simulated run to the target."""
    until = ps.Until(accuracy=0.95, seconds=MOST_S)
    engine = ps.Simulated(cluster)
    return ps.run(
        digits.train, strategy, workers=WORKERS, engine=engine, seed=seed, evaluate=digits.evaluate, evaluate_every_s=0.05,
        until=until,
    )  # fmt: skip


def time_of(run: ps.Run) -> float:
    """Virtual seconds to the target."""
    return run.time_to("accuracy", 0.95) or MOST_S


def rows(arguments: argparse.Namespace) -> list[Row]:
    """A row for each kind of machines and strategy: how many times sooner than `sync_sgd`."""
    found = []
    kinds = list(clusters().items())[: 1 if arguments.quick else None]
    for kind, cluster in kinds:
        done = {
            name: [one_run(cluster, make(), seed) for seed in range(arguments.runs)]
            for name, make in STRATEGIES.items()
        }
        times = {name: [time_of(run) for run in runs] for name, runs in done.items()}
        base = times["sync_sgd"]
        foretold = what_if(measured(done["sync_sgd"][0].summary), [make() for make in STRATEGIES.values()])
        sooner = {name: foretold[0].time_s / one.time_s for name, one in zip(STRATEGIES, foretold, strict=True)}
        for name, each in times.items():
            times_sooner = statistics.median(one / other for one, other in zip(base, each, strict=True))
            words = f"{kind}: {name}, {times_sooner:.2f} times sooner (foretold {sooner[name]:.2f})"
            found.append(row(words, each, "s", against="sync_sgd", against_values=base))
        progress.print(f"{kind}: {times}")
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=3).parse_args()
    report("which strategy pays where: seconds of virtual time to 95%", rows(given), given.json)
