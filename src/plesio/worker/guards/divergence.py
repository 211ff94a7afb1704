"""All-reduce guard: the replicas are still the same, bit for bit.

Each reduction carries a checksum of one part of the replica, another part at each step. So a large model is read once in
`PARTS` steps, and a difference is found within as many.
"""

from __future__ import annotations

from typing import NoReturn

from xxhash import xxh3_64_intdigest

from plesio.errors import ModelMismatchError
from plesio.tensors.arena import Arena, Kind
from plesio.worker.warn import listed

PARTS = 16  # steps in which a large model is compared whole
PART_BYTES = 1 << 17  # the least that one step compares: a small model whole
CHECKSUM_BITS = 24


class DivergenceCheck:
    """One worker's checksums of its parameters. Buffers are left out: forward passes write into them."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        ((_, self._end),) = arena.layout.stretches((Kind.TRAINED, Kind.FROZEN))
        self._part = max(PART_BYTES, -(-self._end // PARTS))

    def _start(self, round: int) -> int:
        return round % -(-self._end // self._part) * self._part

    def checksum(self, round: int) -> int:
        """The checksum of the part that is compared in round `round`."""
        start = self._start(round)
        part = self._arena.memory[start : min(start + self._part, self._end)]
        return xxh3_64_intdigest(part.cpu().numpy().data) >> (64 - CHECKSUM_BITS)

    def names(self, round: int) -> str:
        start, layout = self._start(round), self._arena.layout
        named = [
            spec.name
            for spec, begin in zip(layout.specs, layout.starts, strict=True)
            if spec.kind is not Kind.BUFFER
            and begin < start + self._part
            and begin + spec.numel * spec.torch_dtype.itemsize > start
        ]
        return listed(named)

    def refuse(self, round: int) -> NoReturn:
        raise ModelMismatchError(
            f"the workers' replicas are no longer the same: after {round} steps they differ in {self.names(round)}. Under "
            "all-reduce every worker must do the same to its parameters: what is written into them, how gradients are changed "
            "between backward() and step(), and what the optimizer's state was when it was prepared must not depend on the "
            "worker (as it does with load_state_dict on one worker only, with nn.Embedding(max_norm=...), with gradients "
            "computed by torch.autograd.grad, and with random numbers in the optimizer)"
        )
