"""Runs of models in bfloat16: a float32 copy at the server is stepped, kept by checkpoints, taken over by other strategies."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Group, LogNormal
from plesio.strategy import Strategy
from support.loops import descend
from support.runs import assert_replays, by_name, in_two_parts, same

KEPT = ps.Checkpoint(every_s=0.25)
LR = 0.01
MOMENTUM = partial(torch.optim.SGD, lr=LR, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=LR)


class Half(nn.Module):
    """In bfloat16, with rows of a table that a batch has few of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(20, 6, sparse=True)
        self.last = nn.Linear(6, 3)
        self.to(torch.bfloat16)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.table(index))).float()


class Dense(Half):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(self.table.weight.detach(), freeze=False)


def train(worker: Any, build: Any = Dense, make: Any = MOMENTUM, file: Path | None = None) -> None:
    model = build()
    index = torch.arange(120) % 20
    loader = DataLoader(TensorDataset(index, index % 3), batch_size=4)
    model, optimizer, loader = worker.prepare(model, make(model.parameters()), loader)
    for _ in range(2):
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs), labels))
    if file is not None:
        torch.save(optimizer.state_dict(), file)


def simulated(function: Any, strategy: Strategy, runs: Path | None = None, workers: int = 4, **options: Any) -> ps.Run:
    engine = ps.Simulated(Cluster((Group(workers, LogNormal(0.1, 0.3)),)))
    return ps.run(function, strategy, workers=workers, engine=engine, runs=runs, seed=2, **options)


def stepped_in_float32(build: Any, make: Any) -> dict[str, torch.Tensor]:
    """The loop, with a float32 copy stepped by hand."""
    model, master = build(), build().float()
    optimizer = make(master.parameters())
    index = torch.arange(120) % 20
    for _ in range(2):
        for inputs, labels in DataLoader(TensorDataset(index, index % 3), batch_size=4):
            model.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            for exact, rounded in zip(master.parameters(), model.parameters(), strict=True):
                exact.grad = rounded.grad.float()
            optimizer.step()
            model.load_state_dict(master.state_dict())
    return dict(model.state_dict())


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd()], ids=by_name)
@pytest.mark.parametrize(
    ("build", "make"),
    [
        (Dense, MOMENTUM),
        (Dense, ADAMW),
        (Half, partial(torch.optim.SGD, lr=LR)),
        (Half, partial(torch.optim.Adagrad, lr=LR)),
    ],
)
def test_one_worker_equals_a_loop_with_a_float32_copy(
    build: Any, make: Any, strategy: Strategy, tmp_path: Path
) -> None:
    """Bit for bit; rows of tables, too."""
    run = simulated(partial(train, build=build, make=make), strategy, tmp_path, 1)
    assert {one.dtype for one in run.state_dict.values()} == {torch.bfloat16}
    assert same(run, stepped_in_float32(build, make))


ROUNDS = [ps.sync_sgd(), ps.local_sgd(2), ps.diloco(2), ps.diloco(2, codec="int8"), ps.sync_sgd(codec="int8")]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*a codec packs float32")
@pytest.mark.parametrize("strategy", ROUNDS, ids=by_name)
def test_a_resumed_run_gives_the_same_weights_and_a_replay_the_same_versions(
    strategy: Strategy, tmp_path: Path
) -> None:
    whole, _, second = in_two_parts(partial(simulated, train, strategy), tmp_path, ps.Until(seconds=0.8))
    assert same(second, whole)
    assert_replays(second, train)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    [
        ps.async_sgd(),
        ps.async_sgd("gap_aware"),
        ps.buffered(2),
        ps.buffered(2, correct="plain"),
        ps.elastic_averaging(2),
    ],
    ids=by_name,
)
def test_a_replay_of_a_resumed_run_is_identical(strategy: Strategy, tmp_path: Path) -> None:
    function = train if strategy.send.stepped else partial(train, build=Half, make=partial(torch.optim.SGD, lr=LR))
    first = simulated(function, strategy, tmp_path / "a", checkpoint=KEPT, until=ps.Until(seconds=0.8))
    second = simulated(function, strategy, tmp_path / "b", checkpoint=KEPT, resume=first.folder)
    assert second.version > first.version
    assert_replays(second, function)


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:resumed under")
@pytest.mark.parametrize("make", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
@pytest.mark.parametrize(
    ("was", "now"), [(ps.sync_sgd(), ps.async_sgd()), (ps.async_sgd(), ps.sync_sgd())], ids=by_name
)
def test_another_strategy_takes_the_copy_over(was: Strategy, now: Strategy, make: Any, tmp_path: Path) -> None:
    """With one worker both are the same loop, bit for bit: weights and momenta go on in float32."""
    function = partial(train, make=make)
    first = simulated(function, was, tmp_path, 1, checkpoint=ps.Checkpoint(), until=ps.Until(steps=17))
    run = simulated(function, now, tmp_path, 1, resume=first.folder)
    assert same(run, stepped_in_float32(Dense, make))


@pytest.mark.filterwarnings("ignore:resumed under")
@pytest.mark.parametrize(
    ("was", "now"), [(ps.sync_sgd(), ps.local_sgd(2)), (ps.local_sgd(2), ps.sync_sgd())], ids=by_name
)
def test_state_goes_to_workers_in_the_models_dtype_and_comes_from_there(
    was: Strategy, now: Strategy, tmp_path: Path
) -> None:
    file = tmp_path / "state.pt"
    first = simulated(
        partial(train, make=ADAMW), was, tmp_path, 1, checkpoint=ps.Checkpoint(), until=ps.Until(steps=16)
    )
    run = simulated(partial(train, make=ADAMW, file=file), now, tmp_path, 1, resume=first.folder)
    assert not any("dropped" in one.what for one in run.incidents)
    for state in torch.load(file)["state"].values():
        assert state["exp_avg"].dtype == torch.bfloat16
        assert float(state["step"]) == 60


def small_steps(worker: Any) -> None:
    """The weight moves by 2.5e-4 at each of 200 steps: half the rate where a worker of two steps alone."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=5e-4))
    for _ in worker.steps(200):
        descend(optimizer, (-model(torch.ones(1, 1, dtype=torch.bfloat16))).sum())


@pytest.mark.thorough
def test_small_steps_of_a_run_are_all_made() -> None:
    run = ps.run(small_steps, ps.async_sgd(), workers=2, timeout_s=60)
    torch.testing.assert_close(run.state_dict["weight"].float(), torch.tensor([[1.05]]), rtol=2.0**-8, atol=0)
