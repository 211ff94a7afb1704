"""Recipes with local steps against loops of plain PyTorch, written down from the papers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster
from plesio.cluster.machines import Group
from plesio.cluster.steps import Constant
from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import (
    AfterFold,
    Average,
    Blend,
    Delta,
    Each,
    Fresh,
    GapAware,
    Gradient,
    Outer,
    Parameters,
    Round,
    SharedMemory,
)  # fmt: skip
from plesio.tensors.outer_optimizer import DelayedNesterov
from support import loops
from support.long_forms import but_thorough

WORKERS, STEPS = 3, 14
STEADY = Cluster((Group(WORKERS, Constant(0.1)),))
"""Workers that finish together are heard in order."""
Weights = dict[str, torch.Tensor]
Fold = Callable[[Weights, list[Weights]], None]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def normed() -> nn.Module:
    """No bias before the batch norm: Adam would normalise the rounding noise that is its gradient."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(loops.FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, loops.CLASSES)
    )


def in_rounds(build: loops.Build, optimizers: loops.Optimizers, period: Callable[[int], int], fold: Fold) -> Weights:
    """Each of the workers takes its steps by itself, then `fold` moves the common weights; buffers are averaged."""
    inputs, labels = loops.data()
    models = [build() for _ in range(WORKERS)]
    steppers = [optimizers(one) for one in models]
    common = copy.deepcopy(models[0].state_dict())
    trained = {name for name, _ in models[0].named_parameters()}
    step = version = 0
    while step < STEPS:
        last = min(STEPS, step + period(version))
        for rank, (model, optimizer) in enumerate(zip(models, steppers, strict=True)):
            model.load_state_dict(common)
            for number in range(step, last):
                rows = loops.rows_of(number * WORKERS + rank, 8, len(inputs))
                loops.descend(optimizer, loops.loss_of(model, inputs[rows], labels[rows]))
        states = [one.state_dict() for one in models]
        for name, value in common.items():
            if name not in trained:
                every = torch.stack([one[name] for one in states])
                value.copy_(every.mean(0) if value.is_floating_point() else every.max())
        fold({name: common[name] for name in trained}, states)
        step, version = last, version + 1
    return common


def averaged(common: Weights, states: list[Weights]) -> None:
    for name, value in common.items():
        value.copy_(sum(one[name] for one in states) / len(states))


class Momentum:
    """An outer step with momentum, Nesterov's or plain."""

    def __init__(self, lr: float, momentum: float, nesterov: bool) -> None:
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.past: Weights = {}

    def __call__(self, common: Weights, states: list[Weights]) -> None:
        for name, value in common.items():
            moved = sum(value - one[name] for one in states) / len(states)
            past = self.past[name] = self.momentum * self.past.get(name, torch.zeros_like(value)) + moved
            value -= self.lr * (moved + self.momentum * past if self.nesterov else past)


def weights(strategy: Strategy, build: loops.Build, optimizers: loops.Optimizers, workers: int = WORKERS) -> Weights:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of few rounds
        train = partial(loops.follow, build=build, optimizers=optimizers, steps=STEPS)
        return ps.run(train, strategy, workers=workers, engine=ps.Simulated(STEADY.first(workers))).state_dict


def assert_near(got: Weights, wanted: Weights) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=2e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("optimizers", [loops.sgd, loops.momentum, adamw], ids=lambda one: one.__name__)
@pytest.mark.parametrize("build", [loops.mlp, normed], ids=lambda one: one.__name__)
@pytest.mark.parametrize("period", but_thorough([1, 4], {4}))
def test_local_sgd_is_the_loop_of_its_paper(optimizers: loops.Optimizers, build: loops.Build, period: int) -> None:
    wanted = in_rounds(build, optimizers, lambda version: period, averaged)
    assert_near(weights(ps.local_sgd(period), build, optimizers), wanted)


