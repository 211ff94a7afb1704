"""Problems with known answers, for studying strategies in virtual time: no model, no data set, plain SGD.

    result = run(Quadratic(d=100, noise=0.01), ps.rennala(4), Cluster.preset("heavy-tail", 100), lr=0.5, contributions=10_000)
    result.time_to(0.01)

The gradient of a contribution is computed only when it is folded, from the parameters its worker had read. What is
discarded costs nothing then, and the mean of k gradients at the same point is one gradient with the noise of the mean.

Who comes when does not depend on the step size. So `tune` carries a row of parameters for each step size through one
simulation, all under the same noise: a whole grid for little more than one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from plesio.cluster import Cluster
from plesio.core.events import Fold
from plesio.engine.messages import Final
from plesio.engine.virtual import Limits, VirtualRun
from plesio.engine.virtual_workers import timed_workers
from plesio.errors import ConfigurationError
from plesio.rules import Parameters, Plain, WorkerMomentum
from plesio.strategy import Strategy

Vector = NDArray[np.floating[Any]]
RECORDS = 400
"""How often a run measures the loss."""
DIVERGED = 1e3
"""A loss so many times the first one, and 1 more, ends the run."""


class Problem(Protocol):
    """A function to minimise by noisy gradients. `at` is a matrix: a row for each step size that is tried."""

    def start(self) -> Vector:
        """Where everybody begins: one row."""
        ...

    def gradient(self, at: Vector, rng: np.random.Generator, draws: float = 1.0) -> Vector:
        """The mean of `draws` independent stochastic gradients at each row, the same noise for all rows."""
        ...

    def loss(self, at: Vector) -> Vector:
        """How far the function's value at each row is above its minimum."""
        ...

    def solution(self) -> Vector:
        """Where the minimum is."""
        ...


class Quadratic:
    """f(x) = x'Ax / 2 - b'x with A = tridiag(-1, 2, -1) / 4 and b = (-1, 0, ..., 0) / 4: Nesterov's hard case.

    A stochastic gradient is the gradient plus N(0, noise^2) in each coordinate. The largest eigenvalue of A is below 1.
    `single` computes in float32: twice as fast, and exact enough for losses above 1e-6.
    Used by Tyurin and Richtarik 2023 (Rennala), arXiv 2305.12387, and Maranjyan et al. 2025 (Ringmaster), arXiv 2501.16168.

    >>> problem = Quadratic(d=3, noise=0.0)
    >>> problem.solution()
    array([-0.75, -0.5 , -0.25])
    >>> float(problem.loss(problem.start())), float(problem.loss(problem.solution()))
    (0.09375, 0.0)
    """

    def __init__(self, d: int = 1729, noise: float = 0.01, *, single: bool = False) -> None:
        if not isinstance(d, int) or d < 3:
            raise ConfigurationError(f"Quadratic(d={d!r}): d must be a whole number of at least 3")
        if not noise >= 0:
            raise ConfigurationError(f"Quadratic(noise={noise!r}): noise must be a number of at least 0")
        self.d = d
        self.noise = noise
        self._dtype: type[np.float32] | type[np.float64] = np.float32 if single else np.float64
        self._minimum = -d / (8 * (d + 1))

    def start(self) -> Vector:
        """The origin."""
        return np.zeros(self.d, self._dtype)

    def gradient(self, at: Vector, rng: np.random.Generator, draws: float = 1.0) -> Vector:
        """Ax - b, with the noise of the mean of `draws` gradients."""
        gradient = self._times(at)
        gradient[..., 0] += 0.25
        if self.noise:
            gradient += rng.standard_normal(self.d, self._dtype) * (self.noise / math.sqrt(draws))
        return gradient

    def loss(self, at: Vector) -> Vector:
        """f(at) - min f."""
        loss: Vector = (at * self._times(at)).sum(axis=-1) / 2 + at[..., 0] / 4 - self._minimum
        return loss

    def solution(self) -> Vector:
        """x_i = i / (d + 1) - 1, i from 1."""
        return np.arange(1, self.d + 1) / (self.d + 1) - 1.0

    def _times(self, x: Vector) -> Vector:
        product = x + x
        product[..., 1:] -= x[..., :-1]
        product[..., :-1] -= x[..., 1:]
        product *= 0.25
        return product


