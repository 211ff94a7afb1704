"""What people do on a GPU, beside torch alone; and a server that dies under workers on one. Only where there is a GPU."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's imports warn
]
HOW = ["plain", "clipped", "scaler", "autocast", "compiled", "fused"]


def parts(how: str, device: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 64)]
    model = torch.nn.Sequential(*layers).to(device)
    data = torch.randn(3200, 64, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=how == "fused" or None)
    return model, optimizer, DataLoader(TensorDataset(data), batch_size=32)


def loop(model: Any, optimizer: Any, loader: Any, how: str) -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, enabled=how == "scaler")  # the first steps overflow
    low = {"scaler": torch.float16, "autocast": torch.bfloat16}
    compiled = torch.compile(model) if how == "compiled" else model
    for (inputs,) in loader:
        inputs = inputs.cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", low[how]) if how in low else nullcontext():
            loss = (compiled(inputs) - inputs).square().mean()
        scaler.scale(loss).backward()
        if how in ("clipped", "scaler"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def train(worker: ps.Worker, how: str, epochs: int = 1) -> None:
    model, optimizer, loader = worker.prepare(*parts(how, worker.device))
    for _ in range(epochs):
        loop(model, optimizer, loader, how)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("strategy", "most"), [("local_sgd", 0.0), ("sync_sgd", 1e-3)])  # the server steps on the CPU
def test_one_worker_on_a_gpu_trains_as_torch_alone(strategy: str, most: float, how: str) -> None:
    model, optimizer, loader = parts(how, "cuda")
    loop(model, optimizer, loader, how)
    run = ps.run(functools.partial(train, how=how), strategy, workers=1)
    assert run.steps == (96 if how == "scaler" else 100)  # 2 ** 24 is halved until it fits
    own, got = (
        torch.cat([one.cpu().flatten() for one in state.values()]) for state in (model.state_dict(), run.state_dict)
    )
    most = max(most, 1e-6) if how == "compiled" else most  # a compiler may order sums otherwise in another process
    assert (got - own).norm() <= most * own.norm()


@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "local_sgd"])
def test_a_server_that_dies_under_workers_on_a_gpu_loses_nothing(strategy: str, tmp_path: Path) -> None:
    task = functools.partial(train, how="plain", epochs=10)
    kept: Any = {"runs": tmp_path, "durability": "process"}
    run = ps.run(task, strategy, workers=2, faults=[ps.Kill(None, after_s=0.1), ps.Kill(None, after_s=0.4)], **kept)
    died = [one.what for one in run.summary.incidents if "the server died" in one.what]
    assert len(died) == 2
    assert all("no update lost" in one for one in died)
    assert ps.replay(run.folder, task).identical
