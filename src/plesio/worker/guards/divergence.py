"""All-reduce guard: the replicas are still the same, bit for bit, and so are the settings of their optimizers.

Each time that the workers show where they are, they compare a checksum of one part of the replica, another part each time. So a
large model is read once in as many times as it has parts, and a small one every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NoReturn
from zlib import crc32

import msgspec
import torch
from torch.optim import Optimizer

from plesio.errors import ConfigurationError, ModelMismatchError
from plesio.tensors.arena import Kind, Layout
from plesio.tensors.optimizer_spec import hyper_parameters
from plesio.worker.warn import listed

PART_BYTES = 1 << 25  # about what is compared at a time
MODULUS = 1 << 20  # so that the squares of many add up exactly
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DivergenceCheck:
    """One worker's checksums. Buffers are left out: forward passes write into them."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        compared = [
            (spec.name, one) for spec, one in zip(layout.specs, tensors, strict=True) if spec.kind is not Kind.BUFFER
        ]
        ends = accumulate(one.numel() * one.element_size() for _, one in compared)
        self._parts: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for end, one in zip(ends, compared, strict=True):
            self._parts.setdefault((end - 1) // PART_BYTES, []).append(one)

    def _part(self, number: int) -> list[tuple[str, torch.Tensor]]:
        parts = list(self._parts.values())
        return parts[number % len(parts)]

    def parameters(self, number: int) -> int:
        """The checksum of what is compared the `number`-th time."""
        sums = [_bits(one).sum(dtype=torch.int64) for _, one in self._part(number)]
        weights = range(1, 1 + len(sums))
        total: int = sum(weight * one for weight, one in zip(weights, torch.stack(sums).tolist(), strict=True))
        return total % MODULUS

    def settings(self) -> int:
        return crc32(msgspec.msgpack.encode(hyper_parameters(self._optimizer), enc_hook=repr)) % MODULUS

    def refuse_parameters(self, number: int, steps: int) -> NoReturn:
        names = listed([name for name, _ in self._part(number)])
        raise ModelMismatchError(
            f"the workers' replicas are no longer the same: after {steps} steps they differ in {names}. Under all-reduce every "
            "worker must do the same to its parameters: what is written into them, how gradients are changed between backward() "
            "and step(), and what the optimizer's state was when it was prepared must not depend on the worker (as it does with "
            "load_state_dict on one worker only, with nn.Embedding(max_norm=...), and with random numbers in the optimizer)"
        )

    def refuse_settings(self) -> NoReturn:
        raise ConfigurationError(
            "the optimizers of the workers have other hyper-parameters, and under all-reduce all step alike: a learning rate "
            "must not depend on the worker, nor a schedule on what one worker saw (its own loss)"
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of the numbers, as whole ones."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(WORDS[min(8, flat.element_size())])