class Logistic:
    """Logistic regression with an l2 term on data drawn from a planted model; gradients are of random mini-batches.

    f(w) = mean_i log(1 + exp(-y_i w'x_i)) + l2 |w|^2 / 2.

    >>> problem = Logistic(samples=100, d=5, seed=1)
    >>> bool(problem.loss(problem.start()) > 0.1), float(problem.loss(problem.solution()))
    (True, 0.0)
    """

    def __init__(self, samples: int = 1000, d: int = 20, *, batch: int = 1, l2: float = 0.01, seed: int = 0) -> None:
        for name, value in (("samples", samples), ("d", d), ("batch", batch)):
            if not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Logistic({name}={value!r}): {name} must be a whole number of at least 1")
        if not l2 > 0:
            raise ConfigurationError(f"Logistic(l2={l2!r}): l2 must be a number above 0, or there may be no minimum")
        rng = np.random.default_rng(seed)
        inputs = rng.standard_normal((samples, d))
        noisy = inputs @ rng.standard_normal(d) + rng.logistic(size=samples)
        self._signed = inputs * np.where(noisy > 0, 1.0, -1.0)[:, None]  # y_i x_i
        self._batch = batch
        self._l2 = l2
        self._solution = self._newton()
        self._minimum = self._value(self._solution)

    def start(self) -> Vector:
        """The origin."""
        return np.zeros(self._signed.shape[1])

    def gradient(self, at: Vector, rng: np.random.Generator, draws: float = 1.0) -> Vector:
        """Of `draws` mini-batches, drawn with replacement."""
        rows = self._signed[rng.integers(len(self._signed), size=self._batch * max(1, round(draws)))]
        return self._slope(rows, at)

    def loss(self, at: Vector) -> Vector:
        """f(at) - min f."""
        return self._value(at) - self._minimum

    def solution(self) -> Vector:
        """The minimum, by Newton's method."""
        return self._solution.copy()

    def _value(self, at: Vector) -> Vector:
        value: Vector = np.logaddexp(0.0, -at @ self._signed.T).mean(axis=-1) + self._l2 * (at * at).sum(axis=-1) / 2
        return value

    def _slope(self, rows: Vector, at: Vector) -> Vector:
        wrong = 1.0 / (1.0 + np.exp(at @ rows.T))
        slope: Vector = self._l2 * at - wrong @ rows / len(rows)
        return slope

    def _newton(self) -> Vector:
        at, identity = self.start(), np.eye(self._signed.shape[1])
        for _ in range(100):
            slope = self._slope(self._signed, at)
            if np.abs(slope).max() < 1e-12:
                break
            wrong = 1.0 / (1.0 + np.exp(self._signed @ at))
            curvature = (self._signed.T * (wrong * (1 - wrong))) @ self._signed / len(self._signed)
            at = at - np.linalg.solve(curvature + self._l2 * identity, slope)
        return at


