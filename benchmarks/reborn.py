"""A server that is killed again and again: what is lost, how long the workers wait, and what it costs to be ready for it.

    python benchmarks/reborn.py [--kills 1000] [--quick] [--json benchmarks/results/reborn.json]

Runs of each way to gather, with codecs, have their server killed outright at random moments (SIGKILL). Each run is then computed
again from its journal: every version, bit for bit. The wait of a kill is from the signal until every worker has gone on since.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from _report import Row, interleave, parser, progress, report, row, whole
from _tables_runs import EXAMPLES, FIELDS, pulls_and_pushes, trains
from plesio.launch.local.processes import Process
from plesio.strategy.answers import TopK
from plesio.system.recovery_log import RecoveryLog

RUN_S, KILLS_A_RUN, STEPS = 4.0, 15, 100_000
BARS_S = {10_000: 0.2, 1_000_000: 0.2, 10_000_000: 1.0}
COSTS = {10_000: 0.95, 1_000_000: 0.95, 10_000_000: 0.85}
STRATEGIES: dict[str, Callable[[], ps.Strategy]] = {
    "async_sgd": ps.async_sgd,
    "sync_sgd": ps.sync_sgd,
    "first_of(2)": partial(ps.first_of, 2),
    "bounded_staleness(3)": partial(ps.bounded_staleness, 3),
    "buffered(2)": partial(ps.buffered, 2),
    "local_sgd(4), int8": partial(ps.local_sgd, every=4, codec="int8"),
    "diloco(4), top-k": partial(ps.diloco, every=4, codec=TopK(0.1)),
    "elastic_averaging(4)": partial(ps.elastic_averaging, every=4),
    "async_local_sgd(4)": partial(ps.async_local_sgd, 4),
}
MESSAGE = bytes(90)
NUMBERS = {"scale": [1.0], "steps": 1, "damping": {"sum": [1.0], "weight": [1.0]}, "begun": [[0], [0]]}
"""Of the size of a worker's message, and of what changes at a version beside tensors."""
killed_s: list[float] = []


