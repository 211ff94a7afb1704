"""A training loop does not wait for its device: not in a local step, and in an exchange only for what is exchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.errors import ConfigurationError
from plesio.server.checkpoints import latest
from plesio.server.judge import as_metrics
from plesio.worker import metrics
from support.devices import lazy
from support.synchronisations import Synchronisations

EVERY = 2


def network(on: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    return model.to(lazy() if on == "lazy" else on)


def counting(worker: ps.Worker) -> list[dict[str, int]]:
    """What each of two rounds' steps, with their backward passes and logs, waited for."""
    metrics.LOG_S = inf
    model = network("lazy")
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None)
    rows = torch.randn(8, 4).to(lazy())
    waited = []
    for _ in range(2 * EVERY):
        with Synchronisations() as waits:
            optimizer.zero_grad()
            loss = model(rows).square().mean()
            loss.backward()
            optimizer.step()
            worker.log(loss=loss)
        waited.append(dict(waits.counts))
    return waited


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", [ps.local_sgd(every=EVERY), ps.diloco(every=EVERY)], ids=lambda one: one.name)
def test_a_local_step_waits_for_nothing(strategy: ps.Strategy) -> None:
    (waited,) = ps.run(counting, strategy, workers=1, timeout_s=60.0).returned
    for step, waits in enumerate(waited, start=1):
        if step % EVERY:
            assert waits == {}, step
        else:
            assert set(waits) <= {"device to host", "host to device"}


@pytest.mark.thorough
def test_an_optimizers_state_leaves_the_device_for_a_checkpoint_alone(tmp_path: Path) -> None:
    strategy = ps.local_sgd(every=EVERY)
    without = ps.run(counting, strategy, workers=1, timeout_s=60.0)
    kept = ps.run(counting, strategy, workers=1, timeout_s=60.0, runs=tmp_path, checkpoint=ps.Checkpoint())
    assert kept.returned == without.returned, "what its exchanges copied"
    (held,) = latest(kept.folder).path.glob("worker-*")
    states = torch.load(held, weights_only=True)["optimizer"].values()
    assert [one["momentum_buffer"].shape for one in states] == [one.shape for one in network("cpu").parameters()]
    resumed = ps.run(counting, strategy, workers=1, timeout_s=60.0, runs=tmp_path, resume=kept.folder)
    assert not [one for one in resumed.incidents if "begins anew" in one.what]


def poisoned(worker: ps.Worker, on: str, make: Callable[..., torch.optim.Optimizer]) -> bool:
    """Two rounds; in a step of the first one, one number of one gradient is a NaN. Whether the optimizer's state has none."""
    model = network(on)
    model, optimizer, _ = worker.prepare(model, make(model.parameters(), lr=0.1), None)
    for step in range(3 * EVERY):
        optimizer.zero_grad()
        model(torch.randn(8, 4).to(next(model.parameters()).device)).square().mean().backward()
        if step == 0:
            model[0].weight.grad[0, 1] = nan
        optimizer.step()
    kept = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return all(bool(one.isfinite().all()) for one in kept)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*not finite.*:RuntimeWarning")
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_round_with_a_non_finite_step_does_not_count(make: Callable[..., torch.optim.Optimizer]) -> None:
    here, there = (
        ps.run(partial(poisoned, on=on, make=make), ps.local_sgd(every=EVERY), workers=1, seed=4, timeout_s=60.0)
        for on in ("cpu", "lazy")
    )
    assert here.returned == there.returned == [True]
    assert here.summary.discarded == there.summary.discarded == {"not finite": 1}
    assert here.summary.folded == there.summary.folded == 2
    for name, tensor in here.state_dict.items():
        assert tensor.isfinite().all()
        assert there.state_dict[name].isfinite().all()
        if make is torch.optim.SGD:  # has no state that a step by zeros would move
            assert torch.allclose(there.state_dict[name], tensor, atol=1e-6)


def with_a_rate(worker: ps.Worker, on: str) -> list[int]:
    """Its learning rate is a tensor that is written to before the third step of four. How often each step read a number."""
    model = network(on)
    rate = torch.tensor(0.1).to(next(model.parameters()).device)
    given: Any = torch.optim.Adam(model.parameters(), lr=rate, capturable=on != "cpu")
    model, optimizer, _ = worker.prepare(model, given, None)
    rows, reads = torch.randn(8, 4).to(rate.device), []
    for step in range(4):
        if step == 2:
            rate.fill_(0.01)
        model(rows).square().mean().backward()
        with Synchronisations() as waits:
            optimizer.step()
        reads.append(waits.counts["_local_scalar_dense"])
        optimizer.zero_grad()
    return reads


def test_a_learning_rate_on_a_device_is_read_when_it_was_written() -> None:
    here, there = (
        ps.run(partial(with_a_rate, on=on), "sync_sgd", workers=1, seed=4, timeout_s=60.0) for on in ("cpu", "lazy")
    )
    assert [[bool(reads) for reads in one] for one in there.returned] == [[True, False, True, False]]
    for name, tensor in here.state_dict.items():
        assert torch.allclose(there.state_dict[name], tensor, atol=1e-6)


class Sent:
    """A context that keeps what was sent on."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(steps=0, loss=nan)
        self.sent: list[dict[str, float]] = []

    def now_s(self) -> float:
        return 0.0

    def logged(self, steps: int, means: dict[str, float]) -> None:
        self.sent.append(means)


def test_logged_tensors_are_read_when_they_are_sent_on() -> None:
    context: Any = Sent()
    logs = metrics.Metrics(context)
    loss, count = torch.tensor([2.0]).to(lazy()), torch.tensor(1 << 40).to(lazy())
    with Synchronisations() as waits:
        for _ in range(3):
            logs.add({"loss": loss, "count": count, "plain": 1.5, "here": torch.tensor(0.5)})
            loss.mul_(2)  # what was logged is what it was
        assert waits.total == 0
        assert isnan(context.state.loss)
        logs.flush()
        assert waits.total == 2, "one for each name"
    assert context.sent == [{"loss": (2 + 4 + 8) / 3, "count": 1 << 40, "plain": 1.5, "here": 0.5}]
    assert context.state.loss == 8
    logs.add({"loss": torch.tensor(3.0)})
    assert context.state.loss == 3


def test_what_is_no_number_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"worker.log\(a=...\): int is not one number \(int too large"):
        metrics.number_of("worker.log", "a", 10**400)
    with pytest.raises(ConfigurationError, match="evaluate returned"):
        as_metrics({"a": 10**400})
    with pytest.raises(ConfigurationError, match=r"worker.log\(loss=...\): Tensor is not one number"):
        metrics.Metrics(Sent()).add({"loss": torch.ones(2).to(lazy())})  # type: ignore[arg-type]
