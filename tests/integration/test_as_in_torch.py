"""What training loops expect of torch beyond the usual loop; each would fail silently."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import subprocess
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.programs import PYTHON

EVERY = ["sync_sgd", "async_sgd", "local_sgd", ps.allreduce("torch"), "hogwild"]


def line(width: int = 4) -> nn.Linear:
    model = nn.Linear(width, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def writing(worker: ps.Worker, width: int, steps: int) -> None:
    """Clip the weights after each step, where that is only warned of."""
    model = line(width)
    warnings.simplefilter("ignore")
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None, on_write="warn")
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
        model.weight.data.clamp_(-0.001, 0.001)


@pytest.mark.parametrize("width", [4, 1 << 19])
@pytest.mark.parametrize("workers", [1, 2])
def test_in_place_writes_stay_in_the_worker(width: int, workers: int) -> None:
    """Large models are read from the server's memory; other workers and versions see no writes."""
    run = ps.run(partial(writing, width=width, steps=5), ps.sync_sgd(), workers=workers, timeout_s=30.0)
    expected = torch.full((1, width), 1.0 - 5 * 0.01)
    assert torch.allclose(run.state_dict["weight"], expected)


class Counting(nn.Module):
    """Keeps a statistic as many people write it: a new tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = line()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return self.linear(rows)


def counting(worker: ps.Worker) -> None:
    model = Counting()
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", EVERY)
def test_a_buffer_reassigned_in_forward_is_kept(strategy: str) -> None:
    run = ps.run(counting, strategy, workers=1, timeout_s=30.0)
    assert run.state_dict["seen"] == 6


def scheduled(worker: ps.Worker) -> None:
    """Worker 0 keeps its rate; the other one takes none."""
    model = line()
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), None)
    for _ in range(10):
        if worker.rank:
            optimizer.param_groups[0]["lr"] = 0.0
        optimizer.zero_grad()
        (0.1 * model(torch.ones(1, 4)).sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.async_sgd("plain"), ps.bounded_staleness(4)])
def test_contributions_are_folded_at_their_workers_lr(strategy: ps.Strategy) -> None:
    """As when one worker is still warming up."""
    run = ps.run(scheduled, strategy, workers=2, timeout_s=30.0)
    assert torch.allclose(run.state_dict["weight"], torch.full((1, 4), 1.0 - 10 * 0.1 / 2))


class Warm(torch.optim.SGD):
    """An optimizer that keeps an argument out of its defaults; `kept`: under the argument's name."""

    def __init__(self, params: object, lr: float = 0.1, warm: int = 1, forgets: bool = False) -> None:
        super().__init__(params, lr=lr)  # type: ignore[arg-type]
        self.warm = warm
        self.left = warm
        if not forgets:
            self.forgets = forgets

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            super().step()


def warming(worker: ps.Worker, forgets: bool = False) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, Warm(model.parameters(), warm=3, forgets=forgets), None)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", EVERY)
def test_the_server_builds_the_optimizer_with_all_arguments(strategy: str) -> None:
    run = ps.run(warming, strategy, workers=1, timeout_s=30.0)
    assert torch.allclose(run.state_dict["weight"], torch.full((1, 4), 1.0 - 2 * 0.1))


def test_an_optimizer_with_unknown_arguments_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="nothing tells which 'forgets' it was given"):
        ps.run(partial(warming, forgets=True), ps.sync_sgd(), workers=1, timeout_s=30.0)


class Around(torch.optim.Optimizer):
    """An optimizer that makes its inner one of a class, and keeps that under the argument's name, as most of SAM's kind do."""

    def __init__(self, params: object, inner: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__(params, {"lr": 0.1})  # type: ignore[arg-type]
        self.inner = inner(self.param_groups)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


class Called(Around):
    """One that keeps something else under that name: its maker's."""

    def __init__(self, params: object, inner: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__(params, inner)
        self.stepped, self.inner = self.inner, "SGD"  # type: ignore[assignment]

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.stepped.step()


def around(worker: ps.Worker, kind: type[Around]) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, kind(model.parameters()), None)
    steps(model, optimizer, lambda _: 1.0)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Around, r"(?s)the argument 'inner' of Around is SGD .* cannot be sent .*, such as local_sgd$"),
        (Called, r"Called cannot be built at the server .*, such as local_sgd$"),
    ],
)
def test_an_optimizer_the_server_cannot_build_is_refused_with_a_remedy(kind: type[Around], words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(around, kind=kind), ps.sync_sgd(), workers=1, timeout_s=30.0)
    assert ps.run(partial(around, kind=kind), ps.local_sgd(), workers=1, timeout_s=30.0).steps == 8


