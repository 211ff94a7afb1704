"""What happens when in an epoch: learning rate, decay, L1 penalty and clock of every turn, known before it begins.

Because all of these depend on how many rows came before and not on what the weights are, threads need not agree on
them while they run: each reads the entry of its turn. The learning rate is the schedule's at the first row of a
chunk, for all of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import CheckpointError
from plesio.sparse.linear.kernels import Model, Plan, truncate_all
from plesio.sparse.rates import Rate

LEAST_SCALE = 1e-6  # a smaller one is multiplied into the weights: v = w / scale must stay within float32
_ARRAYS = ("weights", "intercept", "paid", "lag", "total")
_NUMBERS = ("scale", "seen", "owed", "total_intercept", "averaged", "best_loss", "idle_epochs", "stopped")
_LEAST_SHRINK = 1e-3  # the decay of a row is cut here: a weight vector times zero has no scale


@dataclass(frozen=True, slots=True)
class Penalty:
    """The regulariser alpha·((1 − l1_ratio)·|w|²/2 + l1_ratio·|w|₁): its two factors."""

    l2: float
    l1: float

    @classmethod
    def named(cls, name: str | None, alpha: float, l1_ratio: float) -> Penalty:
        share = {"l2": 0.0, "l1": 1.0, "elasticnet": l1_ratio}.get(name or "")
        return cls(0.0, 0.0) if share is None else cls(alpha * (1 - share), alpha * share)


@dataclass(slots=True)
class Learner:
    """One linear function on its way: the weights are `scale` times `weights`."""

    weights: NDArray[np.float32]
    intercept: NDArray[np.float64]
    rate: Rate
    scale: float = 1.0
    seen: int = 0  # rows it has learnt from, in all epochs
    owed: float = 0.0  # the L1 penalty so far
    paid: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(0, np.float32)
    )  # by each weight; empty without L1
    lag: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(0, np.float32)
    )  # written late (see `Plan.clocks`)
    total: NDArray[np.float64] = field(
        default_factory=lambda: np.zeros(0)
    )  # of weights after each averaged row, if any
    total_intercept: float = 0.0
    averaged: int = 0
    best_loss: float = np.inf
    idle_epochs: int = 0
    stopped: bool = False
    finite: bool = True
    moved: bool = True  # whether anything here moved since replicas of it were last made equal to it

    @property
    def model(self) -> Model:
        return Model(self.weights, self.intercept, self.paid, self.lag)

    def fold(self) -> None:
        """Multiply the scale into the weights."""
        if self.scale != 1.0:
            self.weights *= np.float32(self.scale)
            self.scale, self.moved = 1.0, True

    def pay(self, scale: float, owed: float, clock: float) -> None:
        """At the end of a stretch: note its scale and clock, collect L1 from the weights no row touched."""
        self.scale = scale
        self.moved |= len(self.lag) + len(self.paid) > 0
        if len(self.lag):
            self.total += clock * self.weights.astype(np.float64) - self.lag
            self.lag[:] = 0
        if len(self.paid):
            self.owed = owed
            truncate_all(self.weights, scale, owed, self.paid)
        if scale <= LEAST_SCALE:
            self.fold()

    def result(self) -> tuple[NDArray[Any], float]:
        """The weights and the intercept: averages where averaging has begun."""
        if self.averaged:
            return self.total / self.averaged, self.total_intercept / self.averaged
        self.fold()
        return self.weights, float(self.intercept[0])

    def kept(self, k: int) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The arrays and the numbers of learner `k`, the scale not multiplied in: going on from them gives the same bits."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {f"{name}.{k}": getattr(self, name) for name in _ARRAYS}, {"lr": self.rate.lr} | numbers

    def restore(self, k: int, arrays: dict[str, NDArray[Any]], numbers: dict[str, Any]) -> None:
        for name in _ARRAYS:
            array, kept = getattr(self, name), arrays[f"{name}.{k}"]
            if array.shape != kept.shape:
                raise CheckpointError(f"the checkpoint has {name} of shape {kept.shape}, the model {array.shape}.")
            np.copyto(array, kept)
        for name in _NUMBERS:
            setattr(self, name, numbers[name])
        self.rate.lr = numbers["lr"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Turns first to end − 1, which one scale lasts for; and the scale, L1 penalty and clock at its end."""

    first: int
    end: int
    scale: float
    owed: float
    clock: float


def make_plan(
    order: NDArray[np.uint32],
    bounds: NDArray[np.int64],
    learner: Learner,
    penalty: Penalty,
    *,
    epoch: int,
    total: int,
    share: float = 1.0,
    average_from: int | None = None,
) -> tuple[Plan, list[Stretch]]:
    """The plan of one epoch of `learner`, and the stretches to do it in.

    Args:
        order: the chunks by turn.
        bounds: where the chunks begin and end.
        total: how many rows there will be in all epochs, for schedules that end.
        share: the part of the penalty each replica of the model takes: it sees that part of the rows.
        average_from: the number of rows after which weights are averaged; None for never.
    """
    sizes = np.diff(bounds)[order]
    before = learner.seen + _running(sizes)
    rates = np.array(learner.rate.over(epoch, before[:-1], total))
    shrinks = np.maximum(1 - rates * penalty.l2, _LEAST_SHRINK) ** share
    logs = _running(sizes * np.log(shrinks))
    owed = learner.owed + _running(sizes * rates * (penalty.l1 * share))
    scales, stretches = np.empty(len(sizes)), []
    clocks = np.full(len(sizes), -1.0)
    first, scale = 0, learner.scale
    while first < len(sizes):
        lasting = np.searchsorted(-logs[first + 1 :], np.log(scale / LEAST_SCALE) - logs[first], side="right")
        end = min(first + max(int(lasting), 1), len(sizes))
        inside = scale * np.exp(logs[first : end + 1] - logs[first])
        scales[first:end] = inside[:-1]
        scale, clock = float(inside[-1]), 0.0
        if average_from is not None:
            counted = before[first:end] >= average_from
            sums = np.cumsum(_sums_of_scales(inside[:-1], shrinks[first:end], counted * sizes[first:end]))
            clocks[first:end] = np.where(counted, np.concatenate([[0.0], sums[:-1]]), -1.0)
            clock = float(sums[-1])
        stretches.append(Stretch(first, end, scale, float(owed[end]), clock))
        first, scale = end, scale if scale > LEAST_SCALE else 1.0
    results = np.zeros((3, len(sizes)))
    return Plan(order, bounds, rates, scales, shrinks, owed[:-1], clocks, *results), stretches


def _running(steps: NDArray[Any]) -> NDArray[Any]:
    """Their sum before each of them, and after all."""
    sums = np.zeros(len(steps) + 1, steps.dtype)
    np.cumsum(steps, out=sums[1:])
    return sums


def _sums_of_scales(scales: NDArray[Any], shrinks: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """scale·(shrink + shrink² + ...) for each turn, one term for each row of it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        series = shrinks * -np.expm1(rows * np.log(shrinks)) / (1 - shrinks)
    return scales * np.where(shrinks == 1, rows, series)
