"""Weighted means over arenas, segment by segment; frozen parameters are left as they are.

Integers and bools (a batch-norm layer's count of batches) have no mean: the largest value is taken, of those that came and,
where some workers are missing, of the one that was there before: a stale worker must not set a count back.

A sum can overflow where the mean does not. So what is summed is first scaled down by a power of two, which changes no bit of
the mean. Half precision is summed in float32, since a long sum in half precision stops growing.

Where all workers hold the same bits in a buffer, the mean is those bits. Arithmetic would turn a causal mask of -inf into NaN,
overflow one of the smallest finite number, and round a table of constants a little at each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import frexp
from typing import Any

import torch

from plesio.tensors.arena import HALF, Arena, Kind
from plesio.tensors.finite import is_finite
from plesio.tensors.operands import CHUNK, pieces

Weighted = Callable[[torch.Tensor, Sequence[torch.Tensor], Sequence[float]], None]
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: how to read it as plain bits, by which a NaN is like itself."""


def same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Element by element, whether they are the same to the last bit.

    >>> same_bits(torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), -0.0]))
    tensor([ True, False])
    """
    bits = BITS[one.itemsize]
    return one.view(bits) == other.view(bits)


class _Constant:
    """Where all of several buffers hold the same bits (bools), and the value there, which is the first one's."""

    def __init__(self, value: torch.Tensor, where: torch.Tensor) -> None:
        self._value = value
        self._where = where

    @classmethod
    def of(cls, first: torch.Tensor) -> _Constant:
        return cls(first.clone(), torch.ones_like(first, dtype=torch.bool))

    def add(self, other: torch.Tensor) -> None:
        self._where.logical_and_(same_bits(self._value, other))

    def put_into(self, mean: torch.Tensor) -> None:
        torch.where(self._where, self._value, mean, out=mean)


def mean_into(
    out: Arena,
    parts: Sequence[Arena],
    shares: Sequence[float],
    segments: Sequence[int] | None = None,
    by: Weighted | None = None,
    absent: int = 0,
) -> None:
    """`out` = sum of shares[i] * parts[i], of all segments that move or of these; the shares add up to 1, `out` may be parts[0].
    Segments that are `absent` as a whole are left as they are.

    Equal shares are summed first and divided once. A single part is copied as it is, bit for bit. `by` does it for a segment.
    """
    by = by or weighted_into
    buffers = out.layout.buffer_segments if len(parts) > 1 else ()
    lacking = out.layout.lacking(absent) if absent else ()
    for segment in out.layout.moving_segments if segments is None else segments:
        if segment in lacking:
            continue
        target, flats = out.flat[segment], [part.flat[segment] for part in parts]
        if not target.is_floating_point():
            _largest_into(target, flats)
            continue
        constant = _Constant.of(flats[0]) if segment in buffers else None
        if constant is not None:
            for flat in flats[1:]:
                constant.add(flat)
        by(target, flats, shares)
        if constant is not None:
            constant.put_into(target)


def weighted_into(target: torch.Tensor, parts: Sequence[torch.Tensor], shares: Sequence[float]) -> None:
    """`target` = sum of shares[i] * parts[i]."""
    if parts[0].dtype in HALF and len(parts) > 1:
        _half_into(target, parts, shares)
        return
    if len(parts) == 1:
        if target.data_ptr() != parts[0].data_ptr():
            target.copy_(parts[0])
        return
    factors, even = factors_of(shares)
    whole = (target, *parts)
    for out, first, *others in (whole,) if target.numel() <= CHUNK else pieces(*whole):
        torch.mul(first, factors[0], out=out)
        for piece, factor in zip(others, factors[1:], strict=True):
            out.add_(piece, alpha=factor)
        if even != 1.0:
            out.mul_(even)


def factors_of(shares: Sequence[float]) -> tuple[Sequence[float], float]:
    """What to multiply parts by before they are summed, and what to multiply the sum by.

    >>> factors_of([0.5, 0.5]), factors_of([0.25, 0.75])
    (([0.5, 0.5], 1.0), ([0.25, 0.75], 1.0))
    """
    count = len(shares)
    if shares.count(shares[0]) < count:
        return shares, 1.0
    down = room_for(count)
    return [down] * count, shares[0] / down


def room_for(count: int) -> float:
    """The power of two to scale `count` numbers by, so that their sum does not overflow.

    >>> room_for(2), room_for(3), room_for(4)
    (0.5, 0.25, 0.25)
    """
    return 0.5 ** (count - 1).bit_length()


def _half_into(target: torch.Tensor, parts: Sequence[torch.Tensor], shares: Sequence[float]) -> None:
    for out, first, *others in pieces(target, *parts):
        total = first.float().mul_(shares[0])
        for piece, share in zip(others, shares[1:], strict=True):
            total.add_(piece, alpha=share)
        out.copy_(total)


