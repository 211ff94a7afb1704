"""What is not shared is each client's own, as in a plain loop that keeps a copy of the model's rest for each client."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.transport.client_states import ClientStates
from support.long_forms import in_turn
from support.loops import descend

CLIENTS, ROUNDS, PER_ROUND = 9, 6, 4
Turn = tuple[int, int, list[Any]]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(180, 6, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def train(worker: ps.Worker, share: Any, turns: list[Turn]) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lent = ps.Clients(
        data(), ps.splits.iid(180, CLIENTS), per_round=PER_ROUND, rounds=ROUNDS, epochs=2, batch_size=8, state="keep"
    )
    model, optimizer, clients = worker.prepare(model, optimizer, lent, share=share)
    for client in clients:
        seen = list(client)
        turns.append((client.round, client.id, seen))
        client.state["turns"] = client.state.get("turns", 0) + 1
        for inputs, labels in seen:
            step(model, optimizer, inputs, labels)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    descend(optimizer, nn.functional.cross_entropy(model(inputs), labels))


def plain(turns: list[Turn], shared: Any) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]]]:
    """The same rule without plesio: the shared part, and each client's own."""
    body = {name: one.clone() for name, one in build().state_dict().items() if shared(name)}
    heads = {
        client: {name: one for name, one in build().state_dict().items() if not shared(name)}
        for client in range(CLIENTS)
    }
    for round in range(ROUNDS):
        sums, total = {name: torch.zeros_like(one, dtype=torch.float64) for name, one in body.items()}, 0
        for client, batches in [(client, batches) for of, client, batches in turns if of == round]:
            model = build()
            model.load_state_dict(body | heads[client])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for inputs, labels in batches:
                step(model, optimizer, inputs, labels)
            samples = sum(len(labels) for _, labels in batches)
            now = copy.deepcopy(model.state_dict())
            heads[client] = {name: now[name] for name in heads[client]}
            for name in sums:
                sums[name] += samples * now[name].double()
            total += samples
        body = {name: (one / total).to(body[name].dtype) for name, one in sums.items()}
    return body, heads


SHARES: dict[str, tuple[Any, Any]] = {
    "FedPer": (["0", "1"], lambda name: name[0] in "01"),  # each its own head
    "FedBN": (lambda name, tensor: not name.startswith("1."), lambda name: name[0] != "1"),  # its own batch norm
    "no biases": (
        ["*.weight", "1.running_*", "1.num_*"],
        lambda name: name.endswith("weight") or name.startswith(("1.r", "1.n")),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "workers"), in_turn([*SHARES], [1, 3]))
def test_as_a_plain_loop(name: str, workers: int, tmp_path: Any) -> None:
    share, shared = SHARES[name]
    turns: list[Turn] = []

    def trained(worker: ps.Worker) -> None:
        train(worker, share, turns)

    run = ps.run(trained, ps.fedavg(), workers=workers, engine=ps.Simulated("uniform"), runs=tmp_path)
    body, heads = plain(turns, shared)
    assert run.state_dict.keys() == body.keys()
    for name, one in body.items():
        assert torch.allclose(run.state_dict[name].double(), one.double(), atol=1e-6), name
    states = ClientStates(run.folder / "clients")
    for client in {client for _, client, _ in turns}:
        record = torch.load(io.BytesIO(states.get(client, run.version) or b""), weights_only=True)
        assert record["state"] == {"turns": sum(one == client for _, one, _ in turns)}
        assert record["own"].keys() == heads[client].keys()
        for name, own in heads[client].items():
            torch.testing.assert_close(record["own"][name], own, rtol=1e-5, atol=1e-6, msg=name)