def own_class(worker: ps.Worker) -> None:
    class Local(torch.optim.SGD):
        """Known to nobody but this worker."""

    model = line()
    model, optimizer, _ = worker.prepare(model, Local(model.parameters(), lr=0.1), None)
    steps(model, optimizer, lambda _: 1.0)


def test_a_class_that_the_server_does_not_find_is_refused_by_name() -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"finds no optimizer .*at the top of a module .*local_sgd$"
    ) as raised:
        ps.run(own_class, ps.sync_sgd(), workers=1, timeout_s=30.0)
    assert f"{__name__}.own_class.<locals>.Local" in str(raised.value)
    for strategy in (ps.local_sgd(), ps.allreduce("torch")):
        assert ps.run(own_class, strategy, workers=1, timeout_s=30.0).steps == 8


SCRIPT = """
import torch
import plesio as ps


class Mine(torch.optim.SGD):
    pass


def train(worker):
    model = torch.nn.Linear(4, 1)
    model, optimizer, _ = worker.prepare(model, Mine(model.parameters(), lr=0.1), None)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    for engine in ("local", ps.Simulated("uniform")):
        print(ps.run(train, ps.async_sgd(), workers=2, engine=engine, timeout_s=30.0).steps)
"""


def test_a_class_of_the_script_steps_at_the_server(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([*PYTHON, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["6", "6"], done.stderr


class Counted(torch.optim.Optimizer):
    """Warms up over five steps: counts them in its group, and keeps the rates it saw there, too."""

    def __init__(self, params: object, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "step": 0, "seen": []})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            group["seen"].append(group["lr"])
            rate = min(1.0, group["step"] / 5) * sum(group["seen"]) / len(group["seen"])
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=rate)


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, factor: Callable[[int], float], first: int = 0, end: int = 8
) -> None:
    """Steps under a schedule."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(end):
        if step >= first:
            optimizer.zero_grad()
            model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
        schedule.step()


def counted(worker: ps.Worker, end: int = 8) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, Counted(model.parameters(), lr=0.01), None)
    steps(model, optimizer, lambda step: 0.9**step, worker.steps_before, end)


@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd"])
def test_values_kept_in_param_groups_survive_schedules_and_resume(strategy: str, tmp_path: Path) -> None:
    model = line()
    steps(model, Counted(model.parameters(), lr=0.01), lambda step: 0.9**step)
    run = ps.run(counted, strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)
    kept = {"runs": tmp_path, "checkpoint": ps.Checkpoint(), "workers": 1, "timeout_s": 30.0}
    half = ps.run(partial(counted, end=4), strategy, **kept)  # type: ignore[arg-type]
    assert not torch.equal(half.state_dict["weight"], model.weight)
    run = ps.run(counted, strategy, resume=half.folder, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)


def by_numpy(model: nn.Module) -> torch.optim.Optimizer:
    """NumPy's numbers for settings."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=np.logspace(-2, -1, 3)[1],
        betas=(np.float64(0.8), 0.99),  # type: ignore[arg-type]
        weight_decay=np.float32(0.1),  # type: ignore[arg-type]
    )


def cosine(step: int) -> float:
    return 0.5 * (1 + np.cos(np.pi * step / 8))  # type: ignore[no-any-return]


def numbered(worker: ps.Worker) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, by_numpy(model), None)
    steps(model, optimizer, cosine)


@pytest.mark.parametrize("strategy", EVERY)
def test_numpy_numbers_are_accepted_as_settings(strategy: str) -> None:
    model = line()
    steps(model, by_numpy(model), cosine)
    run = ps.run(numbered, strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)


def odd_setting(worker: ps.Worker) -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["tags"] = (1j, 2)
    model, optimizer, _ = worker.prepare(model, optimizer, None)
    steps(model, optimizer, lambda _: 1.0)


def test_settings_that_cannot_be_sent_are_named() -> None:
    ps.run(odd_setting, ps.local_sgd(), workers=1, timeout_s=30.0)
    words = r"the setting 'tags' in group 0 of SGD is \(1j, 2\) \(tuple\).*allowed are numbers.*such as local_sgd"
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(odd_setting, ps.sync_sgd(), workers=1, timeout_s=30.0)


