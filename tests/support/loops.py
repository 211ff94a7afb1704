"""Training functions for real workers, in a module that worker processes can import."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

FEATURES, CLASSES = 6, 3

Build = Callable[[], nn.Module]
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def data(rows: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    """A small classification problem, the same every time."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    return inputs, labels


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def batch_norm() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


class Masked(nn.Module):
    """Constants as buffers, which a mean by arithmetic would change: masks, fractions; a batch norm, whose move; a pointer
    that wraps round and a switch that is turned off."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.full((FEATURES, FEATURES), -torch.inf).triu(1))
        self.register_buffer("least", torch.full((FEATURES, FEATURES), torch.finfo(torch.float32).min).triu(1))
        self.register_buffer("small", self.least.half().clamp(min=torch.finfo(torch.float16).min))
        self.register_buffer("fractions", torch.arange(1, 50) / 7)
        self.register_buffer("pointer", torch.tensor(0))
        self.register_buffer("switch", torch.tensor(True))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.pointer.copy_((self.pointer + 2) % 5)
        self.switch.fill_(False)
        hidden = self.norm(inputs)
        weights = (hidden.T @ hidden + self.mask).softmax(-1) + (hidden.T @ hidden + self.least).softmax(-1)
        return self.last(hidden @ weights)


class Tied(nn.Module):
    """Encoder and decoder share a weight; one layer is used at odd steps only, another is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encode = nn.Linear(FEATURES, 8, bias=False)
        self.decode = nn.Linear(8, FEATURES, bias=False)
        self.decode.weight = nn.Parameter(self.encode.weight.detach().T.contiguous())
        self.twin = nn.Linear(FEATURES, 8, bias=False)
        self.twin.weight = self.encode.weight
        self.sometimes = nn.Linear(FEATURES, FEATURES)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.encode(inputs) + self.twin(inputs)
        out = self.decode(hidden)
        return self.sometimes(out) if self.calls % 2 else out


class Mixed(nn.Module):
    """float32, bfloat16 and float64 parameters in one model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, 8)
        self.middle = nn.Linear(8, 8).to(torch.bfloat16)
        self.last = nn.Linear(8, CLASSES).to(torch.float64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        hidden = torch.tanh(self.middle(hidden.to(torch.bfloat16)))
        return self.last(hidden.to(torch.float64))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.02)


class Counted(torch.optim.Optimizer):
    """Warms up over five steps. It counts them in its group, and keeps the rates that it saw there, too."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "step": 0, "seen": []})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            group["seen"].append(group["lr"])
            rate = min(1.0, group["step"] / 5) * sum(group["seen"]) / len(group["seen"])
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=rate)


