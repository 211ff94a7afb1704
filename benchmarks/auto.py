"""A run that chooses its strategy: `ps.auto` beside the best of its strategies, fixed, when a worker becomes slow.

    python benchmarks/auto.py --json FILE [--quick] [--real]

At half time one worker takes ten times as long for each step. In virtual time there are 4, 8 and 16 workers. Steps last about
0.2 s and vary by 10%, or are exponential. A run takes 20 minutes, with the rules as they are by default. With `--real` four
processes take 20 ms a step for half a minute, and look every 2 s. Where all stay equal they look every 10 s, and `auto` is held
against `sync_sgd`.
A look's row is what a forecast takes of the launcher's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from _report import Row, interleave, parser, progress, report, row
from plesio.cluster import Cluster, Exponential, Group, Link, LogNormal, Slow
from plesio.launch.simulated.lately import choose_in, speeds
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.memory.port import Memory

CHOICES = (ps.sync_sgd(), ps.bounded_staleness(4), ps.async_sgd())
LAWS = {"10%": LogNormal(0.2, 0.1), "exponential": Exponential(0.2)}
CASES = ((4, "10%"), (8, "10%"), (8, "exponential"), (16, "10%"))
SLOWER = 10.0
BEST, EVEN, LOOK = ">= 0.87", ">= 0.95", "< 0.6"
"""Of the best fixed choice (1 in 1.15); of `sync_sgd` where workers are equal; seconds, of 30 (2%)."""
STEP_S, EVERY_S = 0.02, 2.0


def simulated(
    strategy: ps.Strategy, workers: int, law: LogNormal | Exponential, seconds: float, slow: bool
) -> VirtualRun:
    faults = (Slow(worker=0, factor=SLOWER, at_s=seconds / 2),) if slow else ()
    cluster = Cluster((Group(workers, law, Link(0.0005)),), Link(bytes_per_s=1e9), faults)
    crew = [TimedWorker(one, strategy) for one in cluster.timetables(seed=1)]
    run = VirtualRun(strategy, cluster, crew, push_nbytes=1000, answer_nbytes=1000, limits={"seconds": seconds})
    run.program.begin(Memory(), 0.0)
    if strategy.chooses is not None:
        choose_in(run, strategy)
    run.run()
    return run


def virtual_row(workers: int, law: str, seconds: float, slow: bool) -> Row:
    rivals = CHOICES if slow else CHOICES[:1]
    fixed = {one.name: float(simulated(one, workers, LAWS[law], seconds, slow).steps) for one in rivals}
    best = max(fixed, key=fixed.__getitem__)
    run = simulated(ps.auto(CHOICES, measured_only=False), workers, LAWS[law], seconds, slow)
    what = f"virtual, {workers} workers, steps {law}, {'one slow at half time' if slow else 'equal'}: steps"
    for one in run.incidents:
        progress.print(f"{what}: {one.time_s:.0f} s: {one.what}")
    found = row(what, [run.steps], "", against=best, against_values=[fixed[best]], target=BEST if slow else EVEN)
    progress.print(f"{what}: {found.ratio:.3f} of {best}")
    return found


def look_row(workers: int) -> Row:
    """What one forecast takes, when it is under the loosest strategy and one worker is slow."""
    run = simulated(ps.async_sgd(), workers, LAWS["10%"], 120.0, True)
    lately = run.figures.lately(120.0, 30.0)
    took = []
    for _ in range(3):
        began_s = time.process_time()
        speeds(lately, ps.async_sgd(), CHOICES)
        took.append(time.process_time() - began_s)
    return row(f"a look at {workers} workers, {len(CHOICES)} strategies", took, "s", target=LOOK)


def train(half_s: float, slow: bool, worker: ps.Worker) -> None:
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.randn(4096, 32), torch.randint(10, (4096,)))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = worker.prepare(model, sgd, DataLoader(data, batch_size=8, shuffle=True))
    began_s = time.monotonic()
    while True:
        for inputs, labels in loader:
            is_slow = slow and worker.rank == 0 and time.monotonic() - began_s > half_s
            time.sleep(STEP_S * (SLOWER if is_slow else 1))
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def real(strategy: ps.Strategy, half_s: float, slow: bool) -> float:
    """Steps a second of four processes."""
    run = ps.run(partial(train, half_s, slow), strategy, workers=4, until=ps.Until(seconds=2 * half_s))
    for one in run.incidents:
        progress.print(f"{strategy.name}: {one.time_s:.1f} s: {one.what}")
    return float(run.steps_per_s)


def real_rows(half_s: float, runs: int) -> Iterator[Row]:
    for slow, fixed, every_s in ((True, CHOICES, EVERY_S), (False, CHOICES[:1], 5 * EVERY_S)):
        auto = ps.auto(CHOICES, every_s=every_s, apart_s=2 * every_s)
        tasks: dict[str, Callable[[], float]] = {one.recipe: partial(real, one, half_s, slow) for one in (auto, *fixed)}
        found = interleave(tasks, runs, "real")
        rival = max((one.recipe for one in fixed), key=lambda name: sum(found[name]))
        what = f"real, 4 workers, {'one slow at half time' if slow else 'equal'}: steps/s"
        yield row(
            what, found["auto"], "steps/s", against=rival, against_values=found[rival], target=BEST if slow else EVEN
        )


def main() -> None:
    arguments = parser("What it is worth to choose the strategy by itself.", runs=2)
    arguments.add_argument("--real", action="store_true", help="real processes, too: two minutes a run")
    given = arguments.parse_args()
    cases, seconds = (CASES[:1], 300.0) if given.quick else (CASES, 1200.0)
    rows = [virtual_row(workers, law, seconds, slow) for workers, law in cases for slow in (True, False)]
    rows.append(look_row(8))
    if given.real:
        rows += real_rows(5.0 if given.quick else 15.0, 1 if given.quick else given.runs)
    report("A run that chooses its strategy", rows, given.json)


if __name__ == "__main__":
    main()