def halve(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def hooked(worker: ps.Worker) -> None:
    model = line()
    user = torch.optim.SGD(model.parameters(), lr=0.1)
    user.register_step_pre_hook(halve)
    model, optimizer, _ = worker.prepare(model, user, None)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", EVERY)
def test_step_pre_hooks_may_change_gradients(strategy: str) -> None:
    run = ps.run(hooked, strategy, workers=1, timeout_s=30.0)
    assert torch.allclose(run.state_dict["weight"], torch.full((1, 4), 1.0 - 4 * 0.1 * 0.5))


def centre(model: nn.Module, optimizer: torch.optim.Optimizer, to_none: bool) -> None:
    """Gradients are changed by `.grad.data = ...`, as many people centre or scale them."""
    for step in range(6):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.arange(4.0) + step).square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data = parameter.grad.data - parameter.grad.data.mean()
        optimizer.step()


def centred(worker: ps.Worker, to_none: bool) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001), None)
    centre(model, optimizer, to_none)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("strategy", EVERY)
def test_gradient_data_may_be_replaced(strategy: str, to_none: bool) -> None:
    model = line()
    centre(model, torch.optim.SGD(model.parameters(), lr=0.001), to_none)
    run = ps.run(partial(centred, to_none=to_none), strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)


def hooked_for_all(worker: ps.Worker) -> None:
    """Hooks for every optimizer of the process: they see the user's, once a step, and nobody else's."""
    seen: list[tuple[str, torch.optim.Optimizer]] = []
    model = line()
    user = torch.optim.Adam(model.parameters(), lr=0.1)
    model, optimizer, _ = worker.prepare(model, user, None)
    handles = [
        register_optimizer_step_pre_hook(lambda one, _args, _kwargs: seen.append(("before", one))),
        register_optimizer_step_post_hook(lambda one, _args, _kwargs: seen.append(("after", one))),
    ]
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    for handle in handles:
        handle.remove()
    assert seen == [("before", user), ("after", user)] * 3


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["processes", "simulated"])
@pytest.mark.parametrize("strategy", EVERY)
def test_global_optimizer_hooks_see_each_step_once(strategy: str, engine: str | ps.Simulated) -> None:
    ps.run(hooked_for_all, strategy, workers=1, timeout_s=30.0, engine=engine)


@pytest.mark.parametrize("strategy", ["sync_sgd", "local_sgd"])
def test_state_dict_hooks_of_the_user_are_called(strategy: str) -> None:
    def train(worker: ps.Worker) -> None:
        model = line()
        user = torch.optim.SGD(model.parameters(), lr=0.1)
        user.register_state_dict_pre_hook(lambda one: seen.append(one is user))
        user.register_state_dict_post_hook(lambda one, state: {**state, "mine": one is user})
        model, optimizer, _ = worker.prepare(model, user, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert optimizer.state_dict()["mine"] is True
        steps(model, optimizer, lambda _: 1.0)

    seen: list[bool] = []
    ps.run(train, strategy, workers=1, timeout_s=30.0, engine=ps.Simulated("uniform"))
    assert seen == [True]


def rows(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(samples)).repeat(4, 1).T)


def endless(worker: ps.Worker) -> None:
    model = line()
    loader = DataLoader(rows(64), batch_size=8)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6), loader)
    for _ in itertools.count():
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()


@pytest.mark.parametrize("strategy", EVERY)
def test_an_endless_loop_ends_with_the_run(strategy: str) -> None:
    run = ps.run(endless, strategy, workers=2, until=ps.Until(steps=50), timeout_s=30.0)
    assert {one.left for one in run.workers} == {"finished"}
    assert run.state_dict
    assert not run.incidents


class Doubling(DataLoader):  # type: ignore[type-arg]
    def __iter__(self):  # type: ignore[no-untyped-def]
        for (batch,) in super().__iter__():
            yield 2 * batch


def own_iteration(worker: ps.Worker) -> None:
    model = line()
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), Doubling(rows(8)))


def test_a_loader_with_its_own_iter_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="Doubling has an __iter__ of its own"):
        ps.run(own_iteration, ps.sync_sgd(), workers=1, timeout_s=30.0)


KEPT: list[nn.Linear] = []


def going_on(worker: ps.Worker) -> None:
    model = line()
    KEPT.append(model)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def test_after_the_run_any_optimizer_steps_on_its_model() -> None:
    ps.run(going_on, "sync_sgd", workers=1, engine=ps.Simulated("uniform"))
    model = KEPT.pop()
    before = model.weight.detach().clone()
    model(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.weight, before)


