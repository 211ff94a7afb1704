"""What a worker that somebody else started has of its host: its share of the cores, as torch's threads, and its number there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by these a user says how many
BESIDE = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")  # by these torchrun and SLURM say how many workers a host has
NUMBER = ("LOCAL_RANK", "SLURM_LOCALID")  # and by these which of them a process is


def processes_here(workers: int, beside_the_head: bool, environment: Mapping[str, str] = os.environ) -> int:
    """How many processes of a run share this host's cores; 0 if nothing says so. Of workers beside the head it is taken that
    all are there.

    >>> processes_here(3, True, {}), processes_here(8, False, {"LOCAL_WORLD_SIZE": "2"}), processes_here(3, False, {})
    (4, 2, 0)
    """
    told = [environment[name] for name in BESIDE if environment.get(name, "").isdecimal()]
    return int(told[0]) + beside_the_head if told else (workers + 1) * beside_the_head


def local_rank(number: int, environment: Mapping[str, str] = os.environ) -> int:
    """The number of a worker among those of its host. Where nothing says so, it is its `number` in the run.

    >>> local_rank(9, {"LOCAL_RANK": "1"}), local_rank(9, {})
    (1, 9)
    """
    told = [environment[name] for name in NUMBER if environment.get(name, "").isdecimal()]
    return int(told[0]) if told else number


@contextmanager
def threads_among(processes: int, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Within this, torch has no more threads than this process's share of the cores, unless the user said how many."""
    before = torch.get_num_threads()
    share = max(1, (os.cpu_count() or 1) // processes) if processes else before
    if share >= before or any(name in environment for name in CHOSEN):
        yield
        return
    torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(before)
