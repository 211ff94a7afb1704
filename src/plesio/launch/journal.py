"""The journal of a run, begun."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import torch

from plesio.launch.job import Job
from plesio.launch.torch_settings import TorchSettings
from plesio.observe.provenance import source_of, train_hash, versions
from plesio.protocol.journal import ISLANDS, JournalHead, JournalWriter


def begun(job: Job, threads: int) -> JournalWriter:
    """The journal of a run, begun, or gone on with if it is there already; torch has `threads` in each process."""
    path, config = Path(job.keeping.journal), job.config
    if path.exists():
        return JournalWriter.resume(path)
    head = JournalHead(  # what has to be the same for a replay to come out the same
        workers_max=config.workers_max or msgspec.UNSET,
        strategy=config.strategy.name,
        fields=config.strategy.as_data(),
        workers=config.workers,
        seed=config.seeded,
        sources=job.sources or msgspec.UNSET,
        stealing=config.stealing,
        silence_s=config.timeout_s,
        threads=threads,
        versions=versions(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        script=source_of(job.train),
        train_hash=train_hash(job.train),
        torch=msgspec.to_builtins(TorchSettings.of_this_process()),
    )
    writer = JournalWriter(path, head)
    if config.ranks > 1:
        writer.note(f"{ISLANDS}{config.ranks} processes", time.monotonic())
    return writer
