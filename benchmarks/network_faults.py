"""What a run over TCP costs its workers when others do no good: connections that say nothing, and a worker that is killed.

    python benchmarks/network_faults.py                 # four minutes
    python benchmarks/network_faults.py --quick

Everything is on the loopback. 1,000 connections to the head's door say nothing until it closes them; meanwhile two workers
exchange, one step after the other. Spans with and without take turns in one run. Other runs have
three workers, which rest between their steps as if they computed. One is killed. Two seconds later the others are measured, and a
successor starts.
"""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

import _network
import network
import rivals
from _network import HOST, Counts, Setup
from _report import Row, interleave, parser, report, row, whole
from exchange import exchanger

IDLE_PARAMS, IDLE_WORKERS = 10_000, 2
KILL_PARAMS, KILL_WORKERS = 1_000_000, 3
PAUSE_S = 0.02
"""How long a worker rests before each step: else the cores are all that limits the others, and a death lets them go faster."""
RECOVERED_S = 2.0
"""How long after a worker is killed the others have to be as fast as before."""
SPANS = 3
"""How often a run of the first kind measures: its spans are short beside the moods of a machine that is shared."""
IDLE_S = 30.0
"""Until when all connections have to be closed."""
STRATEGIES = {
    "async_sgd": ["async_sgd", "--set", "correct=plain"],
    "sync_sgd": ["sync_sgd"],
}


def steps_of(counts: Counts, workers: Sequence[int]) -> int:
    return sum(counts.read()[0][worker] for worker in workers)


def rate(counts: Counts, workers: Sequence[int], seconds: float) -> float:
    """Steps/s of these workers together, from now on."""
    began_s, steps = time.monotonic(), steps_of(counts, workers)
    time.sleep(seconds)
    return (steps_of(counts, workers) - steps) / (time.monotonic() - began_s)


# --- connections that say nothing -----------------------------------------------------------------------------------------


class Idle:
    """What connections that say nothing cost, measured in one run.

    `kilobytes`: how much larger the door was at most than before the first of them; `told`: in how many lines the run told of it.
    """

    def __init__(self, connections: int, runs: int, seconds: float) -> None:
        self._connections = connections
        self.kilobytes = 0
        self._before_kb = 0
        self.closed_s: list[float] = []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            setup = Setup(Path(folder), IDLE_PARAMS, IDLE_WORKERS)
            counts, everybody = setup.counts(), range(IDLE_WORKERS)
            with network.started(network.CONTESTANTS["async_tcp"], setup, range(IDLE_WORKERS + 1)) as processes:
                network.wait_until(lambda: min(counts.read()[0]) >= 1000, processes, setup, network.START_S)
                listener = door(processes[0].pid)
                self._before_kb = resident_kb(listener)
                port = int(setup.told("stdout-0", r"PLESIO_JOIN=\S+:(\d+)\s"))
                self.rates = interleave(
                    {
                        "alone": lambda: rate(counts, everybody, seconds),
                        "besieged": lambda: self._besieged(counts, port, listener),
                    },
                    runs,
                    "idle",
                )
                network.end(processes, counts, setup)
            (summary,) = setup.folder.glob("runs/*/summary.json")
            self.told = sum("turned away" in one["what"] for one in json.loads(summary.read_text())["incidents"])

    def _besieged(self, counts: Counts, port: int, door: int) -> float:
        """Steps/s of all workers, from the first connection on until the last one is closed."""
        poller, began_s, steps = select.poll(), time.monotonic(), steps_of(counts, range(IDLE_WORKERS))
        with ExitStack() as ours:
            waiting = set()
            for _ in range(self._connections):
                one = ours.enter_context(socket.create_connection((HOST, port)))
                poller.register(one, select.POLLRDHUP)
                waiting.add(one.fileno())
            while waiting:
                if time.monotonic() - began_s > IDLE_S:
                    raise rivals.RivalError(f"{len(waiting)} connections are still open after {IDLE_S:.0f} s")
                for descriptor, _ in poller.poll(100):
                    poller.unregister(descriptor)
                    waiting.remove(descriptor)
                self.kilobytes = max(self.kilobytes, resident_kb(door) - self._before_kb)
        took_s = time.monotonic() - began_s
        self.closed_s.append(took_s)
        return (steps_of(counts, range(IDLE_WORKERS)) - steps) / took_s


