"""How fast one exchange is (push a gradient of P float32, apply it, pull the parameters), and how much memory it holds.

    python benchmarks/exchange.py                       # 1e4 to 1e8 parameters, 2 workers, several minutes
    python benchmarks/exchange.py --quick
    python benchmarks/exchange.py --only rivals         # needs torch only

The compute is nothing: every worker pushes the gradient that lies ready, so that the exchange alone is measured (under
`allreduce`, as under DDP, in a backward pass that computes nothing); the optimizer is plain SGD. Every worker takes its own
rate, after a warm-up; plesio and its rivals are run in turn. Rates are steps/s of all workers together.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

import rivals
from _report import Row, interleave, parser, progress, report, row, whole, wholes

if TYPE_CHECKING:
    import plesio as ps

LR = 1e-9
SCALE = 1e-6
SMALL = 10_000  # parameters of the small exchange, where only the fixed cost of a step counts
MEMORY_LEAST = 10_000_000  # below, what the allocator keeps back is as large as the weights

RPC_TARGETS = {10_000: ">= 12", 1_000_000: ">= 20", 10_000_000: ">= 20"}
PASS_TARGETS = {10_000_000: ">= 0.5"}
STEP_TARGET_US = "< 100"
SERVER_TARGET = "<= 0.5"
WORKER_TARGET = "<= 0.3"


# --- plesio's side --------------------------------------------------------------------------------------------------


class Flat(torch.nn.Module):
    """A model of one flat parameter; ones rather than zeros, so that the system really gives it its memory."""

    def __init__(self, params: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(params))


def strategy(name: str) -> ps.Strategy:
    """The strategy under test. Plain SGD without a correction, as the rivals do it."""
    import plesio as ps

    if name == "async_sgd":
        return ps.async_sgd(correct="plain")
    return {"sync_sgd": ps.sync_sgd, "allreduce": ps.allreduce, "hogwild": ps.hogwild}[name]()


def exchanger(worker: ps.Worker, params: int) -> Callable[[], None]:
    """One step of `worker`, without arguments. Nobody else holds the model, so that prepare() may free its memory."""
    model = Flat(params)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR), None)
    (parameter,) = model.parameters()
    parameter.grad = torch.full((params,), SCALE)  # from the first step on it lies in this worker's slot
    return optimizer.step


def trainer(worker: ps.Worker, params: int) -> Callable[[], None]:
    """One step of `worker` with a backward pass, as DDP's; under all-reduce that is what exchanges."""
    model = rivals.FlatModel(params)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR), None)
    return rivals.training_step(model, optimizer)


def train(worker: ps.Worker, params: int, seconds: float, name: str) -> None:
    """Measure the rate of this worker and log it once."""
    step = (trainer if name == "allreduce" else exchanger)(worker, params)
    worker.log(steps_per_s=rivals.steps_per_s(step, seconds))


def plesio_rate(name: str, params: int, workers: int, seconds: float) -> float:
    """Steps/s of all workers together under the strategy called `name`."""
    import plesio as ps

    measured = functools.partial(train, params=params, seconds=seconds, name=name)
    run = ps.run(measured, strategy(name), workers=workers)
    rates = logged(run, "steps_per_s")
    if len(rates) != workers:
        raise RuntimeError(f"{name}: {len(rates)} of {workers} workers reported their rate")
    return sum(rates)


def logged(run: ps.Run, metric: str) -> list[float]:
    """What the workers logged under this name."""
    return [entry.metrics[metric] for entry in run.summary.logged if metric in entry.metrics]


# --- speed ----------------------------------------------------------------------------------------------------------


def speed_rows(params: int, workers: int, seconds: float, runs: int) -> list[Row]:
    """All rows about time for one size; everything is measured in turn, run by run."""
    tasks: dict[str, Callable[[], float]] = {}
    for name in ("torch_rpc", "async_sgd", "ddp", "sync_sgd", "allreduce", "memcpy", "hogwild", "optimizer_pass"):
        rate = rivals.RIVALS.get(name) or functools.partial(plesio_rate, name)
        tasks[name] = functools.partial(rate, params, workers, seconds)
    if params == SMALL:
        for count in (1, 2):
            tasks[f"small {count}"] = functools.partial(step_us, params, count, seconds)
    rates = interleave(tasks, runs, size(params))
    rows = [
        pair(rates, params, "async_sgd", "torch_rpc", RPC_TARGETS.get(params)),
        pair(rates, params, "async_sgd", "optimizer_pass", PASS_TARGETS.get(params)),
        pair(rates, params, "async_sgd", "memcpy"),
        pair(rates, params, "sync_sgd", "ddp"),
        pair(rates, params, "allreduce", "ddp"),
        pair(rates, params, "hogwild", "memcpy"),
    ]
    for name in [name for name in rates if name.startswith("small")]:
        measure = f"async_sgd P={size(params)}, one step of one worker of {name.removeprefix('small ')}"
        rows.append(row(measure, rates[name], "us", target=STEP_TARGET_US))
    return rows


