"""Contributions in packed form: where the packed bytes lie in a slot, and what is added to the sum of a fold.

The packed bytes of a segment are at its beginning in the slot, so shared memory does not grow. Packed are the trained segments of
float32; one that would not get smaller, and the model's buffers, are sent as they are. How many bytes these are depends on the
layout and the codec alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from plesio.strategy.answers import Codec
from plesio.tensors.arena import ALL_PARTS, CPU, Arena, Kind, Layout
from plesio.tensors.codecs import packer_for
from plesio.tensors.mean import mean_into


class Packing:
    """How a model's deltas or gradients are packed by `codec`."""

    def __init__(self, layout: Layout, codec: Codec) -> None:
        self._packer = packer_for(codec)
        self._layout = layout
        self._trained = [place for place, one in enumerate(layout.segments) if one.kind is Kind.TRAINED]
        rooms = {place: self._packer.room(layout.segments[place].numel) for place in self._trained}
        self._packed = {
            place: room
            for place, room in rooms.items()
            if layout.segments[place].dtype == "float32" and room < 4 * layout.segments[place].numel
        }
        self._plain = [place for place in self._trained if place not in self._packed]

    def spans(self, part: int = ALL_PARTS) -> list[tuple[int, int]]:
        """The bytes (start, end) of a slot that travel with this part of the model."""
        starts = {place: self._layout.segments[place].start for place in self._of(self._trained, part)}
        spans = [(start, start + self._size(place)) for place, start in starts.items()]
        return spans + self._layout.stretches((Kind.BUFFER,))

    def nbytes(self, part: int = ALL_PARTS) -> int:
        """How many these are."""
        return sum(end - start for start, end in self.spans(part))

    def ready(self) -> Packing:
        """Itself, for who packs or unpacks: the compiled kernels are loaded now, which takes half a second, and not in the middle
        of training."""
        one = torch.zeros(1)
        packed = torch.zeros(self._packer.room(1), dtype=torch.uint8)
        self._packer.pack(one, one, packed, None)
        self._packer.add_into(packed, one, 1.0)
        return self

    def _of(self, places: Iterable[int], part: int) -> list[int]:
        """Those of these segments that are exchanged with this part."""
        return [place for place in places if self._layout.segments[place].is_of(part)]

    def _size(self, place: int) -> int:
        one = self._layout.segments[place]
        itemsize: int = getattr(torch, one.dtype).itemsize
        return self._packed.get(place, one.numel * itemsize)

    def _bytes(self, slot: Arena, place: int) -> torch.Tensor:
        start = self._layout.segments[place].start
        return slot.memory[start : start + self._packed[place]]

    def memory(self, device: torch.device = CPU) -> Arena:
        """An error memory: of the model's size, and empty."""
        return Arena.private(self._layout, device)

    def pack(self, start: Arena, now: Arena | None, slot: Arena, held: Arena | None, part: int = ALL_PARTS) -> None:
        """Bring what moved of this part between `start` and `now`, and the buffers of `now`, into `slot`; without a `now`, the
        gradient in `start`, and its buffers. It is packed on the device of `now`, or of the gradient, where `held` is, too; from
        there the packed bytes are copied."""
        here = start if now is None else now
        device = here.memory.device
        for place in self._of(self._plain, part):
            before = start.flat[place]
            slot.flat[place].copy_(before if now is None else before.to(device) - now.flat[place])
        for place in self._of(self._packed, part):
            error, into = held.flat[place] if held is not None else None, self._bytes(slot, place)
            packed = into if device == CPU else torch.empty_like(into, device=device)
            self._packer.pack(start.flat[place], now.flat[place] if now is not None else None, packed, error)
            if packed is not into:
                into.copy_(packed)
        slot.copy_from(here, Kind.BUFFER)

    def mean_into(self, out: Arena, slots: Sequence[Arena], shares: Sequence[float], absent: int = 0) -> Arena:
        """`out` = the weighted sum of what lies in the slots. Segments that are `absent` as a whole are left as they are."""
        lacking = self._layout.lacking(absent)
        for place in [one for one in self._packed if one not in lacking]:
            out.flat[place].zero_()
            for slot, share in zip(slots, shares, strict=True):
                self._packer.add_into(self._bytes(slot, place), out.flat[place], share)
        mean_into(out, slots, shares, (*self._plain, *self._layout.buffer_segments), absent=absent)
        return out

    def move(self, shown: Arena, packed: Arena, part: int = ALL_PARTS) -> None:
        """Move this part of `shown` by the packed difference; the buffers are as they are there."""
        for place in self._of(self._plain, part):
            shown.flat[place].add_(packed.flat[place])
        for place in self._of(self._packed, part):
            self._packer.add_into(self._bytes(packed, place), shown.flat[place], 1.0)
        shown.copy_from(packed, Kind.BUFFER)

    def is_sound(self, slot: Arena, part: int = ALL_PARTS) -> bool:
        """Whether a slot holds what this packing can have made of this part; nobody else looks at what came from another host."""
        return all(
            self._packer.is_sound(self._bytes(slot, place), self._layout.segments[place].numel)
            for place in self._of(self._packed, part)
        )