def descend(optimizer: Any, loss: torch.Tensor) -> None:
    """The usual step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def plain_pytorch(build: Build, optimizers: Optimizers, steps: int, batch: int = 8) -> dict[str, torch.Tensor]:
    """The same training without plesio: batch by batch through the data, over and over."""
    inputs, labels = data()
    model = build()
    optimizer = optimizers(model)
    for step in range(steps):
        rows = rows_of(step, batch, len(inputs))
        optimizer.zero_grad()
        loss_of(model, inputs[rows], labels[rows]).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def with_master(build: Build, optimizers: Optimizers, steps: int, batch: int = 8) -> dict[str, torch.Tensor]:
    """The same, by hand: the optimizer steps float32 copies of what is in half precision, which is then rounded."""
    inputs, labels = data()
    model, master = build(), build()
    for module in master.modules():
        for name, value in module.named_parameters(recurse=False):
            if value.dtype in (torch.bfloat16, torch.float16):
                setattr(module, name, nn.Parameter(value.detach().float()))
    optimizer = optimizers(master)
    for step in range(steps):
        rows = rows_of(step, batch, len(inputs))
        model.zero_grad()
        loss_of(model, inputs[rows], labels[rows]).backward()
        for exact, rounded in zip(master.parameters(), model.parameters(), strict=True):
            exact.grad = rounded.grad.to(exact.dtype) if rounded.grad is not None else None
        optimizer.step()
        with torch.no_grad():
            for exact, rounded in zip(master.parameters(), model.parameters(), strict=True):
                rounded.copy_(exact)
    return {name: value.clone() for name, value in model.state_dict().items()}


def rows_of(step: int, batch: int, rows: int) -> slice:
    start = step * batch % (rows - rows % batch)
    return slice(start, start + batch)


def loss_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    out = model(inputs)
    return mse_loss(out, inputs) if out.shape == inputs.shape else cross_entropy(out.float(), labels)


def follow(worker: Any, build: Build, optimizers: Optimizers, steps: int, batch: int = 8) -> None:
    """Worker i takes batches i, i + N, ... of the same data, `steps` of them."""
    inputs, labels = data()
    model = build()
    model, optimizer, _ = worker.prepare(model, optimizers(model), None)
    for step in range(steps):
        rows = rows_of(step * worker.workers + worker.rank, batch, len(inputs))
        optimizer.zero_grad()
        loss = loss_of(model, inputs[rows], labels[rows])
        loss.backward()
        optimizer.step()
        worker.log(loss=loss)


def leave_fingerprints(worker: Any, folder: str, steps: int) -> None:
    """As `follow`; writes down the weights of every version."""
    inputs, labels = data()
    model = mlp()
    model, optimizer, _ = worker.prepare(model, momentum(model), None)
    seen = []
    for step in range(steps):
        rows = rows_of(step * worker.workers + worker.rank, 8, len(inputs))
        optimizer.zero_grad()
        loss_of(model, inputs[rows], labels[rows]).backward()
        optimizer.step()
        weights = [value.double().sum().item().hex() for value in model.state_dict().values()]
        seen.append((worker.version, weights))
    Path(folder, f"{worker.rank}.json").write_text(json.dumps(seen))


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Rows with their numbers, so that tests know who visited which."""

    def __init__(self, rows: int) -> None:
        self.inputs, self.labels = data(rows)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.labels[index]


def visit(worker: Any, folder: str, rows: int, epochs: int, pause_s: float = 0.0, batch: int = 4) -> None:
    """Train over leased data; writes down the rows of accepted contributions."""
    model = mlp()
    loader = DataLoader(Numbered(rows), batch_size=batch, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    with open(Path(folder, f"{worker.rank}.txt"), "w", buffering=1) as out:
        for epoch in range(epochs):
            for numbers, inputs, labels in loader:
                discarded = worker.discarded
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                if pause_s:
                    time.sleep(pause_s)
                optimizer.step()
                if worker.discarded == discarded:
                    out.write(f"{epoch} {' '.join(str(int(number)) for number in numbers)}\n")


def endless(worker: Any, pause_s: float = 0.005) -> None:
    """Train until stopped."""
    inputs, labels = data()
    model = mlp()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    while not worker.stopped:
        for inputs, labels in loader:
            with worker.step():
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), labels)
                loss.backward()
                time.sleep(pause_s)
                optimizer.step()
                worker.log(loss=loss)


def without_data(worker: Any) -> None:
    """Train on the same numbers, and never end."""
    model = torch.nn.Linear(4, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while True:
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()


def raising(worker: Any, who: int, after: int, kind: str = "") -> None:
    """As `endless` with 30 steps, but worker `who` raises after `after` steps (or before prepare, if negative). Its class is a
    ValueError, or one called `kind`."""
    if worker.rank == who and after < 0:
        raise ValueError("no data on this machine")
    inputs, labels = data()
    model = mlp()
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    for step in range(60):
        if worker.rank == who and step == after:
            raise (type(kind, (Exception,), {}) if kind else ValueError)("the disk is on fire")
        optimizer.zero_grad()
        loss_of(model, inputs, labels).backward()
        time.sleep(0.005)
        optimizer.step()


def poisoned(worker: Any, who: int, at: int, value: float, steps: int = 20) -> None:
    """Worker `who` contributes a NaN or an infinity at step `at`."""
    inputs, labels = data()
    model = mlp()
    model, optimizer, _ = worker.prepare(model, momentum(model), None)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, labels)
        loss.backward()
        if worker.rank == who and step == at:
            next(model.parameters()).grad[0, 0] = value
        optimizer.step()
    worker.log(discarded=worker.discarded)


