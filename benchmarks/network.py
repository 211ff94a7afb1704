"""How fast an exchange is over TCP and TLS, against bare sockets, torch RPC and DDP that move the same bytes.

    python benchmarks/network.py                        # 1e4 to 1e7 parameters, several minutes
    python benchmarks/network.py --quick
    python benchmarks/network.py --only raw,torch_rpc --sizes 1e6 --seconds 1

Everything is on the loopback: 2 workers and 1 server, in processes of their own. A step pushes a gradient that lies ready and
pulls the parameters, 8P bytes. (DDP has no server; it moves half of that. GB are those of 8P a step for all.) Contestants take
turns. Once all workers are warm, a window is measured: the steps of all workers, and the CPU time of all processes.

`raw` moves the bytes and does nothing with them. `limit` does what any such exchange has to, by bare means. It hashes bytes at
both ends and folds them. Each connection has a process of its own, beside the one that folds.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing as mp
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

import _network
import rivals
from _network import Setup
from _report import Row, interleave, parser, report, row, whole, wholes
from exchange import size

WARM_STEPS = 3
START_S = 120.0  # until every worker is warm: it imports torch
END_S = 30.0  # until a run has ended once its workers have stopped


class Contestant(NamedTuple):
    """One way to exchange. `first`, `last`: the ranks of its processes; `ends`: whether they end by themselves.

    Those that do not are killed after the window.
    """

    body: Callable[[int, Setup], None]
    first: int = 0
    last: int = 2
    ends: bool = False


CONTESTANTS = {
    "raw": Contestant(_network.raw),
    "raw_ssl": Contestant(_network.raw_ssl),
    "limit": Contestant(_network.limit),
    "limit_ssl": Contestant(_network.limit_ssl),
    "torch_rpc": Contestant(_network.torch_rpc),
    "ddp": Contestant(_network.ddp, first=1),
    "local": Contestant(_network.local, last=0, ends=True),
    "async_tcp": Contestant(_network.async_tcp, ends=True),
    "sync_tcp": Contestant(_network.sync_tcp, ends=True),
    "async_tls": Contestant(_network.async_tls, ends=True),
    "sync_tls": Contestant(_network.sync_tls, ends=True),
}
RIVALS = ("raw", "raw_ssl", "limit", "limit_ssl", "torch_rpc", "ddp")


class Bar(NamedTuple):
    """One bar: steps/s of `ours` over those of `rival`; without a target it is for orientation."""

    params: int
    ours: str
    rival: str
    target: str | None = None


BARS = (
    Bar(10_000_000, "async_tcp", "raw", ">= 0.65"),
    Bar(10_000_000, "limit", "raw"),
    Bar(10_000_000, "async_tcp", "limit"),
    Bar(10_000_000, "async_tcp", "torch_rpc", ">= 2.5"),
    Bar(10_000_000, "limit", "torch_rpc"),
    Bar(10_000_000, "sync_tcp", "ddp", ">= 1.7"),
    Bar(10_000_000, "limit", "ddp"),
    Bar(1_000_000, "async_tcp", "torch_rpc", ">= 1.3"),
    Bar(1_000_000, "async_tcp", "ddp", ">= 1.4"),
    Bar(1_000_000, "async_tcp", "limit"),
    Bar(1_000_000, "async_tls", "raw_ssl", ">= 0.9"),
    Bar(1_000_000, "limit_ssl", "raw_ssl"),
    Bar(1_000_000, "limit", "torch_rpc"),
    Bar(10_000, "async_tcp", "torch_rpc", ">= 1.9"),
    Bar(10_000, "async_tcp", "ddp", ">= 3.5"),
    Bar(10_000, "async_tcp", "local", ">= 0.5"),  # a step takes at most twice as long
    Bar(10_000, "limit", "local"),
    Bar(10_000, "async_tls", "async_tcp", ">= 0.75"),
    Bar(10_000, "limit_ssl", "limit"),
)
CPU_TARGETS = {("async_tcp", 10_000_000): "<= 1.0"}


# --- one measurement ----------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Of one window: steps/s of all workers together, and CPU seconds of all processes for 1e9 bytes of tensors."""

    steps_per_s: float
    cpu_s_per_gb: float


def measure(contestant: Contestant, params: int, workers: int, seconds: float) -> Measured:
    """Start it, let it warm up, look at it for `seconds`, end it."""
    last = workers if contestant.last else 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        setup = Setup(Path(folder), params, workers)
        counts = setup.counts()
        with started(contestant, setup, range(contestant.first, last + 1)) as processes:
            wait_until(lambda: min(counts.read()[0]) >= WARM_STEPS, processes, setup, START_S + 2e-6 * params)
            time.sleep(0.2 * seconds)
            result = window(counts, 8e-9 * params, seconds, processes, setup)
            if contestant.ends:
                end(processes, counts, setup)
            else:
                check(processes, setup, {None, 0})
    return result