def _largest_into(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    target.copy_(parts[0])
    for part in parts[1:]:
        torch.maximum(target, part, out=target)


def move_towards(target: Arena, current: Arena, mean: Arena, rate: float) -> None:
    """`target` = `current`, so much of the way to `mean`; the model's buffers, too."""
    for position, segment in enumerate(target.layout.segments):
        if segment.kind is Kind.TRAINED:
            torch.lerp(current.flat[position], mean.flat[position], rate, out=target.flat[position])
    blend_buffers(target, current, mean, rate)


def blend_buffers(target: Arena, current: Arena, mean: Arena, share: float) -> None:
    """Move the model's buffers towards the contributions' by their `share` of the workers; a round without late ones (1) replaces
    them.

    Elements that are equal, or of which one is infinite, become the contributions' value.
    """
    for segment in target.layout.buffer_segments:
        new, old, came = target.flat[segment], current.flat[segment], mean.flat[segment]
        if share == 1.0:
            new.copy_(came)
        elif not new.is_floating_point():
            torch.maximum(old, came, out=new)
        else:
            arrived = same_bits(old, came)
            torch.lerp(old, came, share, out=new)
            if not is_finite(new):
                arrived |= ~new.isfinite()
            torch.where(arrived, came, new, out=new)


class Accumulator:
    """A running weighted sum, in `arena`, of at most `count` contributions; in half precision their running mean. `beside`: two
    arenas for what they have in common in buffers, if that is to outlive this process."""

    def __init__(self, arena: Arena, count: int, beside: Sequence[Arena] = ()) -> None:
        self.arena = arena
        self._beside = beside
        self.count = count
        self._down = 1.0  # the power of two that the sum is scaled by
        self._empty = True
        self._weights: dict[int, float] = {}  # by segment: of what was added to it
        self._constants: dict[int, _Constant] = {}  # by buffer segment

    def add(self, part: Arena, weight: float, absent: int = 0) -> None:
        """Add a contribution, but for segments of which all is `absent`: they count as zeros."""
        down = room_for(self.count) * 0.5 ** max(0, frexp(weight)[1])
        if self._empty:
            self._down = down
        elif down < self._down:  # a greater weight than before needs more room
            for total in self.arena.flat:
                if total.is_floating_point() and total.dtype not in HALF:
                    total.mul_(down / self._down)
            self._down = down
        lacking = part.layout.lacking(absent)
        for segment in part.layout.moving_segments:
            if segment in lacking:
                continue
            total, one, first = self.arena.flat[segment], part.flat[segment], segment not in self._weights
            self._weights[segment] = self._weights.get(segment, 0.0) + weight
            if not total.is_floating_point():
                total.copy_(one) if first else torch.maximum(total, one, out=total)
            elif total.dtype in HALF:
                share = weight / self._weights[segment]
                _half_into(total, [one] if first else [total, one], [share] if first else [1 - share, share])
            elif first:
                torch.mul(one.to(total.dtype), weight * self._down, out=total)
            else:
                total.add_(one, alpha=weight * self._down)
        self._add_constants(part)
        self._empty = False

    def _add_constants(self, part: Arena) -> None:
        for segment in part.layout.buffer_segments:
            one = part.flat[segment]
            if not one.is_floating_point():
                continue
            if self._empty:
                self._constants[segment] = self._constant(segment, one)
            else:
                self._constants[segment].add(one)

    def _constant(self, segment: int, first: torch.Tensor | None) -> _Constant:
        """That of a segment, of which one is the first; or as it lies beside the sum."""
        if not self._beside:
            assert first is not None, "it lies nowhere"
            return _Constant.of(first)
        values, bools = self._beside
        value, start = values.flat[segment], values.layout.segments[segment].start
        where = bools.memory[start : start + value.numel()].view(torch.bool)
        if first is not None:
            value.copy_(first)
            where.fill_(True)
        return _Constant(value, where)

    def numbers(self) -> list[Any]:
        """What it knows beside tensors."""
        return [self._down, self._empty, list(self._weights.items()), list(self._constants)]

    def take(self, numbers: Sequence[Any]) -> None:
        """Go on from these numbers, with what lies in `arena` and beside it."""
        self._down, self._empty, weights, constants = numbers
        self._weights = dict(weights)
        self._constants = {segment: self._constant(segment, None) for segment in constants}

    def empty(self) -> None:
        self._empty = True
        self._weights.clear()

    def take_mean(self, total_weight: float) -> Arena:
        """The weighted mean of what was added; the next `add` starts anew. Segments that nothing was added to mean nothing."""
        for segment, weight in self._weights.items():
            total = self.arena.flat[segment]
            if total.is_floating_point():
                total.mul_((weight if total.dtype in HALF else 1.0 / self._down) / total_weight)
        for segment, constant in self._constants.items():
            constant.put_into(self.arena.flat[segment])
        self.empty()
        return self.arena
