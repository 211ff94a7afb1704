"""Random numbers that do not depend on who was faster.

Every worker's sources are seeded anew for each contribution, from (run seed, worker, number of the contribution), and again
when it takes its first batch (under `hogwild` only now and then: it takes as long as a small step). So what a worker draws does
not depend on the other workers' speed, and an asynchronous run can be replayed.
The sources are torch's CPU generator, that of the model's device, numpy's and Python's global ones. A script seeds its own
generators (`np.random.default_rng()`, `random.Random()`) from `worker.seed`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_PRIME = 0x9E3779B97F4A7C15  # of splitmix64: neighbouring inputs give unrelated seeds
_MASK = 2**64 - 1
_devices: dict[str, Callable[[int], object]] = {}


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and random in this process; alike on every worker, so that all build the same model."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_step(seed: int, worker: int, number: int) -> None:
    """Seed them for contribution `number` of `worker`; a negative number is for the time before its data."""
    mixed = step_seed(seed, worker, number)
    seed_everything(mixed)
    for seed_it in _devices.values():
        seed_it(mixed)


def seed_device(device: torch.device) -> None:
    """From now on, seed this kind of device for each contribution, too; the CPU always is."""
    module = getattr(torch, device.type, None)
    seed_it = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
    if seed_it is not None and device.type != "cpu":
        _devices[device.type] = seed_it


def step_seed(seed: int, worker: int, number: int) -> int:
    """63 bits from a run's seed, a worker and the number of a contribution (splitmix64 of each in turn)."""
    mixed = seed
    for part in (worker, number):
        mixed = (mixed * 0xBF58476D1CE4E5B9 + (part + 1) * _PRIME) & _MASK
        mixed ^= mixed >> 31
        mixed = mixed * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 29
    return mixed >> 1


class RandomState:
    """The state of all sources, to be put back after others used them."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._random: Any = random.getstate()
        self._numpy: Any = np.random.get_state()

    def restore(self) -> None:
        torch.default_generator.set_state(self._torch)
        random.setstate(self._random)
        np.random.set_state(self._numpy)
