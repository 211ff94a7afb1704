"""Models on a device of their own, such as a GPU: tensors there, the run's memory here."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import plesio as ps
from plesio.strategy.answers import TopK
from plesio.worker.randomness import seeding
from plesio.worker.replicas import early, replica
from support.devices import lazy
from support.long_forms import in_turn
from support.programs import PYTHON
from support.streams import FakeCopies, FakeStreams
from support.synchronisations import Synchronisations

DEVICES = ["lazy", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
STRATEGIES = [
    ps.sync_sgd(),
    pytest.param(ps.first_of(1), marks=pytest.mark.slow),
    pytest.param(ps.async_sgd(), marks=pytest.mark.thorough),
    pytest.param(ps.buffered(1), marks=pytest.mark.slow),
    pytest.param(ps.local_sgd(every=2), marks=pytest.mark.slow),
    pytest.param(ps.async_local_sgd(2, codec="int8"), marks=pytest.mark.thorough),
    pytest.param(ps.sync_sgd(codec="int8"), marks=pytest.mark.thorough),
    pytest.param(ps.async_sgd(codec=TopK(0.2)), marks=pytest.mark.slow),
    ps.allreduce("torch"),
]
STEPS = 6


class Centre(nn.Module):
    """Takes the mean off and remembers it, as batch normalisation does (whose statistics the lazy device leaves alone)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        centre = rows.mean(0)
        self.mean.mul_(0.9).add_(centre.detach(), alpha=0.1)
        self.seen += 1
        return rows - centre


class Network(nn.Module):
    """Two dtypes, a buffer that is written, one that counts, and a layer that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.hidden = nn.Sequential(nn.Linear(6, 5), Centre(), nn.Tanh())
        self.last = nn.Linear(5, 2).double()
        self.unused = nn.Linear(3, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.hidden(rows).double())
        return result


def training(worker: ps.Worker, on: str) -> None:
    """Accumulates over two backward passes, clips, and in every other step lets go of the gradients or zeroes them."""
    device = lazy() if on == "lazy" else torch.device(on)
    model = Network().to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, _ = worker.prepare(model, optimizer, None)
    assert all(parameter.device.type == device.type for parameter in model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(2):
            rows, wanted = torch.randn(8, 6).to(device), torch.randn(8, 2).double().to(device)
            mse_loss(model(rows), wanted).backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.dtype == torch.float32], 0.5)
        optimizer.step()
        worker.log(loss=0.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
def test_a_model_on_a_device_trains_as_on_the_cpu(strategy: ps.Strategy, device: str) -> None:
    here, there = (
        ps.run(partial(training, on=on), strategy, workers=1, seed=3, timeout_s=60.0) for on in ("cpu", device)
    )
    assert there.summary.steps == here.summary.steps
    assert there.summary.missing_gradients == here.summary.missing_gradients > 0
    for name, tensor in here.state_dict.items():
        assert there.state_dict[name].device.type == "cpu"
        near = 1e-5 if strategy.send.codec is None else 1e-3  # which may round another way
        assert torch.allclose(there.state_dict[name], tensor, atol=near), name


def one_step(worker: ps.Worker, on: str, state: bool = False, poison: bool = False, width: int = 4) -> None:
    """Each worker's gradient is its rank plus one, and from a loaded optimizer there is momentum."""
    model = nn.Linear(width, 1, bias=False)
    nn.init.ones_(model.weight)
    model = model.to(lazy() if on == "lazy" else on)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    if state:
        model.weight.grad = torch.ones_like(model.weight)
        plain.step()
    model, optimizer, _ = worker.prepare(model, plain, None)
    for step in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, width).to(model.weight.device)).sum() * (worker.rank + 1)).backward()
        if poison and worker.rank == 1 and step == 0:
            model.weight.grad[0, 1] = torch.inf
        optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "state"), in_turn(["sync_sgd", "local_sgd", ps.allreduce("torch")], [True, False]), ids=str
)
def test_two_workers_with_optimizer_state_match_the_cpu(strategy: Any, state: bool) -> None:
    here, there = (
        ps.run(partial(one_step, on=on, state=state), strategy, workers=2, timeout_s=60.0) for on in ("cpu", "lazy")
    )
    assert torch.allclose(there.state_dict["weight"], here.state_dict["weight"])
    assert not torch.allclose(here.state_dict["weight"], torch.ones(1, 4))


@pytest.mark.filterwarnings("ignore:.*not finite.*:RuntimeWarning")
@pytest.mark.parametrize("strategy", ["async_sgd", pytest.param("local_sgd", marks=pytest.mark.thorough)])
def test_a_non_finite_gradient_is_discarded(strategy: str) -> None:
    run = ps.run(partial(one_step, on="lazy", poison=True), strategy, workers=2, timeout_s=60.0)
    assert run.summary.discarded == {"not finite": 1}
    assert torch.isfinite(run.state_dict["weight"]).all()


def changing(worker: ps.Worker, on: str) -> None:
    """Each step does something else with gradients that are large enough to be copied while the backward pass goes on."""
    device = lazy() if on == "lazy" else torch.device(on)
    model = nn.Linear(1 << 17, 2).to(device)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), None)
    for step in range(6):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(2 if step == 1 else 1):
            model(torch.randn(3, 1 << 17).to(device)).square().mean().backward()
        if step == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        elif step == 3:  # not counted as a write
            model.weight.grad.data.mul_(0.5)
        elif step == 4:
            model.weight.grad = model.weight.grad * 0.5
        optimizer.step()


