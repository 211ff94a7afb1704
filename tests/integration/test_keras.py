"""Keras 3 on torch: its models train under plesio as in a plain loop of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.long_forms import but_thorough

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras's
ALONE = ps.Simulated("uniform")
RULES = [
    ps.sync_sgd(),
    ps.async_sgd(),
    ps.allreduce(),
    ps.local_sgd(every=3),
    ps.hogwild(),
    ps.bounded_staleness(2),
]
INPUTS = 1.0 + torch.randn(96, 6, generator=torch.Generator().manual_seed(7))
TARGETS = INPUTS.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")


def build() -> Any:
    """The first layer is frozen; moving statistics and a Dropout's seed are parameters in no optimizer."""
    import keras

    keras.utils.clear_session()  # else its names go on counting
    keras.utils.set_random_seed(3)
    norm, drop = keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dropout(0.1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), norm, drop, keras.layers.Dense(1)])
    model.layers[0].trainable = False
    return model


def parts() -> tuple[Any, torch.optim.Optimizer, DataLoader[Any]]:
    model = build()
    return model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=8)


def loop(model: Any, optimizer: Any, loader: Any) -> dict[str, torch.Tensor]:
    for inputs, targets in loader:
        optimizer.zero_grad()
        mse_loss(model(inputs, training=True), targets).backward()
        optimizer.step()
    return dict(model.state_dict())


def train(worker: ps.Worker) -> None:
    loop(*worker.prepare(*parts()))


def judge(model: Any) -> dict[str, float]:
    return {"loss": mse_loss(model(INPUTS, training=False), TARGETS).item()}


def moving_mean(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return next(value for name, value in state.items() if name.endswith("moving_mean"))


@pytest.mark.parametrize("strategy", but_thorough(RULES, {"async_sgd"}), ids=lambda one: one.name)
def test_one_worker_computes_what_the_plain_loop_computes(strategy: ps.Strategy) -> None:
    run = ps.run(train, strategy, workers=1, engine=ALONE)
    alone = loop(*parts())
    assert bool(moving_mean(alone).any())
    assert all(torch.equal(value, alone[name]) for name, value in run.state_dict.items())


@pytest.mark.parametrize("strategy", but_thorough(RULES, {"sync_sgd"}), ids=lambda one: one.name)
def test_moving_statistics_of_several_workers_reach_the_run(strategy: ps.Strategy) -> None:
    model = build()
    model.load_state_dict(ps.run(train, strategy, workers=2, engine=ALONE).state_dict)
    expected = (1 - 0.9**6) * model.layers[0](INPUTS).mean(0)  # of two workers with six batches each
    assert float((moving_mean(model.state_dict()) - expected).norm() / expected.norm()) < 0.5


@pytest.mark.parametrize(
    "engine", [pytest.param("local", marks=pytest.mark.thorough), ALONE], ids=["processes", "simulated"]
)
def test_evaluate_sees_the_weights_of_the_run_in_a_model_that_is_built(engine: Any) -> None:
    run = ps.run(train, "sync_sgd", workers=2, engine=engine, evaluate=judge, model=build)
    model = build()
    first = judge(model)
    model.load_state_dict(run.state_dict)
    assert run.history[-1].metrics == pytest.approx(judge(model))
    assert run.history[-1].metrics["loss"] < first["loss"]


@pytest.mark.thorough
def test_building_a_model_to_judge_leaves_the_run_as_it_is() -> None:
    plain, judged = (
        ps.run(train, "sync_sgd", workers=2, engine=ALONE, **settings)
        for settings in ({}, {"evaluate": judge, "model": build, "evaluate_every": ps.Rounds(1)})
    )
    assert all(torch.equal(value, judged.state_dict[name]) for name, value in plain.state_dict.items())


def test_evaluate_without_a_builder_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"Keras's models do: .*Say what builds one: .*model=build"):
        ps.run(train, "sync_sgd", workers=2, engine=ALONE, evaluate=judge)


def test_an_optimizer_of_keras_is_refused() -> None:
    import keras

    def mixed(worker: ps.Worker) -> None:
        worker.prepare(build(), keras.optimizers.SGD(0.1))

    with pytest.raises(ps.ConfigurationError, match="given a SGD; it takes torch's modules, optimizers"):
        ps.run(mixed, "sync_sgd", workers=1, engine=ALONE)