def pair(rates: dict[str, list[float]], params: int, ours: str, rival: str, target: str | None = None) -> Row:
    """The row of one strategy against one rival."""
    measure = f"{ours} P={size(params)}"
    return row(measure, rates[ours], "steps/s", against=rival, against_values=rates[rival], target=target)


def step_us(params: int, workers: int, seconds: float) -> float:
    """Wall time of one step of one worker, in microseconds."""
    return 1e6 * workers / plesio_rate("async_sgd", params, workers, seconds)


def rival_rows(params: int, workers: int, seconds: float, runs: int) -> list[Row]:
    """The rivals alone, held against the copy that bounds them."""
    tasks = {name: functools.partial(rival, params, workers, seconds) for name, rival in rivals.RIVALS.items()}
    rates = interleave(tasks, runs, size(params))
    return [pair(rates, params, name, "memcpy") for name in rates if name != "memcpy"]


# --- memory ---------------------------------------------------------------------------------------------------------


def memory_rows(sizes: Iterable[int], workers: int, runs: int) -> list[Row]:
    """Private memory that comes with the weights: what a run holds beyond the same run with a small model."""
    rows = []
    for params in sizes:
        held: dict[str, list[float]] = {"server": [], "worker": []}
        for number in range(1, runs + 1):
            small, large = private_mb(SMALL, workers), private_mb(params, workers)
            for name, values in held.items():
                values.append(large[name] - small[name])
            progress.print(f"{size(params)} run {number}/{runs} private MB: {large}, with a small model {small}")
        weights_mb = [4e-6 * params] * runs
        for name, target in (("server", SERVER_TARGET), ("worker", WORKER_TARGET)):
            measure = f"async_sgd P={size(params)}, private memory of a {name}"
            rows.append(row(measure, held[name], "MB", against="weights", against_values=weights_mb, target=target))
    return rows


def private_mb(params: int, workers: int) -> dict[str, float]:
    """Most private memory while stepping: of the server, and of a worker above what it had before it had a model."""
    import plesio as ps

    run = ps.run(functools.partial(train_watched, params=params), strategy("async_sgd"), workers=workers)
    return {"server": max(logged(run, "server_mb")), "worker": max(logged(run, "above_mb"))}


def train_watched(worker: ps.Worker, params: int) -> None:
    """A few steps, watched from a thread beside them; the reading slows them, so no time is taken here."""
    before = rivals.private_bytes(os.getpid())
    step = exchanger(worker, params)
    for _ in range(3):  # the first assigns a gradient of its own, which the second no longer has
        step()
    ctypes.CDLL(None).malloc_trim(0)  # the first gradient, which was freed and is kept
    with Peak(os.getpid()) as own, Peak(worker.server_pid) as server:
        for _ in range(20):
            step()
    worker.log(above_mb=(own.bytes - before) / 1e6, server_mb=server.bytes / 1e6)


class Peak:
    """Most private bytes of a process while the `with` block runs, read once a millisecond and at both ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._read()

    def _watch(self) -> None:
        while not self._over.is_set():
            self._read()
            time.sleep(0.001)

    def _read(self) -> None:
        self.bytes = max(self.bytes, rivals.private_bytes(self.pid))


# --- the command line -------------------------------------------------------------------------------------------------


def size(params: int) -> str:
    """1e6 for 1000000; other numbers in full."""
    short = f"{params:.0e}".replace("e+0", "e")
    return short if float(short) == params else f"{params:,}"


def arguments() -> argparse.Namespace:
    result = parser(__doc__.partition("\n")[0])
    result.add_argument("--params", type=wholes, default="1e4,1e6,1e7,1e8", metavar="P,P", help="sizes")
    result.add_argument("--workers", type=whole, default=2, metavar="N", help="workers")
    result.add_argument("--seconds", type=float, default=3.0, metavar="S", help="span over which a worker counts")
    result.add_argument("--only", choices=("all", "speed", "memory", "rivals"), default="all", help="part to run")
    chosen = result.parse_args()
    if chosen.quick:
        chosen.params, chosen.runs, chosen.seconds = (10_000, 1_000_000), 1, 1.0
    return chosen


def main() -> None:
    chosen = arguments()
    rows: list[Row] = []
    if chosen.only != "memory":
        measure = rival_rows if chosen.only == "rivals" else speed_rows
        for params in chosen.params:
            rows += measure(params, chosen.workers, chosen.seconds, chosen.runs)
    if chosen.only in {"all", "memory"}:
        rows += memory_rows([params for params in chosen.params if params >= MEMORY_LEAST], chosen.workers, chosen.runs)
    threads = "rivals 1 a process, plesio as it chooses"
    report(f"exchange, {chosen.workers} workers", rows, chosen.json, threads=threads)


if __name__ == "__main__":
    main()
