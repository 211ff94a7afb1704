"""Keeps the journal of a run: what the sequencer was told, and what was done of it."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import platform
import sys
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xxhash import xxh3_64_hexdigest

from plesio.core.events import Discard, Effect, Event, Evict, Fold, Ticked
from plesio.engine.assembly import Assembly
from plesio.engine.job import Job
from plesio.journal import JournalHead, JournalWriter
from plesio.tensors.checksum import weights_hash, window_checksum


class Recorder:
    """Writes the journal of one run.

    Args:
        writer: where to.
        built: gives the run's memory, once there is some.
    """

    def __init__(self, writer: JournalWriter, built: Callable[[], Assembly]) -> None:
        self._writer = writer
        self._built = built
        self.loss = nan
        """What the worker that is heard next last logged."""

    def told(self, event: Event, now_s: float) -> None:
        """The sequencer is about to be told this."""
        if not isinstance(event, Ticked):
            self._writer.event(event, now_s, self.loss)

    def done(self, effect: Effect, now_s: float) -> None:
        """This was done."""
        if isinstance(effect, Fold):
            self._writer.fold(effect, window_checksum(self._built().current.memory, effect.version))
        elif isinstance(effect, Discard):
            self._writer.discard(effect)
        elif isinstance(effect, Evict):
            self._writer.evict(effect, now_s)

    def note(self, text: str, now_s: float, worker: int | None = None) -> None:
        """Something a reader will want to know."""
        self._writer.note(text, now_s, worker)

    def resumed(self, version: int, now_s: float) -> None:
        """The run goes on from a checkpoint."""
        self._writer.resumed(version, now_s)

    @property
    def position(self) -> int:
        """The byte up to which the journal reaches."""
        return self._writer.position

    def flush(self, durable: bool = False) -> None:
        """Hand on what gathered; `durable`: and wait until the disk has it."""
        self._writer.flush(durable)

    def end(self, version: int, now_s: float) -> None:
        """The run ended in order."""
        self._writer.end(version, weights_hash(self._built().current.memory), now_s)


def head_of(job: Job, threads: int) -> JournalHead:
    """What has to be the same for a replay to come out the same."""
    script = source_of(job.train)
    return JournalHead(
        strategy=job.strategy.name,
        fields=job.strategy.as_data(),
        workers=job.workers,
        seed=job.seed,
        stealing=job.stealing,
        silence_s=job.timeout_s,
        threads=threads,
        versions=versions(),
        platform=f"{sys.platform} {platform.machine()}",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        script=script,
        train_hash=train_hash(job.train),
        local_steps=str(job.strategy.every),
    )


def versions() -> dict[str, str]:
    """Of what decides the bits."""
    own = importlib.metadata.version("plesio")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "plesio": own,
    }


def source_of(train: Callable[..., object]) -> str:
    """The file that a training function is written in; empty if it is in none."""
    try:
        return str(Path(inspect.getfile(inspect.unwrap(_plain(train)))).resolve())
    except TypeError:
        return ""


def train_hash(train: Callable[..., object]) -> str:
    """A hash of the file of the training function, or of its code if it is in no file."""
    source = Path(source_of(train))
    if source.is_file():
        return xxh3_64_hexdigest(source.read_bytes())
    code = getattr(_plain(train), "__code__", None)
    return xxh3_64_hexdigest(code.co_code if code is not None else b"")


def _plain(train: Any) -> Any:
    while isinstance(train, functools.partial):
        train = train.func
    return train if inspect.isroutine(train) else type(train)
