"""Corrections of a stale gradient, applied before the fold: in its slot, unless that is to stay as it is.

`current` is the version it is folded into, `backup` the one it was computed from (what its worker was sent).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from plesio.strategy.answers import DelayCompensated, GapAware
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.carrying import Part
from plesio.tensors.operands import CHUNK, Operand, pieces, quiet


class Correction(Part):
    """Changes a gradient in place, and learns from the step made with it."""

    like = "correct"

    def correct(self, gradient: Arena, current: Arena, backup: Arena, absent: int = 0) -> None:
        """Change `gradient`, but for segments that are `absent`."""
        raise NotImplementedError

    def stepped(self, before: Arena, after: Arena, absent: int = 0) -> None:
        """Learn from the step that was made with it; what was `absent` did not move."""


def _chunks(absent: int, *arenas: Arena) -> list[tuple[torch.Tensor, ...]]:
    """Aligned pieces of the trained segments of several arenas, but for those that are `absent`."""
    lacking = arenas[0].layout.lacking(absent)
    flats = enumerate(zip(*(arena.of_kind(Kind.TRAINED) for arena in arenas), strict=True))
    return [piece for place, together in flats if place not in lacking for piece in pieces(*together)]


SMALLEST_ROOM = 1e-30
"""Smallest mean gap or step to divide by: without movement the mean fades below what float32 holds."""
LANES, STRETCH = 16, 1 << 16
"""Elements whose gaps are summed together."""


def closeness(room: float) -> float:
    """What gaps are multiplied by, where `room` halves a gradient; 0 where it is not damped."""
    return 1.0 / room if room > SMALLEST_ROOM else 0.0


def distance(one: Operand, other: Operand) -> Operand:
    """|one - other|, element by element; a new tensor or array.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]))
    tensor([2., 1.])
    """
    gap = one - other
    return np.abs(gap, out=gap) if isinstance(gap, np.ndarray) else gap.abs_()


Sums = Callable[[Operand], list[float]]


@quiet
def _shrink(slope: Operand, now: Operand, then: Operand, closeness: float, sums_of: Sums, out: Operand) -> list[float]:
    """out = slope / (1 + closeness * |now - then|). Returns the sums of the gaps |now - then|."""
    sums: list[float] = []
    divide: Any = np.divide if isinstance(slope, np.ndarray) else torch.div
    whole = (slope, now, then, out)
    for g, new, old, shrunk in (whole,) if len(slope) <= CHUNK else pieces(*whole):
        gap = distance(new, old)
        sums += sums_of(gap)
        if closeness:
            gap *= closeness
            gap += 1.0
            divide(g, gap, out=shrunk)
        elif out is not slope:
            shrunk[:] = g
    return sums


def plain_sums(gap: Operand) -> list[float]:
    """The sum, in whatever order is quickest."""
    return [float(gap.sum())]


def compiled_sums(gap: Operand) -> list[float]:
    """The sum of each stretch, in the order that compiled kernels take: sixteen columns, then in halves.

    >>> compiled_sums(torch.ones(STRETCH + 2))
    [65536.0, 2.0]
    """
    numbers = np.asarray(gap)
    return [_sum(numbers[start : start + STRETCH]) for start in range(0, len(numbers), STRETCH)]


def _sum(numbers: np.ndarray[Any, Any]) -> float:
    if len(numbers) % LANES:  # as may be in float64
        numbers = np.append(numbers, np.zeros(-len(numbers) % LANES, numbers.dtype))
    sums = np.add.accumulate(numbers.reshape(-1, LANES), axis=0)[-1]
    for half in (8, 4, 2, 1):
        sums = sums[:half] + sums[half:]
    return float(sums[0])


class DelayCompensation(Correction):
    """g += lam g*g*(w_t - w_{t-tau}); adaptive: lam = lam0 / sqrt(EMA(g*g) + eps). Zheng et al. 2017."""

    def __init__(self, rule: DelayCompensated, mean_square: Arena | None) -> None:
        self._rule = rule
        self._mean_square = mean_square

    def correct(self, gradient: Arena, current: Arena, backup: Arena, absent: int = 0) -> None:
        """Add the first-order Taylor term, with g*g in place of the Hessian's diagonal."""
        rule = self._rule
        if self._mean_square is None:
            for g, now, then in _chunks(absent, gradient, current, backup):
                g.add_((g * g).mul_(now - then), alpha=rule.lam)
            return
        for g, now, then, mean_square in _chunks(absent, gradient, current, backup, self._mean_square):
            square = g * g
            mean_square.mul_(rule.decay).add_(square, alpha=1 - rule.decay)
            g.add_(square.mul_(now - then).div_((mean_square + rule.eps).sqrt_()), alpha=rule.lam)


