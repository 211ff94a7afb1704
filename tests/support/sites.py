"""Sites of a federated run, of which some lie or send a NaN; and what a plain loop over them computes."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import nn

import plesio as ps

ROUNDS, RATE = 4, 0.1
LIARS = {1: -20.0}
"""By site: what it multiplies its gradients by."""
Fold = Callable[[list[torch.Tensor]], torch.Tensor]


def build(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)


def local_round(model: nn.Module, optimizer: torch.optim.Optimizer, site: int, factor: float) -> None:
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(site)).to(next(model.parameters()).dtype)
    labels = (inputs[:, 0] > 0).long()
    for batch in torch.arange(12).split(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]).float(), labels[batch]).backward()
        for one in model.parameters():
            one.grad.mul_(factor)
        optimizer.step()


def site(
    worker: ps.Worker,
    liars: Mapping[int, float] = LIARS,
    dtype: torch.dtype = torch.float32,
    rounds: int = ROUNDS,
    pause_s: float = 0.0,
) -> None:
    """One whose factor is a NaN sends it."""
    model = build(dtype)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    for _ in range(rounds):
        local_round(model, optimizer, worker.rank, liars.get(worker.rank, 1.0))
        if pause_s:
            time.sleep(pause_s)
        worker.contribute(samples=12 + worker.rank)


def by_hand(
    fold: Fold, sites: int, lr: float = 1.0, momentum: float = 0.0, liars: Mapping[int, float] = LIARS
) -> dict[str, torch.Tensor]:
    """Each round: `fold` of how far the sites moved, by an outer SGD; of the model's buffers, `fold` of them."""
    model, velocity = build(), {name: torch.zeros_like(one) for name, one in build().named_parameters()}
    for _ in range(ROUNDS):
        ends = []
        for number in range(sites):
            own = copy.deepcopy(model)
            local_round(own, torch.optim.SGD(own.parameters(), lr=RATE), number, liars.get(number, 1.0))
            ends.append(own.state_dict())
        state = model.state_dict()
        for name, value in state.items():
            if name in velocity:
                velocity[name] = momentum * velocity[name] + fold([value - end[name] for end in ends])
                state[name] = value - lr * velocity[name]
            else:
                state[name] = fold([end[name] for end in ends])
        model.load_state_dict(state)
    return model.state_dict()


def by_coordinate(what: Callable[[list[float]], float]) -> Fold:
    """A fold that looks at one number of each contribution at a time."""

    def fold(parts: list[torch.Tensor]) -> torch.Tensor:
        found = [what(column) for column in torch.stack(parts).reshape(len(parts), -1).double().T.tolist()]
        return torch.tensor(found).to(parts[0].dtype).reshape(parts[0].shape)

    return fold


def trimmed(cut: int) -> Callable[[list[float]], float]:
    return lambda column: statistics.fmean(sorted(column)[cut : len(column) - cut])