def forgetful(worker: ps.Worker) -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker.prepare(model, optimizer, None)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def restarted(worker: ps.Worker) -> None:
    """A new optimizer over the prepared model."""
    model = line()
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    model(torch.ones(1, 4)).sum().backward()
    torch.optim.Adam(model.parameters()).step()


@pytest.mark.parametrize("strategy", ["local_sgd", "sync_sgd"])
@pytest.mark.parametrize(("train", "kind"), [(forgetful, "SGD"), (restarted, "Adam")])
def test_a_step_of_an_optimizer_that_was_not_prepared_is_refused(train: Any, kind: str, strategy: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=rf"step\(\) of {kind}, .* this worker would train alone"):
        ps.run(train, strategy, workers=2, engine=ps.Simulated("uniform"))


def freezing(worker: ps.Worker) -> None:
    model = nn.Sequential(line(), nn.Linear(1, 1))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), None)
    model[0].requires_grad_(False)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def test_a_tensor_frozen_after_prepare_is_not_moved_by_decay() -> None:
    run = ps.run(freezing, ps.sync_sgd(), workers=1, timeout_s=30.0)
    assert run.missing_gradients == 3
    assert torch.equal(run.state_dict["0.weight"], line().weight)


class Scheduled(torch.optim.SGD):
    def evaluate(self) -> str:
        return "averaged"


def with_a_method(worker: ps.Worker) -> None:
    model = line()
    model, optimizer, _ = worker.prepare(model, Scheduled(model.parameters(), lr=0.1), None)
    if worker.rank == 0:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert optimizer.evaluate() == "averaged"  # type: ignore[attr-defined]


def test_optimizer_methods_act_only_where_it_steps() -> None:
    ps.run(with_a_method, ps.local_sgd(), workers=1, engine=ps.Simulated("uniform"))
    with pytest.raises(ps.ConfigurationError, match=r"optimizer\.evaluate\(\): Scheduled steps at the server"):
        ps.run(with_a_method, ps.sync_sgd(), workers=1, engine=ps.Simulated("uniform"))


def kept(worker: ps.Worker, folder: str) -> None:
    torch.manual_seed(0)  # one worker draws as its script does, and some weights diverge at this rate
    model = nn.Sequential(line(), nn.Linear(1, 1))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    steps(model, optimizer, lambda _: 1.0)
    torch.save(model, Path(folder, "model"))
    inputs = torch.ones(1, 4)
    for twin in (copy.deepcopy(model), torch.load(Path(folder, "model"), weights_only=False)):
        assert torch.equal(twin(inputs), model(inputs))


@pytest.mark.parametrize("strategy", [*EVERY, ps.first_of(1)])
def test_a_saved_prepared_model_loads_without_plesio(strategy: str | ps.Strategy, tmp_path: Path) -> None:
    ps.run(partial(kept, folder=str(tmp_path)), strategy, workers=1, timeout_s=30.0)
    with zipfile.ZipFile(tmp_path / "model") as saved:
        assert b"plesio" not in saved.read("model/data.pkl")


def compiled(worker: ps.Worker) -> None:
    model = nn.Sequential(line(), nn.Linear(1, 1))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    whole: Callable[[torch.Tensor], torch.Tensor] = torch.compile(model, fullgraph=True, backend="eager")
    for _ in range(3):
        with worker.step():
            optimizer.zero_grad()
            whole(torch.ones(1, 4)).sum().backward()
            optimizer.step()


def test_a_fullgraph_compiled_model_trains_with_cancellation() -> None:
    assert ps.run(compiled, ps.first_of(1), workers=1, timeout_s=30.0).folded == 3


def visiting(worker: ps.Worker, folder: str) -> None:
    """Worker 1 dies before it took part; the others note what they saw."""
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model = line()
    model, optimizer, loader = worker.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-6), DataLoader(rows(96), batch_size=4)
    )
    with Path(folder, str(worker.rank)).open("w") as seen:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            print(*batch[:, 0].int().tolist(), file=seen)


@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "local_sgd"])
def test_a_worker_dead_before_training_leaves_its_data_to_the_others(strategy: Any, tmp_path: Path) -> None:
    run = ps.run(partial(visiting, folder=str(tmp_path)), strategy, workers=3, timeout_s=30.0)
    seen = sorted(int(number) for name in "02" for number in (tmp_path / name).read_text().split())
    assert seen == list(range(96))
    assert run.batches_unvisited == 0
    assert any(one.worker == 1 and "worker 1 died; the others go on" in one.what for one in run.incidents)