class Analytic:
    """The folder for a problem. `at` is replaced by every fold and never written to: whoever reads it keeps it.

    Args:
        problem: what is minimised.
        strategy: says whether gradients or parameters are sent.
        lrs: the step sizes that the strategy scales; `at` has a row for each.
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
        if not isinstance(strategy.correct, (Plain, WorkerMomentum)):  # without momentum the latter is plain
            raise ConfigurationError(
                f"{strategy.name}: correct={strategy.correct} is not modelled; analytic problems use plain SGD"
            )
        self._lr = np.array(lrs, dtype=float)[:, None]
        self.at = np.tile(problem.start(), (len(lrs), 1))
        self._problem = problem
        self._averages = isinstance(strategy.send, Parameters)
        self._rng = rng
        self._read = [self.at] * workers
        self._held: list[tuple[Vector, float]] = []
        self._folded = folded

    def publish(self, reader: int) -> int:
        """`reader` computes from the parameters as they are."""
        self._read[reader] = self.at
        return 0

    def hold(self, worker: int, weight: float) -> None:
        """Remember what was read: the worker goes on before the fold."""
        self._held.append((self._read[worker], weight))

    def fold(self, fold: Fold) -> None:
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
        return self._mean([(at, weight / fold.total_weight) for at, weight in held])

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

    def forget(self, worker: int) -> None:
        """What it sent may still be folded."""

    def set_groups(self, groups: bytes) -> None:
        """The step sizes are given."""


class Result(msgspec.Struct, frozen=True):
    """How a run went. `times_s` and `losses` go together; losses are above the minimum.

    `ended`: why it ended; `final`: what it cost, as for a real run.
    """

    strategy: str
    lr: float
    times_s: tuple[float, ...]
    losses: tuple[float, ...]
    ended: str
    final: Final

    def time_to(self, loss: float) -> float | None:
        """Virtual seconds until the loss was first measured at `loss` or below."""
        return next((time_s for time_s, got in zip(self.times_s, self.losses, strict=True) if got <= loss), None)


def run(
    problem: Problem,
    strategy: Strategy,
    cluster: Cluster,
    workers: int | None = None,
    *,
    lr: float,
    contributions: int,
    seconds: float = math.inf,
    until_loss: float = -math.inf,
    seed: int = 0,
) -> Result:
    """Minimise `problem` on a simulated cluster, by plain SGD.

    Args:
        problem: `Quadratic(...)`, `Logistic(...)`, or your own `Problem`.
        strategy: how tightly workers keep step.
        cluster: how fast they are.
        workers: the first so many of the cluster only.
        lr: the step size, scaled by the strategy as a user's learning rate is.
        contributions: the run ends when so many gradients have come,
        seconds: or after so many virtual seconds,
        until_loss: or when the loss is measured this low.
        seed: of step times and noise.

    Raises:
        ConfigurationError: a number that cannot be, or a correction that is not modelled.

    >>> from plesio.recipes import async_sgd
    >>> result = run(Quadratic(d=10), async_sgd("plain"), Cluster.preset("uniform", 4), lr=1.0, contributions=2000)
    >>> result.losses[-1] < result.losses[0] / 4
    True
    """
    return tune(
        problem,
        strategy,
        cluster,
        workers,
        lrs=(lr,),
        contributions=contributions,
        seconds=seconds,
        until_loss=until_loss,
        seed=seed,
    )


def tune(
    problem: Problem,
    strategy: Strategy,
    cluster: Cluster,
    workers: int | None = None,
    *,
    lrs: Sequence[float],
    contributions: int,
    seconds: float = math.inf,
    until_loss: float = -math.inf,
    seed: int = 0,
) -> Result:
    """`run` with the best of several step sizes: the first to reach `until_loss`, else the lowest loss at the end.

    Raises:
        ConfigurationError: as `run`.

    >>> from plesio.recipes import sync_sgd
    >>> tune(Quadratic(d=10), sync_sgd(), Cluster.preset("uniform", 4), lrs=(0.1, 1.0, 100.0), contributions=400).lr
    1.0
    """
    for name, value in (*(("lr", lr) for lr in lrs), ("contributions", contributions)):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name}={value!r}: {name} must be a finite number above 0")
    if workers is not None and workers != cluster.workers:
        cluster = cluster.first(workers)
    record = _Record(problem, max(1, contributions // RECORDS), until_loss)
    folder = Analytic(problem, strategy, lrs, cluster.workers, np.random.default_rng([seed, 1]), record.folded)
    simulated = VirtualRun(
        strategy,
        cluster,
        timed_workers(cluster, strategy.every, seed),
        folder,
        silence_s=math.inf,  # a step may take as long as it likes
        limits=Limits(contributions=contributions, seconds=seconds),
        timeline=False,
    )
    record.begin(simulated, folder)
    with np.errstate(over="ignore", invalid="ignore"):  # a step size that is too large is found by its loss
        final = simulated.run()
        record.finish()
    best = record.best()
    losses = tuple(float(losses[best]) for losses in record.losses)
    return Result(strategy.name, lrs[best], tuple(record.times_s), losses, simulated.ended, final)


class _Record:
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
        self.losses.append(losses)
        if (losses <= self._until_loss).any():
            self._run.end(f"a loss of {self._until_loss:g} was reached")
        elif not (losses <= DIVERGED * self.losses[0] + 1.0).any():
            self._run.end("diverged")

    def best(self) -> int:
        """The step size with the lowest loss at the end."""
        last = self.losses[-1]
        return int(np.where(np.isfinite(last), last, math.inf).argmin())