def door(head: int | None) -> int:
    """The number of the head's process that listens."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        number, _, rest = path.read_text().partition(" (")
        name, _, fields = rest.rpartition(") ")
        parents[int(number)] = name, int(fields.split()[1])
    for number, (name, parent) in parents.items():
        while parent in parents and parent != head:
            parent = parents[parent][1]
        if "door" in name and parent == head:
            return number
    raise rivals.RivalError(f"process {head} has no door")


def resident_kb(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


# --- a worker that is killed ----------------------------------------------------------------------------------------------


def steady(rank: int, setup: Setup, strategy: list[str]) -> None:
    """The head, or a worker that rests before each step, as if it computed.

    It tells its seat, and how long its first step came after its import. Torch imports much (torch._dynamo, a second or two) only
    with the first optimizer; here that is part of the import.
    """
    if rank == 0:
        _network.head(setup, strategy)
        return
    import plesio  # noqa: F401

    torch.optim.SGD([torch.zeros(1)], lr=rivals.LR)
    imported_s = time.monotonic()
    with _network.join(setup) as worker:
        exchange = exchanger(worker, setup.params)

        def step() -> None:
            time.sleep(PAUSE_S)
            exchange()

        exchange()
        setup.tell(f"seat-{rank}", f"{worker.rank} {time.monotonic() - imported_s}")
        setup.counts().repeat(step, worker.rank)


class Death(NamedTuple):
    """Steps/s of the others before, and from `RECOVERED_S` on after; when its successor had its first answer after its import."""

    before: float
    after: float
    successor_s: float


def death(strategy: str, seconds: float) -> Death:
    """Kill one of the workers, and start another in its place."""
    body = functools.partial(steady, strategy=STRATEGIES[strategy])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        setup = Setup(Path(folder), KILL_PARAMS, KILL_WORKERS)
        counts = setup.counts()
        with network.started(network.Contestant(body), setup, range(KILL_WORKERS + 1)) as processes:
            network.wait_until(lambda: min(counts.read()[0]) >= 10, processes, setup, network.START_S)
            victim = int(setup.told(f"seat-{KILL_WORKERS}", r"(\d+) "))
            others = [worker for worker in range(KILL_WORKERS) if worker != victim]
            before = rate(counts, others, seconds)
            processes[-1].kill()
            time.sleep(RECOVERED_S)
            after = rate(counts, others, seconds)
            processes[-1].join()
            processes[-1] = network.start(body, KILL_WORKERS + 1, setup)
            network.wait_until((setup.folder / f"seat-{KILL_WORKERS + 1}").exists, processes, setup, network.START_S)
            network.end(processes, counts, setup)
        return Death(before, after, float(setup.told(f"seat-{KILL_WORKERS + 1}", r"\d+ (\S+)")))


# --- rows ---------------------------------------------------------------------------------------------------------------


def idle_rows(connections: int, runs: int, seconds: float) -> list[Row]:
    one = Idle(connections, runs, seconds)
    among = f"{connections:,} idle connections"
    return [
        row(
            f"async_sgd among {among}",
            one.rates["besieged"],
            "steps/s",
            against="without",
            against_values=one.rates["alone"],
            target=">= 0.95",
        ),
        row(f"{among}: all closed after", one.closed_s, "s"),
        row(f"{among}: the door grows by", [one.kilobytes], "kB", target="<= 256"),
        row(f"{among}, {runs} times: told in", [one.told], "lines", target="<= 1"),
    ]


def death_rows(runs: int, seconds: float) -> list[Row]:
    rows = []
    for name in STRATEGIES:
        deaths: list[Death] = []

        def one(name: str = name, deaths: list[Death] = deaths) -> float:
            deaths.append(death(name, seconds))
            return deaths[-1].after / deaths[-1].before

        interleave({name: one}, runs, "a worker is killed,")
        rows += [
            row(
                f"{name}, the others {RECOVERED_S:g} s after a worker is killed",
                [each.after for each in deaths],
                "steps/s",
                against="before",
                against_values=[each.before for each in deaths],
                target=">= 0.9",
            ),
            row(
                f"{name}, the successor's first answer after its import",
                [each.successor_s for each in deaths],
                "s",
                target="<= 1",
            ),
        ]
    return rows


def main() -> None:
    takes = parser(__doc__.partition("\n")[0])
    takes.add_argument("--connections", type=whole, default=1000, metavar="N", help="that say nothing")
    takes.add_argument("--seconds", type=float, default=4.0, metavar="S", help="span without them that is measured")
    chosen = takes.parse_args()
    after_s = 2.0
    if chosen.quick:
        chosen.connections, chosen.runs, chosen.seconds, after_s = 100, 1, 0.2, 0.2
    rows = idle_rows(chosen.connections, SPANS * chosen.runs, chosen.seconds) + death_rows(chosen.runs, after_s)
    report("network faults, on the loopback", rows, chosen.json)


if __name__ == "__main__":
    main()
