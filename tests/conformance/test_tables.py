"""The rows of tables under every recipe: what a plain model says of them that is driven by the run's journal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plesio as ps
from conformance.table import strategies
from plesio.cluster import Cluster, Group, Link, LogNormal
from plesio.strategy import Strategy
from plesio.strategy.answers import AtOnce, WithFold
from support.long_forms import but_slow, in_turn
from support.loops import descend
from support.row_twin import ADAGRAD, ENDLESS, LR, Life, assert_rows, train, twin_of
from support.runs import assert_replays, by_name

FAR_AND_NEAR = Cluster((Group(1, LogNormal(0.1, 0.3), Link(0.3)), Group(2, LogNormal(0.1, 0.3))))
"""Versions are made many times while a message is on its way to the one far away."""


LIVES: list[Life] = [
    {"admit": ps.Seen(3)},
    {"expire": ps.Unused(versions=3)},
    {"admit": ps.Seen(2), "expire": ps.Unused(versions=8)},
]


def both(strategy: Strategy) -> list[Strategy]:
    """With both answers to when rows step."""
    other = WithFold() if strategy.rows.at_once else AtOnce()
    return [strategy, replace(strategy, rows=other, name=f"{strategy.name} rows {other.words}")]


ALL = [one for strategy in strategies(at_server=True) for one in both(strategy)]
EACH_WAY = {both(one)[turn % 2].name for turn, one in enumerate(strategies(at_server=True, real=True))}
"""Each recipe, by turns with its own answer to when rows step and with the other one."""


def assert_as_the_twin(
    strategy: Strategy,
    cluster: str | Cluster,
    optimizer: Any,
    folder: Path,
    servers: tuple[int, int],
    life: Life = ENDLESS,
) -> None:
    """`servers`: how many hold the rows in the run, and in its replay."""
    loop = partial(train, optimizer=optimizer, life=life)
    run = ps.run(loop, strategy, workers=3, engine=ps.Simulated(cluster), runs=folder, servers=servers[0])
    assert_rows(run, twin_of(run.folder, strategy, optimizer, life=life))
    assert_replays(run, loop, servers=servers[1])


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", but_slow(ALL, EACH_WAY), ids=by_name)
def test_rows_are_those_of_a_plain_model_and_replay_bit_for_bit(strategy: Strategy, tmp_path: Path) -> None:
    assert_as_the_twin(strategy, FAR_AND_NEAR, ADAGRAD, tmp_path, servers=(2, 3))


@pytest.mark.parametrize("strategy", but_slow(ALL, {"async_sgd", "sync_sgd"}), ids=by_name)
def test_so_they_are_where_workers_are_alike_and_rows_step_by_sgd(strategy: Strategy, tmp_path: Path) -> None:
    assert_as_the_twin(strategy, "uniform", ps.RowSGD(LR / 5), tmp_path, servers=(3, 1))


MIXED = {"async_sgd", "sync_sgd", "buffered(k=2)"}
REST = [one for one in ALL if one.name not in MIXED]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "life"),
    [
        *in_turn([one for one in ALL if one.name in MIXED], LIVES),
        *(pytest.param(one, life, marks=pytest.mark.slow) for one in REST for life in LIVES),
    ],
    ids=lambda one: getattr(one, "name", "") or ", ".join(one),
)
def test_so_they_are_where_rows_come_late_and_expire(strategy: Strategy, life: Life, tmp_path: Path) -> None:
    assert_as_the_twin(strategy, FAR_AND_NEAR, ADAGRAD, tmp_path, (1, 2), life)


class Tower(nn.Module):
    """Rows below a dense layer: each moves the other."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.ids = ps.Table(4, optimizer, scale=0.5)
        self.top = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.top(self.ids(ids).flatten(1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, (ids.sum(1) % 2).float())


def part_of(worker: int, step: int) -> torch.Tensor:
    """The batch of 6 pairs of ids that a worker has in a step."""
    return torch.from_numpy(np.random.default_rng((worker, step)).integers(-20, 20, (6, 2)))


def tower(worker: Any, optimizer: Any, steps: int = 20) -> None:
    net = Tower(optimizer)
    net, dense = worker.prepare(net, torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5))
    for step in range(steps):
        worker.count(6)
        descend(dense, net(part_of(worker.rank, step)))


def in_one_process(workers: int, optimizer: Any, steps: int = 20) -> Tower:
    """The same with everybody's batches in one."""
    net = Tower(optimizer)
    dense = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
    for step in range(steps):
        descend(dense, net(torch.cat([part_of(worker, step) for worker in range(workers)])))
    return net


def by_key(table: ps.Table) -> dict[int, np.ndarray]:
    rows = table.get_extra_state()
    return dict(zip(rows["keys"].tolist(), torch.cat([rows["values"], rows["state"]], 1).numpy(), strict=True))


OPTIMIZERS = [ps.RowSGD(0.1), ps.RowAdagrad(0.1), ps.RowAdam(0.01)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_a_round_of_three_workers_is_one_process_with_all_their_data(optimizer: Any) -> None:
    loop = partial(tower, optimizer=optimizer)
    run = ps.run(loop, ps.sync_sgd(rows="with"), workers=3, engine=ps.Simulated("uniform"))
    net = in_one_process(3, optimizer)
    got, want = by_key(run.tables["ids"]), by_key(net.ids)
    assert got.keys() == want.keys()
    for key, row in want.items():
        np.testing.assert_allclose(got[key], row, rtol=1e-4, atol=1e-6)
    for name, value in net.top.state_dict().items():
        torch.testing.assert_close(run.state_dict[f"top.{name}"], value, rtol=1e-4, atol=1e-6)


@pytest.mark.few(5)
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd(), ps.buffered(1)], ids=by_name)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_one_worker_is_one_process_bit_for_bit(strategy: Strategy, optimizer: Any) -> None:
    loop = partial(tower, optimizer=optimizer)
    run = ps.run(loop, strategy, workers=1, engine=ps.Simulated("uniform"))
    net = in_one_process(1, optimizer)
    got, want = run.tables["ids"].get_extra_state(), net.ids.get_extra_state()
    for name in ("keys", "values", "state"):
        assert torch.equal(got[name], want[name]), name
    for name, value in net.top.state_dict().items():
        assert torch.equal(run.state_dict[f"top.{name}"], value)