def hopeless(worker: Any, steps: int = 5, good: int = 0) -> None:
    """Every contribution of every worker is NaN, but for its first `good` ones."""
    inputs, labels = data()
    model = mlp()
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    for step in range(steps):
        optimizer.zero_grad()
        (loss_of(model, inputs, labels) * (1.0 if step < good else float("nan"))).backward()
        optimizer.step()


def mismatched(worker: Any, what: str) -> None:
    """Worker 1 builds another model."""
    torch.manual_seed(0)
    width = 9 if worker.rank == 1 and what == "shape" else 8
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, width), nn.Linear(width, CLASSES))
    if worker.rank == 1 and what == "dtype":
        model = model.double()
    if worker.rank == 1 and what == "more":
        model.append(nn.Linear(CLASSES, CLASSES))
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    optimizer.step()


def changed_later(worker: Any, how: str) -> None:
    """The model changes after prepare."""
    model = mlp()
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    inputs, labels = data()
    if how == "dtype":
        model.double()
        inputs = inputs.double()
    elif how == "memory":
        weight = next(model.parameters())
        weight.data = weight.data.clone()
    loss_of(model, inputs, labels).backward()
    optimizer.step()


def one_step(worker: Any, action: str) -> None:
    """Misuse in one place."""
    model = mlp()
    optimizer = sgd(model)
    if action == "empty loader":
        worker.prepare(model, optimizer, DataLoader(TensorDataset(torch.zeros(0, 2)), batch_size=4))
    elif action == "no optimizer":
        worker.prepare(model, None, None)
    elif action == "twice":
        model, optimizer, _ = worker.prepare(model, optimizer, None)
        worker.prepare(model, optimizer, None)
    elif action == "group":
        model, optimizer, _ = worker.prepare(model, optimizer, None)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    elif action == "foreign optimizer":
        worker.prepare(model, sgd(mlp()), None)
    elif action == "text":
        worker.prepare(model, optimizer, None)
        worker.log(loss="low")


def report_pids(worker: Any, folder: str, pause_s: float = 0.005) -> None:
    """As `endless`, and write down the process ids."""
    Path(folder, f"{worker.rank}.pid").write_text(str(os.getpid()))
    Path(folder, "server.pid").write_text(str(worker.server_pid))
    endless(worker, pause_s)


def never_prepares(worker: Any) -> None:
    """Worker 1 never calls prepare."""
    if worker.rank == 1:
        time.sleep(600)
    model = mlp()
    worker.prepare(model, sgd(model), None)


def dies_handing_over(worker: Any, rate: float, who: int | None = 0, steps: int = 5) -> None:
    """Worker `who` is killed when it has copied one tensor of the model into the run's memory. All carry a momentum."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    if worker.rank == who:
        _die_at_the_second_tensor()
    model, optimizer, _ = worker.prepare(model, optimizer, None)
    inputs, labels = data()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, inputs, labels).backward()
        optimizer.step()


def _die_at_the_second_tensor() -> None:
    import plesio.launch.participation as participation

    hand_over = participation.hand_over

    def dying(optimizer: Any, carried: Any, tensors: Any, ring: Any, first: bool) -> None:
        hand_over(optimizer, None, tensors[:1], [SimpleNamespace(views=ring[0].views[:1])], first)
        os.kill(os.getpid(), signal.SIGKILL)

    participation.hand_over = dying


def idle(worker: Any) -> None:
    """Does nothing and returns."""
