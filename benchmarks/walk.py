"""The walk of one contribution at the server, from when it is heard until all about it is done.

    python benchmarks/walk.py [STRATEGY]

A server runs in this process, its workers are the other ends of its pipes. Python's profiler is told of every call while the
server deals with one contribution: how many calls there are into plesio, of how many files, and how often one follows another
of a different file, returns not counted. Up to the answer, and with what comes after it.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import plesio as ps
from plesio.config import RunConfig
from plesio.launch.job import Job
from plesio.launch.local.server_process import Server
from plesio.protocol.journal import JournalHead, JournalWriter
from plesio.protocol.launcher import Stop
from plesio.protocol.worker import Contribution, Ready
from plesio.server.lines import Line
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.doorbell import framed
from plesio.worker.introduction import Taking, introduction

ROOT = Path(ps.__file__).parent
WORKERS, WARM_UP = 2, 20


class Walk:
    """Files that were called into, in order, up to the answer and in all."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.answered: int | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            self.files.append(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))
        elif event == "c_call" and argument is os.write and self.answered is None:
            self.answered = len(self.files)


def told(files: list[str]) -> str:
    """How long a walk is."""
    changes = sum(one != other for one, other in itertools.pairwise(files))
    return f"{len(files)} calls, {len(set(files))} files, {changes} changes of file"


def server_of(strategy: ps.Strategy, folder: Path) -> tuple[Server, list[int]]:
    """A server whose training has begun, and where its workers write; what it answers is never read."""
    ends, lines, pushes = [], [], []
    for worker in range(WORKERS):
        ours, theirs = channel_pair()
        heard, push = os.pipe()
        _, answer = os.pipe()
        lines.append(Line.open(worker, 1, iter((ours.detach(), heard, answer))))
        ends.append(Channel(theirs, object, "the server"))
        pushes.append(push)
    launcher, _ends = channel_pair()
    config = RunConfig(strategy=strategy, workers=WORKERS)
    writer = JournalWriter(folder / "journal.bin", JournalHead(strategy=strategy.name, workers=WORKERS))
    job = Job(config=config, train=walk, evaluate=None)
    server = Server(job, Channel(launcher, Stop, "the launcher"), None, lines, writer)
    model = torch.nn.Linear(100, 100)
    for worker, line in enumerate(lines):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        ends[worker].send(introduction(worker, strategy, Taking(model, optimizer), evaluates=False)[0])
        server.workers.from_channel(line)
    for end, line in zip(ends, lines, strict=True):
        end.send(Ready())
        server.workers.from_channel(line)
    server.kept = _ends, ends  # type: ignore[attr-defined]  # else they are closed
    return server, pushes


def walk(strategy: ps.Strategy) -> Walk:
    """That of worker 0's contribution after some of both."""
    with tempfile.TemporaryDirectory() as folder:
        server, pushes = server_of(strategy, Path(folder))
        walked = Walk()
        for number in range(1, WARM_UP):
            for worker in reversed(range(WORKERS)):
                os.write(pushes[worker], framed(Contribution(number, 1, 8)))
                if last := number == WARM_UP - 1 and worker == 0:
                    sys.setprofile(walked)
                server.workers.from_doorbell(server._lines[worker])
                if last:
                    sys.setprofile(None)
    return walked


def step(worker: ps.Worker) -> list[str]:
    """The files that worker 0's step calls into, up to when its contribution is sent and on to when it goes on."""
    model = torch.nn.Linear(100, 100)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    walked = Walk()
    for number in range(WARM_UP):
        optimizer.zero_grad()
        model(torch.ones(1, 100)).sum().backward()
        if last := number == WARM_UP - 1 and worker.rank == 0:
            sys.setprofile(walked)
        optimizer.step()
        if last:
            sys.setprofile(None)
    return walked.files


def main() -> None:
    """Print it."""
    recipe: Callable[[], ps.Strategy] = getattr(ps, sys.argv[1] if len(sys.argv) > 1 else "async_sgd")
    walked = walk(recipe())
    print(f"{recipe.__name__}, until it is answered: {told(walked.files[: walked.answered])}")
    print(f"{recipe.__name__}, all: {told(walked.files)}")
    for file, calls in Counter(walked.files).most_common():
        print(f"{calls:4} {file}")
    stepped: list[str] = ps.run(step, recipe(), workers=WORKERS, progress=False).returned[0]
    print(f"{recipe.__name__}, the worker's step: {told(stepped)}")
    for file, calls in Counter(stepped).most_common():
        print(f"{calls:4} {file}")


if __name__ == "__main__":
    main()