class Wide(torch.nn.Module):
    """So many numbers, of which a step needs few operations."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weights = torch.nn.Parameter(torch.randn(numbers // 10, 10) * 0.01)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.weights * inputs.mean()).mean(0)


class Least:
    """Done at each version, in a server that does not survive: the entries and the copies of one that does, and nothing else."""

    log: RecoveryLog | None = None

    def __init__(self, numbers: int, adam: bool) -> None:
        self._bytes, self._copies = 4 * numbers, 3 if adam else 2

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self.log is None:
            self.log, room = RecoveryLog(), [memoryview(bytearray(self._bytes)) for _ in range(2 * self._copies)]
            self._both = [*zip(room[::2], room[1::2], strict=True)]
        if self.log.rest():
            self.log.begin()
        self.log.turn(0, time.monotonic())
        self.log.enter(MESSAGE)
        for one, other in self._both:
            one[:] = other
        self.log.enter(NUMBERS)
        self.log.enter(time.monotonic())


def nothing(weights: Mapping[str, torch.Tensor]) -> None:
    """Done in the same place, beside that."""


def train(worker: ps.Worker, numbers: int, adam: bool, folder: str, after: Any = None) -> None:
    """Leaves in the folder when each of its steps was over."""
    model: Any = Wide(numbers)
    kind: Any = partial(torch.optim.AdamW, lr=1e-3) if adam else partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    data = TensorDataset(torch.randn(STEPS * 4, 4))
    loader = DataLoader(data, batch_size=4)
    model, optimizer, loader = worker.prepare(model, kind(model.parameters()), loader, after_step=after)
    over_s = array("d")
    try:
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
            over_s.append(time.monotonic())
    finally:
        if folder and worker.server_pid:  # else it is a replay
            Path(folder, str(worker.rank)).write_bytes(over_s.tobytes())


def ran(strategy: ps.Strategy, numbers: int, workers: int, seconds: float, **more: Any) -> tuple[ps.Run, Any]:
    adam, after = more.pop("adam", False), more.pop("after", None)
    function = partial(train, numbers=numbers, adam=adam, folder=more.get("runs", ""), after=after)
    until = ps.Until(seconds=seconds)
    return ps.run(function, strategy, workers=workers, until=until, timeout_s=60, **more), function


def waits_s(folder: str, workers: int) -> list[float]:
    """Of each kill, until each worker went on."""
    found, times_s = [], [array("d", Path(folder, str(worker)).read_bytes()) for worker in range(workers)]
    for at_s in killed_s:
        since = [next((one for one in over_s if one > at_s), None) for over_s in times_s]
        if all(since):
            found.append(max(one for one in since if one) - at_s)
    return found


def killed(
    strategy: ps.Strategy, numbers: int, workers: int, rng: random.Random, run_s: float = RUN_S, **more: Any
) -> list[float]:
    """Kill the server in one run, again and again, make sure of that run, and give the waits."""
    at_s = [rng.uniform(0.2, run_s - run_s / 8) for _ in range(KILLS_A_RUN)]
    killed_s.clear()
    with tempfile.TemporaryDirectory() as folder:
        faults = [ps.Kill(None, after_s=one) for one in sorted(at_s)]
        run, function = ran(strategy, numbers, workers, run_s, faults=faults, durability="process", runs=folder, **more)
        others = [one.what for one in run.incidents if "no update lost" not in one.what]
        assert not others, others
        found_s = waits_s(folder, workers)
        again = str(ps.replay(run.folder, function))
        assert again == f"bit-identical: {run.version:,} versions, all computed again", again
    return found_s


def speed(how: str, numbers: int, seconds: float, adam: bool, after: Any = None) -> float:
    run, _ = ran(ps.async_sgd(), numbers, 2, seconds, durability=how, adam=adam, after=after)
    return run.steps / run.wall_s


def costs(numbers: int, bar: float, adam: bool, seconds: float, runs: int) -> list[Row]:
    """For a small model, where the bar is close to it, the limit too: what the least of it costs."""
    runs_of = partial(speed, numbers=numbers, seconds=seconds, adam=adam)
    tasks = {how: partial(runs_of, how) for how in ("process", "none")}
    if numbers == min(COSTS):
        tasks |= {
            "least": partial(runs_of, "none", after=Least(numbers, adam)),
            "not": partial(runs_of, "none", after=nothing),
        }
    done, what = interleave(tasks, runs), f"{numbers:,} parameters, {'AdamW' if adam else 'momentum'}"
    durable, plain = done["process"], done["none"]
    rows = [row(f"{what}: durable", durable, "steps/s", against="not", against_values=plain, target=f">= {bar}")]
    if "least" in done:
        least = f"{what}: its entries and copies alone (the limit)"
        rows.append(row(least, done["least"], "steps/s", against="without", against_values=done["not"]))
    return rows


def with_tables(runs: int) -> list[Row]:
    """What it costs where rows of a table survive, too. They have no huge pages then."""
    what = {
        f"rows of {EXAMPLES:,} x {FIELDS} ids alone": pulls_and_pushes,
        "a small DLRM": partial(trains, kind="table"),
    }
    rows = []
    for name, train in what.items():
        done = interleave({how: partial(speed_with_tables, train, how) for how in ("process", "none")}, runs)
        rows.append(row(f"{name}: durable", done["process"], "steps/s", against="not", against_values=done["none"]))
    return rows


def speed_with_tables(train: Callable[[ps.Worker], tuple[float, float]], how: str) -> float:
    run = ps.run(train, ps.async_sgd(), workers=1, durability=how, progress=False)
    assert not run.incidents, run.incidents
    rate: float = run.returned[0][0]
    return rate


def noting(kill: Callable[[Process], None]) -> Callable[[Process], None]:
    """Note when a server was killed."""

    def note(process: Process) -> None:
        killed_s.append(time.monotonic())
        kill(process)

    return note


def main() -> None:
    arguments = parser(__doc__ or "", runs=5)
    arguments.add_argument("--kills", type=whole, default=1000, help="of servers, in all")
    arguments.add_argument("--only", help="strategies whose name holds this")
    arguments.add_argument("--no-cost", action="store_true", help="kills alone")
    typed = arguments.parse_args()
    Process.kill = noting(Process.kill)  # type: ignore[method-assign]
    rng, rows, all_s = random.Random(1), [], []
    chosen = {name: make for name, make in STRATEGIES.items() if (typed.only or "") in name}
    while len(all_s) < (20 if typed.quick else typed.kills):
        for name, make in chosen.items():
            workers, adam = rng.choice((2, 3, 4, 8)), rng.random() < 0.5
            found_s = killed(make(), 10_000, workers, rng, adam=adam)
            all_s += found_s
            told = f"{name} x {workers}{', AdamW' if adam else ''}"
            progress.print(
                f"{len(all_s):5} kills, {told}: {statistics.median(found_s):.3f} s, {max(found_s):.3f} at most"
            )
    rows.append(row("kills survived, each run replayed bit for bit", [len(all_s)], "kills"))
    for numbers, bar_s in BARS_S.items():
        found_s = killed(ps.async_sgd(), numbers, 2, rng, run_s=30.0 if numbers > 1_000_000 else 8.0)
        rows.append(row(f"{numbers:,} parameters: wait", found_s, "s", target=f"<= {bar_s}"))
        rows.append(row(f"{numbers:,} parameters: longest wait", [max(found_s)], "s", target=f"<= {bar_s}"))
    for numbers, bar in {} if typed.no_cost else COSTS.items():
        for adam in (False, True):
            rows += costs(numbers, bar, adam, 1.0 if typed.quick else 3.0, typed.runs)
    rows += [] if typed.no_cost else with_tables(1 if typed.quick else typed.runs)
    report("A server that is killed", rows, typed.json)


if __name__ == "__main__":
    main()
