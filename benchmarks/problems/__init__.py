"""Problems with known answers, for studying strategies in virtual time: no model, no data set, plain SGD.

    result = run(Quadratic(d=100, noise=0.01), ps.rennala(4), Cluster.preset("heavy-tail", 100), lr=0.5, contributions=10_000)
    result.time_to(0.01)

Who comes when does not depend on the step size. So `tune` carries a row of parameters for each step size through one
simulation, all under the same noise: a whole grid for little more than one run.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from plesio.cluster import Cluster
from plesio.errors import ConfigurationError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.protocol.launcher import Final
from plesio.strategy import Strategy
from problems.analytic import Analytic, Problem, Record, Vector

RECORDS = 400
"""How often a run measures the loss."""
AT_ONCE = 32
"""Rows of noise drawn at a time."""


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
        self._stencil = np.array([-0.25, 0.5, -0.25], self._dtype)
        self._minus_b = np.zeros(d, self._dtype)
        self._minus_b[0] = 0.25
        self._source: np.random.Generator | None = None
        self._rows: list[Vector] = []

    def start(self) -> Vector:
        """The origin."""
        return np.zeros(self.d, self._dtype)

    def gradient(self, at: Vector, rng: np.random.Generator, draws: float = 1.0) -> Vector:
        """Ax - b, with the noise of the mean of `draws` gradients."""
        gradient = self._times(at)
        row = self._drawn(rng) if self.noise else self._minus_b
        gradient += row if draws == 1.0 else self._minus_b + (row - self._minus_b) * self._dtype(draws**-0.5)
        return gradient

    def _drawn(self, rng: np.random.Generator) -> Vector:
        """-b and the noise of one gradient; many are drawn at once, which gives the same numbers sooner."""
        if rng is not self._source or not self._rows:
            self._source = rng
            drawn = rng.standard_normal((AT_ONCE, self.d), self._dtype)
            drawn *= self.noise
            drawn += self._minus_b
            self._rows = list(drawn[::-1])
        return self._rows.pop()

    def loss(self, at: Vector) -> Vector:
        """f(at) - min f."""
        loss: Vector = (at * self._times(at)).sum(axis=-1) / 2 + at[..., 0] / 4 - self._minimum
        return loss

    def solution(self) -> Vector:
        """x_i = i / (d + 1) - 1, i from 1."""
        return np.arange(1, self.d + 1) / (self.d + 1) - 1.0

    def _times(self, x: Vector) -> Vector:
        if x.ndim == 1:  # one call in place of four
            folded: Vector = np.correlate(x, self._stencil, "same")  # type: ignore[call-overload]
            return folded
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

    >>> from plesio.strategy.recipes import async_sgd
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

    >>> from plesio.strategy.recipes import sync_sgd
    >>> tune(Quadratic(d=10), sync_sgd(), Cluster.preset("uniform", 4), lrs=(0.1, 1.0, 100.0), contributions=400).lr
    1.0
    """
    for name, value in (*(("lr", lr) for lr in lrs), ("contributions", contributions)):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name}={value!r}: {name} must be a finite number above 0")
    if not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"seed={seed!r}: a whole number of at least 0")
    if workers is not None and workers != cluster.workers:
        cluster = cluster.first(workers)
    record = Record(problem, max(1, contributions // RECORDS), until_loss)
    folder = Analytic(problem, strategy, lrs, cluster.workers, np.random.default_rng([seed, 1]), record.folded)
    with np.errstate(over="ignore", invalid="ignore"), _no_collection():  # what diverges is found by its loss
        simulated = VirtualRun(
            strategy,
            cluster,
            [TimedWorker(one, strategy) for one in cluster.timetables(seed)],
            folder,
            silence_s=math.inf,  # a step may take as long as it likes
            limits={"contributions": contributions, "seconds": seconds},
            timeline=False,
        )
        record.begin(simulated, folder)
        final = simulated.run()
        record.finish()
    best = record.best()
    losses = tuple(float(losses[best]) for losses in record.losses)
    return Result(strategy.name, lrs[best], tuple(record.times_s), losses, simulated.ended, final)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for reference cycles: a run makes none, and to look for them takes a third of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


__all__ = ["Logistic", "Problem", "Quadratic", "Result", "run", "tune"]