RULES: dict[str, tuple[Strategy, Callable[[int], int], Callable[[], Fold]]] = {
    "diloco": (ps.diloco(4, momentum=0.9), lambda version: 4, lambda: Momentum(0.7, 0.9, True)),
    "diloco without momentum": (ps.diloco(4, lr=1.0, momentum=0.0), lambda version: 4, lambda: averaged),
    "slowmo": (ps.slowmo(4, alpha=0.9), lambda version: 4, lambda: Momentum(0.9, 0.5, False)),
    "post_local_sgd": (ps.post_local_sgd(4, after=3), lambda version: 1 if version < 3 else 4, lambda: averaged),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("optimizers", [loops.momentum, adamw], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", RULES)
def test_a_recipe_is_the_loop_of_its_paper(name: str, optimizers: loops.Optimizers) -> None:
    strategy, period, fold = RULES[name]
    assert_near(weights(strategy, normed, optimizers), in_rounds(normed, optimizers, period, fold()))


def elastic(workers: int, alpha: float, period: int) -> Weights:
    inputs, labels = loops.data()
    models = [loops.mlp() for _ in range(workers)]
    steppers = [adamw(one) for one in models]
    centre = copy.deepcopy(models[0].state_dict())
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, steppers, strict=True)):
            rows = loops.rows_of(step * workers + rank, 8, len(inputs))
            loops.descend(optimizer, loops.loss_of(model, inputs[rows], labels[rows]))
        if (step + 1) % period == 0 or step == STEPS - 1:
            for model in models:
                for name, own in model.state_dict().items():
                    centre[name] += alpha * (own - centre[name])
                    own += alpha * (centre[name] - own)
    return centre


@pytest.mark.parametrize("workers", [1, 3])
def test_elastic_averaging_ties_workers_to_a_centre(workers: int) -> None:
    got = weights(ps.elastic_averaging(4, alpha=0.3), loops.mlp, adamw, workers)
    assert_near(got, elastic(workers, 0.3, 4))


