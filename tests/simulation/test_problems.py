"""Analytic problems: exact answers, and runs that equal the textbook's."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

import plesio as ps
from plesio.cluster import Cluster, Constant, Exponential, Group, LogNormal, Ranked
from plesio.errors import ConfigurationError
from plesio.strategy import Strategy
from problems import Logistic, Problem, Quadratic, run, tune
from support.runs import by_name

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "quadratic": lambda: Quadratic(d=30, noise=0.1),
    "logistic": lambda: Logistic(samples=200, d=6, batch=2),
}
STRATEGIES = [
    ps.sync_sgd(),
    ps.first_of(3),
    ps.async_sgd(),
    ps.async_sgd("plain", "delay_adaptive"),
    ps.bounded_staleness(2),
    ps.buffered(3, weigh="polynomial"),
    ps.rennala(3),
    ps.ringmaster(6),
    ps.local_sgd(4),
    ps.hogwild(),
]
JITTER = Cluster((Group(8, LogNormal(1.0, 0.3)),))


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_solution_is_the_minimum(name: str) -> None:
    problem, rng = PROBLEMS[name](), np.random.default_rng(0)
    solution = problem.solution()
    assert abs(float(problem.loss(solution))) < 1e-12
    for _ in range(20):
        assert problem.loss(solution + rng.standard_normal(solution.shape) * 0.1) > 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_stochastic_gradients_are_unbiased(name: str) -> None:
    problem, rng = PROBLEMS[name](), np.random.default_rng(1)
    at = rng.standard_normal(problem.start().shape) * 0.3
    mean = problem.gradient(at, rng, draws=1_000_000.0)
    for k, row in enumerate(np.eye(len(at))):
        slope = float(problem.loss(at + 1e-5 * row) - problem.loss(at - 1e-5 * row)) / 2e-5
        assert mean[k] == pytest.approx(slope, abs=5e-3)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_variance_falls_with_the_number_of_draws(name: str) -> None:
    problem, rng = PROBLEMS[name](), np.random.default_rng(2)
    at = problem.start() + 0.1

    def variance(draws: float) -> float:
        return float(np.var([problem.gradient(at, rng, draws) for _ in range(4000)], axis=0).sum())

    assert variance(1.0) / variance(16.0) == pytest.approx(16.0, rel=0.1)


def test_single_precision_gives_the_same_losses() -> None:
    exact, single = (
        run(Quadratic(d=50, noise=0.0, single=single), ps.sync_sgd(), JITTER, lr=1.0, contributions=800)
        for single in (False, True)
    )
    assert exact.times_s == single.times_s
    np.testing.assert_allclose(exact.losses, single.losses, rtol=1e-4)


# Against the textbook


def descent(problem: Problem, lr: float, steps: int, rng: np.random.Generator) -> float:
    at = problem.start()[None, :]
    for _ in range(steps):
        at = at - lr * problem.gradient(at, rng)
    return float(problem.loss(at)[0])


@pytest.mark.parametrize(
    "strategy", [ps.sync_sgd(), ps.async_sgd(), ps.rennala(1), ps.ringmaster(1), ps.local_sgd(1)], ids=str
)
def test_one_worker_is_plain_sgd_bit_for_bit(strategy: Strategy) -> None:
    alone = Cluster((Group(1, Exponential(1.0)),))
    result = run(Quadratic(d=30, noise=0.1), strategy, alone, lr=0.5, contributions=100, seed=7)
    assert result.losses[-1] == descent(Quadratic(d=30, noise=0.1), 0.5, 100, np.random.default_rng([7, 1]))


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.first_of(8), ps.local_sgd(1)], ids=by_name)
def test_rounds_without_noise_are_gradient_descent(strategy: Strategy) -> None:
    problem = Quadratic(d=30, noise=0.0)
    result = run(problem, strategy, JITTER, lr=1.0, contributions=8 * 50)
    assert result.losses[-1] == pytest.approx(descent(problem, 1.0, 50, np.random.default_rng(0)), rel=1e-12)


def test_equal_async_workers_are_descent_with_a_fixed_delay() -> None:
    """x_{t+1} = x_t - lr/N grad(x_{t-N+1}), after all computed at the start."""
    problem, workers, rng = Quadratic(d=30, noise=0.0), 4, np.random.default_rng(0)
    path = [problem.start()] * workers
    for _ in range(80):
        path.append(path[-1] - 0.25 * problem.gradient(path[-workers], rng))
    turns = Cluster(tuple(Group(1, Constant(1.0)) for _ in range(workers)))
    result = run(problem, ps.async_sgd(), turns, lr=1.0, contributions=80)
    assert result.losses[-1] == pytest.approx(float(problem.loss(path[-1])), rel=1e-12)


def test_a_round_has_the_noise_of_a_mean_gradient() -> None:
    """One step from the solution: its loss is that of a mean of 64 noisy gradients."""

    class AtSolution(Quadratic):
        def start(self) -> np.ndarray:
            return self.solution()

    many, problem = Cluster((Group(64, Constant(1.0)),)), AtSolution(d=200, noise=0.1)
    moved = [run(problem, ps.sync_sgd(), many, lr=1.0, contributions=64, seed=seed).losses[-1] for seed in range(20)]
    assert np.mean(moved) == pytest.approx(200 * 0.1**2 / 64 / 4, rel=0.1)  # E x'Ax / 2, A has 1/2 on its diagonal


# Runs


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=by_name)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_strategy_lowers_the_loss(name: str, strategy: Strategy) -> None:
    result = run(PROBLEMS[name](), strategy, JITTER, lr=0.5, contributions=3000, seed=1)
    assert result.ended == "3000 contributions were up"
    assert result.losses[-1] < 0.3 * result.losses[0]
    assert len(result.losses) == len(result.times_s) > 20
    assert list(result.times_s) == sorted(result.times_s)


def test_a_seed_gives_the_same_run_byte_for_byte() -> None:
    def once(seed: int) -> bytes:
        return msgspec.json.encode(run(Quadratic(d=30), ps.ringmaster(3), JITTER, lr=0.5, contributions=500, seed=seed))

    assert once(0) == once(0)
    assert once(0) != once(1)


def test_tuning_matches_single_runs_of_each_step_size() -> None:
    problem, lrs = Quadratic(d=30, noise=0.02), (0.05, 0.4, 3.0, 50.0)
    alone = [run(problem, ps.async_sgd(), JITTER, lr=lr, contributions=600) for lr in lrs]
    best = min((one for one in alone if one.ended != "diverged"), key=lambda one: one.losses[-1])
    tuned = tune(problem, ps.async_sgd(), JITTER, lrs=lrs, contributions=600)
    assert tuned.lr == best.lr
    np.testing.assert_allclose(tuned.losses, best.losses, rtol=1e-9)


def test_a_run_ends_at_its_loss_or_when_it_diverges() -> None:
    result = run(Quadratic(d=30), ps.sync_sgd(), JITTER, lr=1.0, contributions=4000, until_loss=0.02)
    assert result.ended == "a loss of 0.02 was reached"
    assert result.time_to(0.02) == result.times_s[-1]
    assert result.time_to(0.01) is None
    assert run(Quadratic(d=30), ps.sync_sgd(), JITTER, lr=9.0, contributions=10**6).ended == "diverged"
    assert (
        run(Quadratic(d=30), ps.sync_sgd(), JITTER, lr=1.0, contributions=10**6, seconds=5.0).ended
        == "5 seconds were up"
    )


def test_a_run_may_use_the_first_workers_only() -> None:
    ranked = Cluster((Group(100, Ranked(1.0)),))
    result = run(Quadratic(d=30), ps.sync_sgd(), ranked, workers=3, lr=1.0, contributions=30)
    assert result.times_s[-1] == pytest.approx(30.0)
    assert len(result.final.workers) == 3


def of_nine(strategy: Strategy | None = None, lr: float = 1.0, contributions: int = 9) -> object:
    return run(Quadratic(d=9), strategy or ps.sync_sgd(), JITTER, lr=lr, contributions=contributions)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Quadratic(d=2), "d=2"),
        (lambda: Quadratic(noise=-1.0), "noise=-1.0"),
        (lambda: Logistic(l2=0.0), "l2=0.0"),
        (lambda: Logistic(batch=0), "batch=0"),
        (lambda: of_nine(lr=math.inf), "lr=inf"),
        (lambda: of_nine(contributions=0), "contributions=0"),
        (lambda: of_nine(ps.async_sgd("gap_aware")), "gap-aware is not modelled"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()