@pytest.mark.few(1)
@pytest.mark.parametrize("device", DEVICES)
def test_what_the_loop_does_with_large_gradients_is_what_counts(device: str) -> None:
    here, there = (
        ps.run(partial(changing, on=on), "sync_sgd", workers=1, seed=2, timeout_s=60.0) for on in ("cpu", device)
    )
    for name, tensor in here.state_dict.items():
        assert torch.allclose(there.state_dict[name], tensor, atol=1e-5), name


def test_evaluation_runs_on_the_cpu() -> None:
    def weight(model: nn.Module) -> dict[str, float]:
        (only,) = model.parameters()
        return {"on_cpu": float(only.is_cpu), "weight": only[0, 0].item()}

    run = ps.run(partial(one_step, on="lazy"), "sync_sgd", workers=2, evaluate=weight, timeout_s=60.0)
    assert run.history[-1].metrics == {"on_cpu": 1.0, "weight": pytest.approx(1 - 0.1 * 1.5 * 2.5)}


WAITS: list[dict[str, int]] = []
"""Of each step, where the host waited."""
TOLD: list[str] = []
"""The messages that a worker told the server."""


def with_streams(worker: ps.Worker) -> tuple[FakeStreams, nn.Module, torch.optim.Optimizer]:
    """A model on a device whose copies have a stream of their own, as on a GPU, and are late. All gradients are copied early.
    Whenever the worker says something to the server, all copies are over."""
    replica.copies_for = lambda device, pieces: FakeCopies(FakeStreams(), device)  # type: ignore[assignment]
    early.EARLY_BYTES = 0
    model = nn.Linear(4, 2).to(lazy())
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), None)
    copies, bell = worker._exchange.replica._copies, worker._exchange.doorbell
    send = bell.send

    def checked(message: Any) -> None:
        assert not copies._pending, message
        TOLD.append(type(message).__name__)
        send(message)

    bell.send = checked
    return copies.fakes, model, optimizer


def counting(worker: ps.Worker) -> None:
    """The gradients of every other step are changed after they were copied."""
    streams, model, optimizer = with_streams(worker)
    rows, factor = torch.ones(3, 4).to(lazy()), torch.full((), 0.5).to(lazy())
    for step in range(6):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        with Synchronisations() as waits:
            streams.waited = partial(waits.waited, "event")
            model(rows).square().sum().backward()
            if step % 2:
                model.weight.grad.mul_(factor)
            optimizer.step()
        WAITS.append(dict(waits.counts))


def own_device(worker: ps.Worker) -> str:
    one_step(worker, on="cpu")
    return str(worker.device)


@pytest.mark.parametrize(("gpus", "devices"), [(0, ["cpu"] * 3), (2, ["cuda:0", "cuda:1", "cuda:0"])])
def test_workers_take_a_hosts_gpus_by_turns(gpus: int, devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert ps.run(own_device, "sync_sgd", workers=3, engine=ps.Simulated("uniform")).returned == devices


def telling(worker: ps.Worker) -> None:
    """It has nothing to send at first: the version that it began from was not copied yet when it says so."""
    _, model, optimizer = with_streams(worker)
    worker.contribute(samples=0)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(3, 4).to(lazy())).square().sum().backward()
        optimizer.step()


ONCE, NEVER = {"event": 1}, dict[str, int]()
EXCHANGES = "(ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(every=3), ps.diloco(every=3))"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("train", "strategies", "shown", "wanted"),
    [
        ("partial(one_step, on='lazy')", "[ps.sync_sgd()]", "run.state_dict['weight'].tolist()", [[0.625] * 4]),
        pytest.param(
            "counting", EXCHANGES, "WAITS", [ONCE] * 12 + [NEVER, NEVER, ONCE] * 4, marks=pytest.mark.thorough
        ),
        ("telling", "[ps.async_local_sgd(every=2)]", "TOLD", ["Contribution"] * 3 + ["Farewell"]),
    ],
    ids=["workers share a device", "it waits once an exchange", "copies are over before a message"],
)
def test_in_one_process(train: str, strategies: str, shown: str, wanted: Any) -> None:
    """Here a new one. In no local step does the host wait for a device. From a message on, the slot is read and the version may
    be overwritten."""
    program = (
        "import json, plesio as ps; from integration.test_devices import *\n"
        f"for strategy in {strategies}:\n"
        f"    run = ps.run({train}, strategy, workers={2 if 'one_step' in train else 1}, engine=ps.Simulated('uniform'))\n"
        f"print(json.dumps({shown}))"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([*PYTHON, "-c", program], cwd=tests, capture_output=True, text=True, timeout=280)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == wanted


def spread(worker: ps.Worker) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(lazy()))
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("train", "strategy", "words"),
    [
        (
            partial(one_step, on="lazy"),
            "hogwild",
            "which is the CPU's, and this model is on lazy:0; every other strategy",
        ),
        (partial(one_step, on="meta"), "sync_sgd", r"no memory \(device meta\)"),
        (spread, "sync_sgd", r"spread over 2 devices \(0.bias is on cpu, 1.bias is on lazy:0\)"),
    ],
    ids=["hogwild", "meta", "two"],
)
def test_a_device_that_cannot_be_is_refused(train: Any, strategy: str, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(train, strategy, workers=1, timeout_s=60.0)


def test_the_generator_of_the_models_own_device_is_seeded_for_each_contribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[object] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(seeds.append(device)))
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    monkeypatch.setattr(seeding, "_devices", {})
    seeding.seed_device(torch.device("cpu"))
    seeding.seed_step(0, 1, 2)
    assert not seeds
    seeding.seed_device(torch.device("cuda", 1))
    seeding.seed_step(0, 1, 2)
    assert seeds == [torch.device("cuda", 1), seeding.step_seed(0, 1, 2)]
