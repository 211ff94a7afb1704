"""What the live page costs training: runs that write a record and are shown on a page, against runs that write none.

    python benchmarks/live.py --json FILE [--quick]

Each worker's step is small, so the server tells as much as it can: ten times a second. The runs of a row take turns; the ratio
is the median of their ratios. `bare`: a run folder is written, without the record's lines; `bare, again`: the same, which shows
what noise there is. `record`: with them, and nobody looks. `page`: a page's server runs beside it, and a reader takes its events
as a browser does. What the server does for each telling, which is in all of them, is timed by itself, for 32 workers.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec
import torch
from torch import nn

import plesio as ps
from _report import Row, interleave, parser, report, row
from plesio.observe.meter import Meter
from plesio.observe.record import Record
from plesio.observe.standing import Standing
from plesio.protocol.launcher import Progress
from plesio.watch.process import live_page

RUN_S = 3.0
HOW = ("bare", "bare, again", "record", "page")


def train(worker: ps.Worker) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
    inputs, labels = torch.randn(32, 64), torch.randint(10, (32,))
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        worker.log(loss=loss)


@contextlib.contextmanager
def looked_at(runs: Path) -> Iterator[None]:
    """A page that shows the run that begins in there, and one who reads it."""
    over = threading.Event()

    def look(address: str) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.2):
                if folders := list(runs.glob("*/live.jsonl")):
                    with urllib.request.urlopen(f"{address}events?run={folders[0].parent.name}", timeout=10) as events:
                        while not over.is_set() and events.readline():
                            pass

    with live_page(runs) as address:
        reader = threading.Thread(target=look, args=(address,))
        reader.start()
        try:
            yield
        finally:
            over.set()
    reader.join()


def speed(how: str, workers: int, seconds: float) -> float:
    """Steps a second."""
    with tempfile.TemporaryDirectory() as folder:
        shown = looked_at(Path(folder)) if how == "page" else contextlib.nullcontext()
        with shown, patch.object(Record, "at") if how == "bare" else contextlib.nullcontext():
            run = ps.run(
                train,
                ps.async_sgd(),
                workers=workers,
                until=ps.Until(seconds=seconds),
                runs=folder,
                progress=False,
            )
    return float(run.steps / run.wall_s)


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All rows."""
    seconds, result = (1.0 if arguments.quick else RUN_S), []
    for workers in (2, 4):
        tasks = {how: partial(speed, how.split(",")[0], workers, seconds) for how in HOW}
        got = interleave(tasks, 1 if arguments.quick else arguments.runs, f"{workers} workers,")
        result += [
            row(
                f"{workers} workers: {how}",
                got[how],
                "steps/s",
                against="bare",
                against_values=got["bare"],
                target=None if how.startswith("bare") else ">= 0.99",
            )
            for how in HOW[1:]
        ]
    return [*result, row("a telling of 32 workers", [telling_us() for _ in range(5)], "us", target="<= 1000")]


def telling_us() -> float:
    """Microseconds that the server takes to sum up 32 workers and to encode it; at ten a second, 1,000 are 1% of its time."""
    meter, times = Meter(32), 200
    meter.begin(0.0)
    for worker in range(32):
        for tau in range(64):
            meter.folded(worker, tau)
    began_s = time.perf_counter()
    for _ in range(times):
        workers = tuple(one.now(1.0, 0.0, False) for one in meter.seated)
        stale = {worker: dict(counts) for worker, counts in meter.stale().items()}
        msgspec.msgpack.encode(Progress(now=Standing(workers, 0, (), meter.ideal_share(1.0), stale)))
    return (time.perf_counter() - began_s) / times * 1e6


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=9).parse_args()
    report("the live page: async_sgd with steps of less than a millisecond", rows(given), given.json)
