"""What examples in docstrings take for granted (docs/reference.md): `torch`, `ps`, the `train` of `ps.run`'s example, and a new
folder to write into."""

from __future__ import annotations

from typing import Any

import pytest


def train(worker: Any) -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        worker.log(loss=loss)


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import torch

    import plesio as ps

    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    request.getfixturevalue("doctest_namespace").update(ps=ps, torch=torch, train=train)