def window(
    counts: _network.Counts, step_gb: float, seconds: float, processes: list[BaseProcess], setup: Setup
) -> Measured:
    """Measure for `seconds`, and for at least two steps of every worker. Both ends of a worker's span are ends of steps."""
    start_s, cpu_s = time.monotonic(), cpu_seconds()
    steps, ends_s = counts.read()
    time.sleep(seconds)
    wait_until(
        lambda: all(now - then >= 2 for now, then in zip(counts.read()[0], steps, strict=True)),
        processes,
        setup,
        START_S,
    )
    more_steps, more_s = counts.read()
    took_s, cpu_s = time.monotonic() - start_s, cpu_seconds() - cpu_s
    rate = sum((m - n) / (b - a) for n, m, a, b in zip(steps, more_steps, ends_s, more_s, strict=True))
    return Measured(rate, cpu_s / (rate * took_s * step_gb))


def cpu_seconds() -> float:
    """CPU time so far of all processes that descend from this one and are alive, without its own."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= found
    return sum(ticks[pid] for pid in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def started(contestant: Contestant, setup: Setup, ranks: range) -> Iterator[list[BaseProcess]]:
    """The processes of these ranks; they are killed in the end."""
    processes: list[BaseProcess] = []
    try:
        for rank in ranks:
            processes.append(start(contestant.body, rank, setup))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def start(body: Callable[[int, Setup], None], rank: int, setup: Setup) -> BaseProcess:
    with rivals.environment(rivals.ENVIRONMENT):
        process = mp.get_context("spawn").Process(
            target=_main, args=(body, rank, setup), daemon=True, name=f"rank {rank}"
        )
        process.start()
    return process


def _main(body: Callable[[int, Setup], None], rank: int, setup: Setup) -> None:
    """What a process says goes to files, for it is shown only if it fails."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        with open(setup.folder / f"{name}-{rank}", "w") as file:
            os.dup2(file.fileno(), stream.fileno())
    torch.set_num_threads(1)
    body(rank, setup)


def wait_until(so: Callable[[], bool], processes: list[BaseProcess], setup: Setup, timeout_s: float) -> None:
    """Wait until it is so; fail if a process ends before, or if it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not so():
        check(processes, setup, {None})
        if time.monotonic() > deadline_s:
            raise rivals.RivalError(f"not there after {timeout_s:.0f} s\n{rivals.complaints(setup.folder)}")
        time.sleep(0.005)


def end(processes: list[BaseProcess], counts: _network.Counts, setup: Setup) -> None:
    """Let the workers stop, and with them the run; fail if a process does not end well."""
    counts.stop()
    wait_until(lambda: not any(process.is_alive() for process in processes), [], setup, END_S)
    check(processes, setup, {0})


def check(processes: list[BaseProcess], setup: Setup, codes: set[int | None]) -> None:
    """Fail if a process has another exit code (None: it has not ended) than these."""
    for process in processes:
        if process.exitcode not in codes:
            raise rivals.RivalError(f"{process.name} ended with {process.exitcode}\n{rivals.complaints(setup.folder)}")


# --- rows ---------------------------------------------------------------------------------------------------------------


def rows_of(names: tuple[str, ...], params: int, chosen: argparse.Namespace) -> list[Row]:
    """All rows about one size: the contestants' own figures, then the bars."""
    cpu: dict[str, list[float]] = {name: [] for name in names}

    def rate(name: str) -> float:
        measured = measure(CONTESTANTS[name], params, chosen.workers, chosen.seconds)
        cpu[name].append(measured.cpu_s_per_gb)
        return measured.steps_per_s

    rates = interleave({name: functools.partial(rate, name) for name in names}, chosen.runs, size(params))
    rows = []
    for name in names:
        rows.append(row(f"{name} P={size(params)}", rates[name], "steps/s"))
        target = CPU_TARGETS.get((name, params))
        rows.append(row(f"{name} P={size(params)}, all processes", cpu[name], "CPU s/GB", target=target))
    return rows + bar_rows(rates, params)


def bar_rows(rates: Mapping[str, list[float]], params: int) -> list[Row]:
    """Ours against the rivals, as far as both were measured."""
    return [
        row(
            f"{bar.ours} P={size(params)}",
            rates[bar.ours],
            "steps/s",
            against=bar.rival,
            against_values=rates[bar.rival],
            target=bar.target,
        )
        for bar in BARS
        if bar.params == params and {bar.ours, bar.rival} <= rates.keys()
    ]


def contestants(text: str) -> tuple[str, ...]:
    """An argument that is a list of contestants: `raw,ddp`."""
    names = RIVALS if text == "rivals" else tuple(CONTESTANTS) if text == "all" else tuple(text.split(","))
    unknown = set(names) - CONTESTANTS.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CONTESTANTS)}")
    return names


def main() -> None:
    takes = parser(__doc__.partition("\n")[0])
    takes.add_argument("--sizes", type=wholes, default="1e4,1e6,1e7", metavar="P,P", help="parameters")
    takes.add_argument("--workers", type=whole, default=2, metavar="N", help="workers")
    takes.add_argument("--seconds", type=float, default=3.0, metavar="S", help="span that is measured")
    takes.add_argument(
        "--only",
        type=contestants,
        default="all",
        metavar="NAME,NAME",
        help=f"all, rivals or some of {', '.join(CONTESTANTS)}",
    )
    chosen = takes.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.runs, chosen.seconds = (10_000,), 1, 0.2
    rows = [each for params in chosen.sizes for each in rows_of(chosen.only, params, chosen)]
    title = f"network, {chosen.workers} workers on the loopback"
    report(title, rows, chosen.json, threads="1 a process; bare sockets: 1 a connection at the server")


if __name__ == "__main__":
    main()
