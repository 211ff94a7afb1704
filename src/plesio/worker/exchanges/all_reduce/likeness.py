"""Whether all replicas are still the same, bit for bit: a part of them is compared at each reduction.

What the members of a group sum up anyway (which parameters took part) takes along a checksum of one part, another part at
each step. To compare everything at every step would read the model once more; like this it is read once in `PARTS` steps.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from plesio.tensors.arena import Arena, Kind

PARTS = 16
"""In how many steps a large model is compared whole,"""
PART_BYTES = 1 << 17
"""and how much of it is compared in one at least: a small model in every one."""
STAMP_BITS = 24


class Likeness:
    """One worker's view of it: buffers left out, which forward passes write into."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        ((_, self._end),) = arena.layout.stretches((Kind.TRAINED, Kind.FROZEN))
        self._part = max(PART_BYTES, -(-self._end // PARTS))

    def _start(self, round: int) -> int:
        return round % -(-self._end // self._part) * self._part

    def stamp(self, round: int) -> int:
        """The checksum of the part that is round `round`'s turn."""
        start = self._start(round)
        part = self._arena.memory[start : min(start + self._part, self._end)]
        return xxh3_64_intdigest(part.cpu().numpy().data) >> (64 - STAMP_BITS)

    def names(self, round: int) -> str:
        """Which tensors lie in that part, in words."""
        start, layout = self._start(round), self._arena.layout
        named = [
            spec.name
            for spec, begin in zip(layout.specs, layout.starts, strict=True)
            if spec.kind is not Kind.BUFFER
            and begin < start + self._part
            and begin + spec.numel * spec.torch_dtype.itemsize > start
        ]
        return ", ".join(named) if len(named) <= 4 else f"{named[0]} ... {named[-1]} ({len(named)} tensors)"
