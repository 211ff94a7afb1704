"""The arithmetic of a simulated run on a problem with a formula: a folder, and a record of the loss.

The gradient of a contribution is computed only when it is folded, from the parameters its worker had read. What is
discarded costs nothing then, and the mean of k gradients at the same point is one gradient with the noise of the mean.
Parameters have a row for each step size that is tried: who comes when does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plesio.core.events import Effect, Fold, Hold, Show
from plesio.errors import ConfigurationError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.memory.port import Memory
from plesio.strategy import Strategy
from plesio.strategy.answers import Plain, WorkerMomentum

Vector = NDArray[np.floating[Any]]

DIVERGED = 1e3
"""A loss so many times the first one, and 1 more, ends the run."""


class Problem(Protocol):
    """A function to minimise by noisy gradients. `at` is a vector, or a matrix: a row for each step size that is tried."""

    def start(self) -> Vector:
        """Where everybody begins: one row."""
        ...

    def gradient(self, at: Vector, rng: np.random.Generator, draws: float = 1.0) -> Vector:
        """The mean of `draws` independent stochastic gradients at each row, the same noise for all."""
        ...

    def loss(self, at: Vector) -> Vector:
        """How far the function's value at each row is above its minimum."""
        ...

    def solution(self) -> Vector:
        """Where the minimum is."""
        ...


class Analytic(Memory):
    """The memory for a problem. `at` is replaced by every fold and never written to: whoever reads it keeps it.

    Args:
        problem: what is minimised.
        strategy: says whether gradients or parameters are sent.
        lrs: the step sizes that the strategy scales; if there are several `at` has a row for each.
        workers: how many read.
        rng: of the gradients' noise.
        folded: called after each fold.
    """

    def __init__(
        self,
        problem: Problem,
        strategy: Strategy,
        lrs: Sequence[float],
        workers: int,
        rng: np.random.Generator,
        folded: Callable[[Fold], None],
    ) -> None:
        if strategy.correct not in (Plain(), WorkerMomentum()):  # without momentum the latter is plain
            raise ConfigurationError(
                f"{strategy.name}: correct={strategy.correct} is not modelled; analytic problems use plain SGD"
            )
        self.at = start = problem.start()
        self._lr: Vector | float = lrs[0]  # a plain row for one step size: half the time of a matrix of one row
        if len(lrs) > 1:
            self.at = np.tile(start, (len(lrs), 1))
            self._lr = np.array(lrs, dtype=start.dtype)[:, None]
        self._problem = problem
        self._averages = strategy.send.stepped
        self._rng = rng
        self._read = [self.at] * workers
        self._held: list[tuple[Vector, float]] = []
        self._folded = folded

    def do(self, effect: Effect) -> None:
        """A worker computes from the parameters as they were when it was shown them, also where it goes on before the fold."""
        if isinstance(effect, Show):
            self._read[effect.worker] = self.at
        elif isinstance(effect, Hold):
            self._held.append((self._read[effect.worker], effect.weight))
        elif isinstance(effect, Fold):
            self._fold(effect)

    def _fold(self, fold: Fold) -> None:
        """The next version."""
        if self._averages:
            self.at = np.sum(
                [one.share * self._local(self._read[one.worker], one.steps) for one in fold.members], axis=0
            )
        else:
            move = self._gathered(fold)
            move *= self._lr * fold.scale
            self.at = self.at - move
        self._folded(fold)

    def _gathered(self, fold: Fold) -> Vector:
        """The mean gradient: of one worker, of those that were held, or of those that wait."""
        if len(fold.members) == 1 and not fold.held:
            return self._problem.gradient(self._read[fold.members[0].worker], self._rng)
        if not fold.held:
            return self._mean([(self._read[one.worker], one.share) for one in fold.members])
        held, self._held = self._held, []
        return self._mean([(at, weight / fold.held) for at, weight in held])

    def _mean(self, read: list[tuple[Vector, float]]) -> Vector:
        """The weighted mean of gradients, one for each point however many were computed there."""
        points: dict[int, tuple[Vector, float, float]] = {}
        for at, share in read:
            _, total, squares = points.get(id(at), (at, 0.0, 0.0))
            points[id(at)] = (at, total + share, squares + share * share)
        mean = np.zeros_like(self.at)
        for at, total, squares in points.values():
            mean += total * self._problem.gradient(at, self._rng, draws=total * total / squares)
        return mean

    def _local(self, at: Vector, steps: int) -> Vector:
        for _ in range(steps):
            at = at - self._lr * self._problem.gradient(at, self._rng)
        return at


class Record:
    """Measures the loss now and then, and ends the run when there is nothing more to see."""

    def __init__(self, problem: Problem, every: int, until_loss: float) -> None:
        self.times_s: list[float] = []
        self.losses: list[Vector] = []
        self._problem = problem
        self._every = every
        self._until_loss = until_loss
        self._since = 0

    def begin(self, run: VirtualRun, folder: Analytic) -> None:
        """The first measurement."""
        self._run, self._folder = run, folder
        self.measure()

    def folded(self, fold: Fold) -> None:
        """A fold was made."""
        self._since += len(fold.members)
        if self._since >= self._every:
            self._since = 0
            self.measure()

    def finish(self) -> None:
        """The last measurement, unless it was just made."""
        if self._since:
            self.measure()

    def measure(self) -> None:
        """The loss of every step size, now."""
        losses = self._problem.loss(self._folder.at)
        self.times_s.append(self._run.clock.now_s)
        self.losses.append(np.atleast_1d(losses))
        if (losses <= self._until_loss).any():
            self._run.end(f"a loss of {self._until_loss:g} was reached")
        elif not (losses <= DIVERGED * self.losses[0] + 1.0).any():
            self._run.end("diverged")

    def best(self) -> int:
        """The step size with the lowest loss at the end."""
        last = self.losses[-1]
        return int(np.where(np.isfinite(last), last, math.inf).argmin())
