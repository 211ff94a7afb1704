"""Rows for those who serve them: how long one takes from its fold to an HTTP answer, and the bytes that following them takes.

    python benchmarks/serving_rows.py --json FILE [--quick]

Way: one worker steps rows every 5 ms and notes when. `plesio serve-rows` follows over TCP, and we ask it for a row every 5 ms. A
version's way ends with the first answer of that version or a later one. Bytes: a reader follows a table over TCP, and a proxy
counts. What that is held against are 8 bytes for the key and 4 for each number of every row that stepped between two looks. We
know them: the ids of a step are made of its number.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import torch

import plesio as ps
from _report import Row, interleave, parser, report, row

EVERY_S = (0.02, 0.1, 0.5)
DIMS = (16, 64)
STEP_S = 0.005
IDS, BATCH = 100_000, 256
LOOK_S = 0.1
WAIT_S = 60.0


class Net(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rows, self.last = ps.Table(dim, ps.RowSGD(lr=0.1), seed=1), torch.nn.Linear(dim, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.rows(ids))


def ids_of(step: int) -> torch.Tensor:
    return torch.randint(0, IDS, (BATCH,), generator=torch.Generator().manual_seed(step))


def train(worker: ps.Worker, dim: int, folder: Path) -> None:
    """Steps until the file "enough" is there. "folded" gets when each version was there: step n makes version n + 1."""
    model = Net(dim)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    folded_s = []
    for step in worker.steps(1_000_000):
        optimizer.zero_grad()
        model(ids_of(step)).square().mean().backward()
        optimizer.step()
        folded_s.append(time.monotonic())
        if (folder / "enough").exists():
            break
        time.sleep(STEP_S)
    (folder / "folded").write_text(json.dumps(folded_s))


@contextmanager
def run(dim: int) -> Iterator[tuple[str, Callable[[], list[float]]]]:
    """A run under way: its address, and what ends it and says when it folded each version."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        task = partial(train, dim=dim, folder=Path(folder))
        options = {"workers": 1, "readers": address}
        thread = threading.Thread(target=lambda: ps.run(task, ps.async_sgd(), **options))
        thread.start()

        def end() -> list[float]:
            Path(folder, "enough").touch()
            thread.join()
            return json.loads(Path(folder, "folded").read_text())

        try:
            yield address, end
        finally:
            end()


def way_ms(every_s: float, seconds: float) -> float:
    """The median of all versions made while we ask."""
    port, seen = free_port(), []
    with run(DIMS[0]) as (address, end):
        serve = [sys.executable, "-m", "plesio", "serve-rows", f"tcp://{address}", "--listen", f"127.0.0.1:{port}"]
        endpoint = subprocess.Popen([*serve, "--every-s", str(every_s)], stderr=subprocess.DEVNULL)
        try:
            line = connected(port)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                line.request("GET", "/rows/rows?ids=0")
                version = json.load(line.getresponse())["version"]
                if not seen or version > seen[-1][0]:
                    seen.append((version, time.monotonic()))
                time.sleep(STEP_S)
        finally:
            endpoint.terminate()
            endpoint.wait()
        folded_s = end()
    versions = [version for version, _ in seen]
    asked = range(versions[0] + 1, versions[-1] + 1)
    ways = [seen[bisect_left(versions, one)][1] - folded_s[one - 1] for one in asked]
    return 1000 * statistics.median(ways)


def connected(port: int) -> http.client.HTTPConnection:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        with suppress(ConnectionRefusedError):
            line.connect()
            return line
        time.sleep(LOOK_S)
    raise SystemExit("plesio serve-rows does not answer")


def bytes_against(dim: int, seconds: float) -> tuple[float, float]:
    """What came, and what rows that changed amount to."""
    with run(dim) as (address, _), Counting(int(address.rpartition(":")[2])) as proxy:
        with ps.read(address) as first:  # until it trains
            first.wait(newer_than=0, timeout_s=WAIT_S)
        with ps.read(f"tcp://127.0.0.1:{proxy.port}") as reader:
            since = reader.changed("rows").version
            before, least, end_s = proxy.came, 0, time.monotonic() + seconds
            while time.monotonic() < end_s:
                time.sleep(LOOK_S)
                got = reader.changed("rows", since)
                if got.version == since:
                    continue
                stepped = torch.cat([ids_of(step) for step in range(since, got.version)]).unique()
                assert torch.equal(got.ids.sort().values, stepped), "those that stepped come, and no others"
                least, since = least + len(stepped) * (8 + 4 * dim), got.version
            return float(proxy.came - before), float(least)


class Counting:
    """Passes one connection on to a port, and counts what comes back."""

    def __init__(self, target: int) -> None:
        self._target, self._listener, self.came = target, socket.create_server(("127.0.0.1", 0)), 0
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listener.accept()[0] as near, socket.create_connection(("127.0.0.1", self._target)) as far:
            up = threading.Thread(target=self._pass, args=(near, far, False), daemon=True)
            up.start()
            self._pass(far, near, True)
            up.join()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                self.came += len(piece) if counts else 0
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def rows(arguments: argparse.Namespace) -> list[Row]:
    quick = arguments.quick
    runs, seconds = (1, 2.0) if quick else (arguments.runs, 15.0)
    tasks = {f"{every_s:g}": partial(way_ms, every_s, seconds) for every_s in (EVERY_S[:1] if quick else EVERY_S)}
    ways = interleave(tasks, runs, "way")
    found = [
        row(f"fold to HTTP answer, every {every_s} s", values, "ms", target=f"< {1000 * float(every_s) + 50:g}")
        for every_s, values in ways.items()
    ]
    for dim in DIMS[:1] if quick else DIMS:
        came, least = zip(*(bytes_against(dim, seconds) for _ in range(runs)), strict=True)
        measure, against = f"bytes over TCP, {dim} numbers a row", "key and numbers of rows that changed"
        found.append(row(measure, came, "bytes", against=against, against_values=least, target="<= 1.1"))
    return found


if __name__ == "__main__":
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    report("Rows for those who serve them", rows(arguments), arguments.json)
