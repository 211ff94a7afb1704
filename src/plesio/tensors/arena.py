"""One flat, aligned buffer behind all of a model's tensors.

A `Layout` says where each tensor lies; an `Arena` is a piece of memory read through a layout. Tensors that are worked on
together lie together. The parameters of one optimizer group and dtype make one *segment*: an elementwise optimizer steps
it as a single flat tensor. Where a model is exchanged in parts (`plesio.tensors.cut`), each part has segments of its own. Those
that are frozen for now make one of their own, which may be left out of what is done. Then come parameters no optimizer moves,
then buffers. Each tensor starts on a 64-byte boundary, so that kernels take the same path whatever lies before it; the padding is
zero and stays zero.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from itertools import groupby
from math import prod

import msgspec
import torch
from msgspec.structs import replace
from torch.utils.dlpack import from_dlpack

from plesio.tensors.operands import Operand, operand

CPU = torch.device("cpu")
HALF = (torch.float16, torch.bfloat16)
ALIGNMENT = 64
PAGE = 4096
ALL_PARTS = -1
"""In place of the number of a part: the whole model."""
SMALL_BYTES = 1 << 20
"""Up to this size a plain memory copy is quicker than torch's; beyond, torch may use several threads."""


REMEMBERED_MAX = 100
"""How many sets of absent tensors are remembered."""
FIELDS = {
    "shape": "shape",
    "dtype": "dtype",
    "kind": "kind",
    "group": "optimizer group",
    "asleep": "frozen at prepare",
    "in_memory": "order in memory",
}
"""What must be the same of a tensor in each worker, and in words."""


class Kind(IntEnum):
    """A tensor's part in training; the kinds lie in memory in this order."""

    TRAINED = 0
    """A parameter the optimizer moves."""
    FROZEN = 1
    """A parameter no optimizer moves."""
    BUFFER = 2
    """State that the forward pass writes, such as batch-norm statistics."""
    ROWS = 3
    """A table that the optimizer moves, a few rows at a time (`plesio.tensors.rows`)."""

    @property
    def moves(self) -> bool:
        """Whether an optimizer moves it."""
        return self in (Kind.TRAINED, Kind.ROWS)


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor's name, shape and dtype, its kind, and the optimizer group it belongs to (-1: none). `asleep`: it is trained, and
    needs no gradient yet. `part`: the part of the model that it is exchanged with, if it is trained. `order`: its dimensions from
    the outermost in memory to the innermost, if that is not as they are written: (0, 2, 3, 1) for channels last. `beside`: it is
    none of the model's: it lies beside one that is trained, and what moves it comes from workers, as with that one."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    group: int = -1
    asleep: bool = False
    part: int = 0
    order: tuple[int, ...] = ()
    beside: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def in_memory(self) -> str:
        """The order of its dimensions there, in words."""
        return f"by dimensions {self.order}" if self.order else "contiguous"

    def shaped(self, flat: torch.Tensor) -> torch.Tensor:
        """A flat tensor of its elements, seen in its shape."""
        if not self.order:
            return flat.view(self.shape)
        places = sorted(range(len(self.order)), key=self.order.__getitem__)
        return flat.view([self.shape[one] for one in self.order]).permute(places)


class Segment(msgspec.Struct, frozen=True):
    """A part of an arena that is one flat tensor of `numel` elements (padding included)."""

    kind: Kind
    group: int
    dtype: str
    start: int
    numel: int
    tensors: tuple[int, ...]
    part: int = 0

    def is_of(self, part: int) -> bool:
        """Whether it is exchanged with this part: what is not trained is, with each."""
        return part in (ALL_PARTS, self.part) or self.kind is not Kind.TRAINED


