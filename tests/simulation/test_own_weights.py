"""Simulated workers write into their own weights, as processes do: others do not see it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.errors import SharedMemoryError
from plesio.strategy import Strategy
from plesio.worker.replicas.replica import IN_PLACE_BYTES
from support.runs import assert_replays, by_name, same

WIDTH = 600
"""Of a layer, which alone is larger than `IN_PLACE_BYTES`."""
ALIKE = Cluster((Group(3, Constant(0.1)),))

pytestmark = pytest.mark.filterwarnings("ignore:.*written to by hand", "ignore:.*wrote into parameters after")


def writing(worker: Any, steps: int = 8, looks: bool = False) -> None:
    """Worker 1 clamps its weights hard between two steps, and worker 2 swaps in others.

    `looks`: worker 0, which never writes, makes sure that its weights are only changed by its own step.
    """
    torch.manual_seed(3)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = worker.prepare(model, optimizer, range(3 * steps), on_write="warn")
    before = model.weight.detach().clone()
    for row in loader:  # asks for more data, while others run, as it goes
        assert not looks or worker.rank or torch.equal(model.weight, before)
        optimizer.zero_grad()
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(int(row)))
        model(inputs).square().mean().backward()
        optimizer.step()
        before = model.weight.detach().clone()
        with torch.no_grad():
            if worker.rank == 1:
                model.weight.clamp_(-0.001, 0.001)
            elif worker.rank == 2:
                model.load_state_dict({name: value * 3 for name, value in model.state_dict().items()})


def test_the_model_is_large_enough_to_be_read_in_place() -> None:
    assert 4 * WIDTH * WIDTH >= IN_PLACE_BYTES


@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.sync_sgd(), ps.buffered(2)], ids=by_name)
def test_a_workers_writes_are_not_seen_by_others(strategy: Strategy) -> None:
    ps.run(functools.partial(writing, looks=True), strategy, workers=3, engine=ps.Simulated(ALIKE))


def test_in_rounds_simulated_weights_equal_real_ones() -> None:
    real = ps.run(writing, ps.sync_sgd(), workers=3, timeout_s=60)
    virtual = ps.run(writing, ps.sync_sgd(), workers=3, engine=ps.Simulated(ALIKE))
    assert real.version > 3
    assert same(real, virtual)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.sync_sgd()], ids=by_name)
def test_a_real_run_that_writes_weights_replays_bit_for_bit(strategy: Strategy, tmp_path: Path) -> None:
    run = ps.run(writing, strategy, workers=3, timeout_s=60, runs=tmp_path)
    assert_replays(run, writing)


def test_memory_for_the_copies_is_checked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rounds without momentum: 5 versions and 3 slots are shared, plus 3 private copies."""
    model = 4 * WIDTH * (WIDTH + 1)
    monkeypatch.setattr("plesio.system.memory.room", lambda: {"the host's memory": int(9.5 * model)})
    with pytest.raises(SharedMemoryError, match="with a copy of the model for each of the 3 workers of this process"):
        ps.run(writing, ps.sync_sgd(), workers=3, engine=ps.Simulated(ALIKE))