def test_asynchronous_deltas_move_by_their_part() -> None:
    """Workers that come at the same time, one after the other: what each moved, a third of it at a time."""
    inputs, labels = loops.data()
    model, common = loops.mlp(), loops.mlp().state_dict()
    starts = [copy.deepcopy(common) for _ in range(WORKERS)]
    for step in range(STEPS // 2):
        for rank in range(WORKERS):
            model.load_state_dict(starts[rank])
            optimizer = loops.sgd(model)
            for number in (2 * step, 2 * step + 1):
                rows = loops.rows_of(number * WORKERS + rank, 8, len(inputs))
                loops.descend(optimizer, loops.loss_of(model, inputs[rows], labels[rows]))
            for name, value in common.items():
                value -= (starts[rank][name] - model.state_dict()[name]) / WORKERS
            starts[rank] = copy.deepcopy(common)
    assert_near(weights(ps.async_local_sgd(2), loops.mlp, loops.sgd), common)


def test_delayed_nesterov_moves_as_one_nesterov_step_of_the_mean() -> None:
    one, other = (torch.nn.Parameter(torch.zeros(5)) for _ in range(2))
    delayed = DelayedNesterov([one], lr=0.7 / 4, momentum=0.9, n=4)
    nesterov = torch.optim.SGD([other], lr=0.7, momentum=0.9, nesterov=True)
    source = torch.Generator().manual_seed(0)
    for _ in range(6):
        deltas = torch.randn(4, 5, generator=source)
        for delta in deltas:
            one.grad = delta
            delayed.step()
        other.grad = deltas.mean(0)
        nesterov.step()
        torch.testing.assert_close(one, other)


def test_parameters_that_nobody_used_are_left_alone_by_an_outer_momentum() -> None:
    """Worker 1 alone uses the branch, and at the first version only: momentum does not move it afterwards."""
    moved: list[float] = []

    def train(worker: ps.Worker) -> None:
        model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(6):
            optimizer.zero_grad()
            loss = model[0](torch.ones(1, 1)).sum()
            if step < 2 and worker.rank == 1:
                loss = loss + model[1](torch.ones(1, 1)).sum()
            loss.backward()
            optimizer.step()
            if worker.rank == 0:
                moved.append(float(model[1].weight.detach()))

    with pytest.warns(RuntimeWarning, match="outer momentum"):
        ps.run(train, ps.diloco(2), workers=2, engine=ps.Simulated("uniform"))
    assert moved[0] != moved[2], "the first version took it along"
    assert moved[2] == moved[3] == moved[5]


def test_slower_workers_take_fewer_steps() -> None:
    counts: dict[int, list[int]] = {0: [], 1: []}

    def train(worker: ps.Worker) -> None:
        model = nn.Linear(1, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        version, since = worker.version, 0
        for _ in worker.steps(600):
            loops.descend(optimizer, model(torch.ones(1, 1)).sum())
            since += 1
            if worker.version != version:
                counts[worker.rank].append(since)
                version, since = worker.version, 0

    ps.run(train, ps.async_local_sgd(20, adaptive=True), workers=2, engine=ps.Simulated("one-straggler"))
    slow, fast = sorted((counts[0][-1], counts[1][-1]))
    assert slow < fast
    assert fast == 20


# What is refused, and what is warned of

ROUNDS: dict[str, Any] = {"gather": Round(), "admit": Fresh(0), "release": AfterFold()}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"send": Delta()}, "deltas to Outer"),
        ({"send": Delta(), "outer": Average(), **ROUNDS}, "deltas to Outer"),
        ({"send": Gradient(), "outer": Outer("SGD", lr=1.0)}, "gradients go to UserOptimizer"),
        ({"send": Parameters(), "outer": Average(), "gather": Each()}, "or Average"),
        ({"send": Delta(), "outer": Outer("SGD", lr=1.0), "correct": GapAware()}, "corrections are of gradients"),
        ({"send": Delta(), "outer": Outer("SGD", lr=1.0), "adopt": Blend(0.5)}, "use send=Parameters"),
        ({"send": Delta(), "outer": Outer("SGD", lr=1.0), "via": SharedMemory()}, "folded by a server"),
    ],
)
def test_answers_that_do_not_go_together_are_refused(answers: dict[str, Any], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        Strategy(name="mine", **answers)


@pytest.mark.parametrize("alpha", [0.0, 1.5, -1.0])
def test_a_blend_outside_of_its_bounds_is_refused(alpha: float) -> None:
    with pytest.raises(StrategyError, match="above 0, at most 1"):
        Blend(alpha)


@pytest.mark.parametrize(
    ("outer", "words"),
    [
        (Outer("Adagard", lr=0.1), "unknown outer optimizer 'Adagard'.*did you mean.*Adagrad|Adagrad"),
        (Outer("SGD", rate=0.1), "unknown setting of SGD.*rate"),
        (Outer("SGD", lr=-1.0), "cannot be built with that"),
    ],
)
def test_an_outer_optimizer_that_cannot_be_is_refused(outer: Outer, words: str) -> None:
    strategy = Strategy(name="mine", send=Delta(), outer=outer, **ROUNDS)
    with pytest.raises(StrategyError, match=words):
        weights(strategy, loops.mlp, loops.sgd)


def test_few_rounds_under_outer_momentum_are_warned_of() -> None:
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=40)
    with pytest.warns(RuntimeWarning, match=r"outer momentum 0.9 needs about \d+ rounds.*there were 5"):
        ps.run(train, ps.diloco(4, momentum=0.9), workers=2, engine=ps.Simulated("uniform"), until=ps.Until(steps=40))


def test_a_strategy_with_an_outer_optimizer_comes_back_from_its_file(tmp_path: Path) -> None:
    for strategy in (ps.diloco(8), ps.async_local_sgd(8, "delayed_nesterov"), ps.elastic_averaging()):
        assert Strategy.from_data(strategy.name, strategy.as_data()) == strategy