class Layout:
    """Where each tensor of a model lies in an arena. `specs`: in the model's own order (tied weights are one tensor).

    >>> layout = Layout([TensorSpec("w", (3, 4), "float32", Kind.TRAINED, 0)])
    >>> layout.nbytes, layout.segments[0].numel, layout.payload_bytes()
    (4096, 16, 48)
    """

    def __init__(self, specs: Sequence[TensorSpec], widened: bool = False) -> None:
        """`widened`: as `wide` has it."""
        self.specs = tuple(map(_wider, specs)) if widened else tuple(specs)
        starts = [0] * len(specs)
        segments: list[Segment] = []
        at = 0
        order = sorted(range(len(specs)), key=lambda i: (*_together(specs[i]), i))
        for (kind, part, group, dtype, _), some in groupby(order, key=lambda i: _together(specs[i])):
            tensors, start, itemsize = tuple(some), at, getattr(torch, dtype).itemsize
            stored = self.specs[tensors[0]]
            times = stored.torch_dtype.itemsize // itemsize
            for index in tensors:
                starts[index] = at
                at += times * ((specs[index].numel * itemsize + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)
            numel = (at - start) // (times * itemsize)
            segments.append(Segment(kind, group, stored.dtype, start, numel, tensors, part))
        self.starts = tuple(starts)
        self.segments = tuple(segments)
        trained = [one for one in segments if one.kind is Kind.TRAINED]
        self.trained_elements = tuple(sum(specs[i].numel for i in one.tensors) for one in trained)  # without padding
        whole = (Kind.TRAINED, Kind.BUFFER)
        self.moving_segments = tuple(i for i, one in enumerate(segments) if one.kind in whole)
        self._members = tuple(sum(1 << tensor for tensor in one.tensors) for one in segments)
        self._lacking: dict[int, frozenset[int]] = {0: frozenset()}
        self.buffer_segments = tuple(i for i, one in enumerate(segments) if one.kind is Kind.BUFFER)
        self.nbytes = max(PAGE, (at + PAGE - 1) // PAGE * PAGE)
        self.parts = 1 + max((spec.part for spec in specs), default=0)
        self._stretches: dict[tuple[tuple[Kind, ...], int], list[tuple[int, int]]] = {}

    @cached_property
    def wide(self) -> Layout:
        """The same with float32 in place of half precision where an optimizer moves it: the same segments, of as many elements
        each. Itself where there is none."""
        return Layout(self.specs, widened=True) if any(_wider(one) is not one for one in self.specs) else self

    def lacking(self, absent: int) -> frozenset[int]:
        """The trained segments of which all tensors are in this set (`plesio.tensors.tensor_set`), by number. They come first in
        memory, so it is their place among the trained ones, too."""
        known = self._lacking.get(absent)
        if known is None:
            if len(self._lacking) > REMEMBERED_MAX:  # as where each step uses other tensors
                self._lacking = {0: frozenset()}
            trained = [place for place in self.moving_segments if place not in self.buffer_segments]
            known = frozenset(place for place in trained if absent & self._members[place] == self._members[place])
            self._lacking[absent] = known
        return known

    def outside(self, part: int) -> int:
        """The trained tensors that an exchange of this part does not have, as a set."""
        both = zip(self.segments, self._members, strict=True)
        return sum(members for one, members in both if not one.is_of(part))

    def payload_bytes(self, part: int = ALL_PARTS) -> int:
        """What an exchange takes in each direction."""
        moving = (self.segments[place] for place in self.moving_segments)
        specs = (self.specs[tensor] for one in moving if one.is_of(part) for tensor in one.tensors)
        return sum(spec.numel * spec.torch_dtype.itemsize for spec in specs)

    def stretches(self, kinds: tuple[Kind, ...], part: int = ALL_PARTS) -> list[tuple[int, int]]:
        """The byte ranges (start, end) of the segments of these kinds (all, if none is named) that are exchanged with `part`."""
        known = self._stretches.get((kinds, part))
        if known is None:
            known = self._stretches[kinds, part] = []
            for one in self.segments:
                if (kinds and one.kind not in kinds) or not one.is_of(part):
                    continue
                start, end = one.start, one.start + one.numel * getattr(torch, one.dtype).itemsize
                if known and known[-1][1] == start:
                    start, _ = known.pop()
                known.append((start, end))
        return known

    def difference(self, other: Layout) -> str | None:
        """The first tensor in which `other` differs, in words: name, wanted, got. None if there is none."""
        for wanted, got in zip(self.specs, other.specs, strict=False):
            if wanted.name != got.name:
                return f"tensor {wanted.name!r} was wanted, got {got.name!r}"
            for field, what in FIELDS.items():
                want, have = getattr(wanted, field), getattr(got, field)
                if want != have:
                    return f"{wanted.name}: wanted {what} {_words(want)}, got {_words(have)}"
        if len(self.specs) != len(other.specs):
            longer = max(self.specs, other.specs, key=len)
            odd = longer[min(len(self.specs), len(other.specs))].name
            return f"wanted {len(self.specs)} tensors, got {len(other.specs)}; the first one without a match is {odd!r}"
        return None


def order_in_memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """The `order` of a tensor without gaps; of one with gaps none, as of one whose dimensions lie as they are written.

    >>> image = torch.ones(8, 3, 5, 5)
    >>> order_in_memory(image), order_in_memory(image.to(memory_format=torch.channels_last)), order_in_memory(image[:, :, ::2])
    ((), (0, 2, 3, 1), ())
    """
    shape, strides = tensor.shape, tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda one: (-strides[one], -shape[one]))
    inner = 1
    for one in reversed(order):
        if shape[one] != 1 and strides[one] != inner:
            return ()
        inner *= shape[one]
    return tuple(order) if order != sorted(order) else ()


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of one that lies in an arena, in the order in which they lie there."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _words(value: object) -> str:
    return value.name.lower() if isinstance(value, Kind) else str(value)


def _together(spec: TensorSpec) -> tuple[Kind, int, int, str, bool]:
    return spec.kind, spec.part, spec.group, spec.dtype, spec.asleep


def _wider(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float32") if spec.kind.moves and spec.torch_dtype in HALF else spec


class Lies(msgspec.Struct, frozen=True):
    """Where an arena lies in memory that processes share: from byte `start` on, in `nbytes` of it."""

    nbytes: int = 0
    start: int = 0

    def of(self, memory: torch.Tensor, layout: Layout) -> Arena:
        """That arena, where `memory` is the whole of it."""
        return Arena(layout, memory[self.start : self.start + layout.nbytes])


class Arena:
    """A piece of memory read through a layout.

    `flat` holds one flat tensor per segment, `views` one tensor per spec, over the same bytes. `bytes` are these, on the CPU.

    >>> layout = Layout([TensorSpec("w", (2, 2), "float32", Kind.TRAINED, 0)])
    >>> arena = Arena.private(layout)
    >>> arena.views[0].fill_(1.0); float(arena.flat[0].sum())
    tensor([[1., 1.],
            [1., 1.]])
    4.0
    """

    def __init__(self, layout: Layout, memory: torch.Tensor) -> None:
        assert memory.dtype == torch.uint8 and memory.numel() >= layout.nbytes, "an arena is that many bytes"
        self.layout = layout
        self.memory = memory
        self.bytes: memoryview = memory.numpy().data if memory.is_cpu else memoryview(b"")
        self.flat = tuple(_over(memory, one.dtype, one.start, one.numel) for one in layout.segments)
        self.views = tuple(
            spec.shaped(_over(memory, spec.dtype, start, spec.numel))
            for spec, start in zip(layout.specs, layout.starts, strict=True)
        )

    @classmethod
    def private(cls, layout: Layout, device: torch.device = CPU) -> Arena:
        """A zeroed arena on a device, or in this process's memory, of which untouched pages take none."""
        if device != CPU:
            return cls(layout, torch.zeros(layout.nbytes, dtype=torch.uint8, device=device))
        memory = mmap.mmap(-1, layout.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return cls(layout, torch.frombuffer(memory, dtype=torch.uint8))

    @cached_property
    def trained(self) -> tuple[Operand, ...]:
        """The trained segments as operands of arithmetic."""
        return tuple(map(operand, self.of_kind(Kind.TRAINED)))

    def of_kind(self, *kinds: Kind, part: int = ALL_PARTS) -> list[torch.Tensor]:
        """The flat tensors of the segments of these kinds that are exchanged with `part`."""
        both = zip(self.flat, self.layout.segments, strict=True)
        return [flat for flat, segment in both if segment.kind in kinds and segment.is_of(part)]

    def copy_from(self, other: Arena, *kinds: Kind, part: int = ALL_PARTS) -> None:
        """Copy the segments of these kinds (all, if none is named) that are exchanged with `part`; done when it returns, on any
        device."""
        for start, end in self.layout.stretches(kinds, part):
            if end - start <= SMALL_BYTES and self.bytes and other.bytes:
                self.bytes[start:end] = other.bytes[start:end]
            else:
                self.memory[start:end].copy_(other.memory[start:end])


def _over(memory: torch.Tensor, dtype: str, start: int, numel: int) -> torch.Tensor:
    """A flat tensor over a piece of `memory`, with a storage of its own, so that `torch.save` saves that piece alone."""
    kind = getattr(torch, dtype)
    if numel == 0:
        return torch.empty(0, dtype=kind, device=memory.device)
    if not memory.is_cpu:
        return apart(memory[start : start + numel * kind.itemsize].view(kind))
    return torch.frombuffer(memory.numpy(), dtype=kind, count=numel, offset=start)


def apart(view: torch.Tensor) -> torch.Tensor:
    """The same elements in the same place, with a storage of their own; as it is on a device that does not export tensors."""
    try:
        return from_dlpack(view)
    except (ValueError, BufferError, RuntimeError):
        return view
