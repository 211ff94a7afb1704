"""`prepare(after_step=)`: what the plain loop does to its weights after each step is done of every version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

SIMULATED = ps.Simulated("uniform")


def clamp(parameters: Mapping[str, torch.Tensor]) -> None:
    for one in parameters.values():
        one.clamp_(-0.1, 0.1)


def mask(parameters: Mapping[str, torch.Tensor]) -> None:
    parameters["weight"][:, ::2] = 0.0


def unit_norm(parameters: Mapping[str, torch.Tensor]) -> None:
    parameters["weight"].div_(parameters["weight"].norm(dim=1, keepdim=True))


def train(worker: ps.Worker | None, change: Any, momentum: float = 0.9, width: int = 8) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(width, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    data = TensorDataset(torch.randn(64, width), torch.randint(4, (64,)))
    loader = DataLoader(data, batch_size=8)
    if worker is not None:
        model, optimizer, loader = worker.prepare(model, optimizer, loader, after_step=change)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if worker is None:
                with torch.no_grad():
                    change(dict(model.named_parameters()))
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


@pytest.mark.few(6)
@pytest.mark.parametrize("change", [clamp, mask, unit_norm])
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "local_sgd"])
def test_one_worker_has_torchs_result(change: Any, strategy: str) -> None:
    run = ps.run(partial(train, change=change), strategy, workers=1, engine=SIMULATED)
    wanted = train(None, change)
    assert all(torch.equal(run.state_dict[name], wanted[name]) for name in wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [8, 1 << 16], ids=["small", "large"])
def test_every_version_goes_through_it_in_processes_and_replays(width: int, tmp_path: Path) -> None:
    told = partial(train, change=clamp, width=width)
    run = ps.run(told, "async_sgd", workers=2, runs=tmp_path, timeout_s=30.0)
    assert run.state_dict["weight"].abs().max() <= 0.1
    assert "after each step the weights go through clamp" in [one.what for one in run.incidents]
    assert run.folder is not None
    replayed = ps.replay(run.folder, told)
    assert all(torch.equal(one, replayed.state_dict[name]) for name, one in run.state_dict.items())


def test_hogwild_and_all_reduce_apply_it_in_the_worker() -> None:
    for strategy in ("hogwild", ps.allreduce("torch")):
        run = ps.run(partial(train, change=clamp), strategy, workers=2, timeout_s=30.0)
        assert run.state_dict["weight"].abs().max() <= 0.1


def failing(parameters: Mapping[str, torch.Tensor]) -> None:
    parameters["head.weight"].zero_()


@pytest.mark.parametrize("engine", [SIMULATED, "local"], ids=["simulated", "processes"])
def test_what_it_raises_ends_the_run_and_names_it(engine: Any) -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"after_step=failing raised KeyError: .*head\.weight.*weight, bias"
    ):
        ps.run(partial(train, change=failing), "sync_sgd", workers=1, engine=engine, timeout_s=30.0)


def differing(worker: ps.Worker) -> None:
    train(worker, clamp if worker.rank else mask)


def test_workers_name_the_same_function() -> None:
    with pytest.raises(ps.ConfigurationError, match="differs between workers: clamp, mask; name one on all"):
        ps.run(differing, "sync_sgd", workers=2, engine=SIMULATED)
