"""Run in a fresh environment by `make dist`: what was installed trains, and its pages and the demo's script are there. What is
plesio-sparse's is not."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

import plesio as ps
from plesio.cli.demo import script


def train(worker: ps.Worker) -> None:
    model = torch.nn.Linear(4, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in worker.steps(20):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()


def told_without_sparse() -> str:
    try:
        import plesio.sparse  # noqa: F401
    except ModuleNotFoundError as error:
        return str(error)
    return "plesio.sparse is there"


if __name__ == "__main__":
    assert "pip install plesio-sparse" in told_without_sparse()
    assert find_spec("sklearn") is None
    assert script().absolute().is_relative_to(Path(ps.__file__).parent)
    with tempfile.TemporaryDirectory() as runs:
        run = ps.run(train, ps.async_sgd(), workers=2, runs=runs)
        assert run.folder is not None
        assert (run.folder / "report.html").stat().st_size > 10_000
    print(f"{Path(ps.__file__).parent}: {run.steps} steps")
