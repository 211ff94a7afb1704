"""Random numbers that do not depend on who was faster.

Of several workers, each has its sources seeded anew for each contribution, from (run seed, worker, number of the contribution),
and again when it takes its first batch (under `hogwild` only now and then: it takes as long as a small step). So what a worker
draws does not depend on the other workers' speed, and an asynchronous run can be replayed. A lone worker's sources are the
script's own (`plesio.worker.randomness.draws`).
The sources are torch's CPU generator, that of the model's device, numpy's and Python's global ones. A script seeds its own
generators (`np.random.default_rng()`, `random.Random()`) from `worker.seed`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Self

import msgspec
import numpy as np
import torch

_PRIME = 0x9E3779B97F4A7C15  # of splitmix64: neighbouring inputs give unrelated seeds
_MASK = 2**64 - 1
_devices: dict[torch.device, Callable[[int], object]] = {}


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
    """From now on, seed this device for each contribution, too; the CPU always is."""
    module: Any = getattr(torch, device.type, None)
    current = getattr(module, "device", nullcontext)  # a kind of device that has but one has none

    def seed_it(seed: int) -> None:
        with current(device):
            module.manual_seed(seed)

    if hasattr(module, "manual_seed") and device.type != "cpu":
        _devices[device] = seed_it


def step_seed(seed: int, worker: int, number: int) -> int:
    """63 bits from a run's seed, a worker and the number of a contribution (splitmix64 of each in turn)."""
    mixed = seed
    for part in (worker, number):
        mixed = (mixed * 0xBF58476D1CE4E5B9 + (part + 1) * _PRIME) & _MASK
        mixed ^= mixed >> 31
        mixed = mixed * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 29
    return mixed >> 1


def begin_with(seed: int, sources: bytes) -> None:
    """At the beginning of a worker: the sources as a packed `RandomState` has them, or seeded where there is none."""
    if sources:
        RandomState.unpacked(sources).restore()
        torch.manual_seed(torch.initial_seed())  # of devices, too
        RandomState.unpacked(sources).restore()
    else:
        seed_everything(seed)


class RandomState:
    """The state of all sources, and of some generators, to be put back after others used them."""

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = [torch.default_generator, *generators]
        self._torch = [one.get_state() for one in self._generators]
        self._random: Any = random.getstate()
        self._numpy: Any = np.random.get_state()

    def restore(self) -> None:
        for generator, state in zip(self._generators, self._torch, strict=True):
            generator.set_state(state)
        random.setstate(self._random)
        np.random.set_state(self._numpy)

    @property
    def generators(self) -> list[torch.Tensor]:
        return self._torch[1:]

    def packed(self) -> bytes:
        name, keys, *rest = self._numpy
        ours = [one.numpy().tobytes() for one in self._torch]
        return msgspec.msgpack.encode((ours, self._random, (name, keys.tobytes(), *rest)))

    @classmethod
    def unpacked(cls, data: bytes, generators: Sequence[torch.Generator] = ()) -> Self:
        """What `packed` gave; of the generators as many as are given."""
        state = cls(generators)
        ours, (version, numbers, gauss), (name, keys, *rest) = msgspec.msgpack.decode(data)
        known = ours[: len(state._torch)]
        state._torch = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in known]
        state._random = version, tuple(numbers), gauss
        state._numpy = name, np.frombuffer(keys, dtype=np.uint32), *rest
        return state
