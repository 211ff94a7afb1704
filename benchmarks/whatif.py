"""How far off `plesio whatif` is: from one run, predict the throughput of other strategies, then run them for real.

    python benchmarks/whatif.py --json FILE [--quick]

4 workers on scikit-learn's digits, 20 ms a step give or take 10%, one of them ten times slower; the one run that the
predictions are made from is under `sync_sgd`, where three workers wait most of the time. Throughput is taken over the
same number of seconds for all.

Then a simulated run of `first_of` where step times have a heavy tail, predicted from itself: the slowest steps are those that it
calls off. And times to equal samples on machines whose speeds and links differ, forecast from a simulated run of `sync_sgd`,
against simulated runs: of six strategies the one that is furthest off. The last rows are of workers that train on while their
answers travel, forecast from a run in which all wait.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import plesio as ps
from _report import Row, interleave, parser, progress, report
from overlap import simulated
from plesio.cluster import Group, Link, LogNormal
from plesio.launch.simulated.whatif import what_if
from plesio.observe.times import measured

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import digits

WORKERS, SLOW, STEP_S, JITTER = 4, 10.0, 0.02, 0.1
ERROR_MAX, SIMULATED_MAX = "<= 15", "<= 20"
FAR = ("cross-region", "one far worker", "two slow links")
STRATEGIES: dict[str, Callable[[], ps.Strategy]] = {
    "first_of(3)": functools.partial(ps.first_of, 3),
    "bounded_staleness(4)": ps.bounded_staleness,
    "async_sgd": ps.async_sgd,
    "buffered": ps.buffered,
    "local_sgd 0.3 s": functools.partial(ps.local_sgd, ps.Seconds(0.3)),
}


def one_run(strategy: ps.Strategy, seconds: float) -> ps.Run:
    """A real run of so many seconds."""
    return ps.run(
        digits.train,
        strategy,
        workers=WORKERS,
        faults=[ps.Slow(worker=0, factor=SLOW)],
        pace=ps.Pace(step_s=STEP_S, jitter=JITTER),
        until=ps.Until(seconds=seconds),
    )


def steps_per_s(name: str, seconds: float) -> float:
    """What the strategy called `name` really does."""
    return float(one_run(STRATEGIES[name](), seconds).steps_per_s)


def rows(arguments: argparse.Namespace) -> list[Row]:
    """A row for each strategy: how many per cent the prediction is off."""
    names = ["async_sgd", "local_sgd 0.3 s"] if arguments.quick else list(STRATEGIES)
    seconds = 2.0 if arguments.quick else 10.0
    run = one_run(ps.sync_sgd(), seconds)
    times = measured(run.summary)
    ideal = seconds * sum(1 / one.mean_s for one in times.workers)  # about as many steps as the real runs will take
    asked = [STRATEGIES[name]() for name in names]
    found = what_if(msgspec.structs.replace(times, steps=ideal), asked)
    predicted = dict(zip(names, (one.steps_per_s for one in found), strict=True))
    progress.print(f"sync_sgd ran at {run.steps_per_s:.1f} steps/s; predicted: {predicted}")
    tasks = {name: functools.partial(steps_per_s, name, seconds) for name in names}
    real = interleave(tasks, arguments.runs)
    kinds = list(clusters().items())[: 1 if arguments.quick else None]
    foretold = [simulated_row(kind, cluster) for kind, cluster in kinds]
    going_on = [one for kind in FAR[: 1 if arguments.quick else None] for one in going_on_rows(kind)]
    return [*(_error(name, predicted[name], real[name]) for name in names), called_off_row(), *foretold, *going_on]


def called_off_row() -> Row:
    """How far off the replay of a run is that called off its slowest steps."""
    strategy, until = ps.first_of(7), ps.Until(seconds=30)
    run = ps.run(digits.train, strategy, workers=8, engine=ps.Simulated("heavy-tail"), until=until)
    (found,) = what_if(measured(run.summary), [strategy])
    return _error("first_of(7) of 8, simulated, from itself", found.steps_per_s, [run.steps_per_s])


def clusters() -> dict[str, ps.Cluster]:
    """Machines whose speeds or links differ."""
    step, near = LogNormal(STEP_S, JITTER), Link(1e-4, 1.25e9)
    return {
        **{
            name: ps.Cluster.preset(name, 8, STEP_S)
            for name in ("two-speeds", "heavy-tail", "one-straggler", "cross-region")
        },
        "slow server link": ps.Cluster((Group(8, step),), server=Link(0.0, 8e6)),
        "one far worker": ps.Cluster((Group(7, step, near), Group(1, step, Link(0.1, 1.25e8)))),
        "two slow links": ps.Cluster((Group(6, step, near), Group(2, step, Link(1e-4, 4e5)))),
        "two far ones, slow server link": ps.Cluster(
            (Group(6, step, near), Group(2, step, Link(0.05, 1.25e8))), server=Link(0.0, 4e7)
        ),
    }


def simulated_row(kind: str, cluster: ps.Cluster) -> Row:
    """The forecast that is furthest off, of six strategies."""
    asked = [ps.sync_sgd(), ps.first_of(7), ps.bounded_staleness(4), ps.buffered(2), ps.async_sgd(), ps.local_sgd(16)]
    digits.EPOCHS = 20
    runs = [ps.run(digits.train, one, workers=8, engine=ps.Simulated(cluster)).summary for one in asked]
    ratios = {
        one.strategy: one.time_s / run.wall_s for one, run in zip(what_if(measured(runs[0]), asked), runs, strict=True)
    }
    progress.print(f"{kind}: {ratios}")
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    error = 100 * abs(ratios[worst] - 1)
    words = f"{kind}, simulated: the forecast furthest off, {worst}"
    return Row(words, error, "%", None, None, None, SIMULATED_MAX, error <= 20, len(asked))


def going_on_rows(kind: str) -> list[Row]:
    """The forecasts of strategies whose workers train on while their answers travel; in one long epoch, for fetching data is no
    part of this."""
    asked = [ps.local_sgd(16, overlap=True), ps.diloco(50, overlap=True), ps.async_local_sgd(16, overlap=True)]
    waiting, *runs = (simulated(one, clusters()[kind], batches=20_000) for one in (ps.sync_sgd(), *asked))
    found = zip(what_if(measured(waiting), asked), runs, strict=True)
    return [_off(f"{kind}, simulated: {one.strategy}", one.time_s, run.wall_s) for one, run in found]


def _off(words: str, foretold_s: float, took_s: float) -> Row:
    error = 100 * abs(foretold_s / took_s - 1)
    return Row(words, error, "%", None, None, None, SIMULATED_MAX, error <= 20, 1)


def _error(name: str, predicted: float, real: list[float]) -> Row:
    middle = sorted(real)[len(real) // 2]
    error = 100 * abs(predicted / middle - 1)
    met = error <= float(ERROR_MAX.split()[1])
    words = f"{name}: {predicted:.1f} steps/s predicted, {middle:.1f} in the run; off by"
    return Row(words, error, "%", None, None, None, ERROR_MAX, met, len(real))


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=1).parse_args()
    report("what if: predicted from one run of sync_sgd, then run for real", rows(given), given.json)