class GapAwareness(Correction):
    """g /= 1 + |w_t - w_{t-tau}| / C, C the running mean of a step's size, one number a segment. Barkai et al. 2020."""

    def __init__(self, rule: GapAware) -> None:
        self._decay = rule.decay
        self._mean_step: list[float] = []  # by segment
        self._steps: list[int] = []  # that it is the mean of

    def correct(self, gradient: Arena, current: Arena, backup: Arena, absent: int = 0) -> None:
        """Shrink each element by how far its parameter moved meanwhile, measured in mean steps."""
        flats = zip(gradient.trained, current.trained, backup.trained, strict=True)
        lacking = gradient.layout.lacking(absent)
        for position, (slope, now, then) in enumerate(flats if self._steps else ()):
            if position in lacking or not self._steps[position]:
                continue
            unbiased = 1.0 - self._decay ** self._steps[position]
            _shrink(slope, now, then, closeness(self._mean_step[position] / unbiased), plain_sums, slope)

    @quiet
    def stepped(self, before: Arena, after: Arena, absent: int = 0) -> None:
        elements, lacking = before.layout.trained_elements, before.layout.lacking(absent)
        self._mean_step, self._steps = self._mean_step or [0.0] * len(elements), self._steps or [0] * len(elements)
        for position, (old, new) in enumerate(zip(before.trained, after.trained, strict=True)):
            if position in lacking:
                continue
            self._steps[position] += 1
            mean = sum(float(distance(b, a).sum()) for a, b in pieces(old, new)) / max(1, elements[position])
            self._mean_step[position] = self._decay * self._mean_step[position] + (1 - self._decay) * mean

    def numbers(self) -> dict[str, Any]:
        return {"mean_step": self._mean_step, "steps": self._steps}

    def take(self, numbers: dict[str, Any]) -> None:
        self._mean_step, self._steps = list(numbers["mean_step"]), list(numbers["steps"])


GAP_DECAY = 0.99
"""Decay of the running mean gap: it covers about a hundred folds."""

GAP_ROOM = 4.0
"""Mean gaps that halve an element: ordinary gaps cost little, very large ones a lot (see docs/convergence.md)."""


class GapDamping(Correction):
    """g /= 1 + |w_t - w'| / (4 C), w' where g was computed, C the running mean of the gap |w_t - w'|, one a segment.

    Gap-awareness (Barkai et al. 2020), with the gap measured against the mean gap instead of the mean step. Elements with
    a usual gap keep about their gradient. Those that moved much further lose most of it: there the look-ahead was wrong,
    and they are the first to diverge. A gap of 0, as with one worker, changes no bit.
    """

    def __init__(self, compiled: bool = False) -> None:
        """`compiled`: gaps are summed in the order that kernels take."""
        self._sums_of = compiled_sums if compiled else plain_sums
        self._sum: list[float] = []
        self._weight: list[float] = []

    def correct(
        self, gradient: Arena, current: Arena, backup: Arena, absent: int = 0, into: Arena | None = None
    ) -> None:
        """Shrink each element by its gap, measured in mean gaps, in place or `into` another arena; but for segments that are
        `absent`."""
        flats = zip(gradient.trained, current.trained, backup.trained, (into or gradient).trained, strict=True)
        elements = gradient.layout.trained_elements
        lacking = gradient.layout.lacking(absent) if absent else ()
        for position, (slope, now, then, out) in enumerate(flats):
            if position in lacking:
                continue
            gaps = _shrink(slope, now, then, self.closeness(position), self._sums_of, out)
            self.learn(position, gaps, elements[position])

    def closeness(self, position: int) -> float:
        """What the gaps of a trained segment are multiplied by."""
        while position >= len(self._sum):
            self._sum.append(0.0)
            self._weight.append(0.0)
        return closeness(GAP_ROOM * self._sum[position] / self._weight[position]) if self._weight[position] else 0.0

    def learn(self, position: int, sums: Sequence[float], elements: int) -> None:
        """These were the gaps of a segment."""
        gap = sum(map(float, sums)) / max(1, elements)
        if 0.0 < gap < math.inf:
            self._sum[position] = GAP_DECAY * self._sum[position] + (1 - GAP_DECAY) * gap
            self._weight[position] = GAP_DECAY * self._weight[position] + (1 - GAP_DECAY)

    def numbers(self) -> dict[str, Any]:
        return {"sum": self._sum, "weight": self._weight}

    def take(self, numbers: dict[str, Any]) -> None:
        self._sum, self._weight = list(numbers["sum"]), list(numbers["weight"])
