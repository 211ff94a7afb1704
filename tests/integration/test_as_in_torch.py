"""What training loops expect of torch beyond the usual loop; each would fail silently. Habits of a loop: `test_habits`."""

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

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.long_forms import but_thorough, in_turn
from support.loops import Counted
from support.programs import PYTHON

EVERY = ["sync_sgd", "async_sgd", "local_sgd", ps.allreduce("torch"), "hogwild"]
SIMULATED = ps.Simulated("uniform")


def line(width: int = 4) -> nn.Linear:
    model = nn.Linear(width, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def descend(model: Any, optimizer: Any, steps: int = 8) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()


def stepping(worker: ps.Worker, build: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    model = line()
    descend(*worker.prepare(model, build(model)))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


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


@pytest.mark.parametrize(("width", "workers"), in_turn([4, 1 << 19], [1, 2], later=pytest.mark.thorough))
def test_in_place_writes_stay_in_the_worker(width: int, workers: int) -> None:
    """Large models are read from the server's memory; other workers and versions see no writes."""
    run = ps.run(partial(writing, width=width, steps=5), ps.sync_sgd(), workers=workers, timeout_s=30.0)
    expected = torch.full((1, width), 1.0 - 5 * 0.01)
    assert torch.allclose(run.state_dict["weight"], expected)


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


@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.async_sgd("plain"), ps.bounded_staleness(4)], ids=str)
def test_contributions_are_folded_at_their_workers_lr(strategy: ps.Strategy) -> None:
    """As when one worker is still warming up."""
    run = ps.run(scheduled, strategy, workers=2, timeout_s=30.0)
    assert torch.allclose(run.state_dict["weight"], torch.full((1, 4), 1.0 - 10 * 0.1 / 2))


# An optimizer that the server cannot build


class Forgets(torch.optim.SGD):
    """Keeps nothing of what it was given."""

    def __init__(self, params: Any, forgets: bool = False) -> None:
        super().__init__(params, lr=0.1)


class Around(torch.optim.Optimizer):
    """Makes its inner one of a class, and keeps that under the argument's name, as most of SAM's kind do."""

    def __init__(self, params: Any, inner: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__(params, {"lr": 0.1})
        self.stepped = self.inner = inner(self.param_groups)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.stepped.step()


class Called(Around):
    """Keeps something else under that name: its maker's."""

    def __init__(self, params: Any, inner: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__(params, inner)
        self.inner = "SGD"  # type: ignore[assignment]


def local(model: nn.Module) -> torch.optim.Optimizer:
    class Local(torch.optim.SGD):
        """Known to nobody but this worker."""

    return Local(model.parameters(), lr=0.1)


def odd_setting(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = sgd(model)
    optimizer.param_groups[0]["tags"] = (1j, 2)
    return optimizer


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda model: Forgets(model.parameters(), forgets=True), "nothing tells which 'forgets' it was given"),
        (
            lambda model: Around(model.parameters()),
            r"(?s)the argument 'inner' of Around is SGD .* cannot be sent .*, such as local_sgd$",
        ),
        (lambda model: Called(model.parameters()), r"Called cannot be built at the server .*, such as local_sgd$"),
        (local, r"\.local\.<locals>\.Local is to step, finds no optimizer .*at the top of a module .*local_sgd$"),
        (
            odd_setting,
            r"the setting 'tags' in group 0 of SGD is \(1j, 2\) \(tuple\).*allowed are numbers.*such as local_sgd",
        ),
    ],
    ids=["forgets", "around", "called", "local", "odd setting"],
)
def test_an_optimizer_the_server_cannot_build_is_refused_with_a_remedy(build: Any, words: str) -> None:
    train = partial(stepping, build=build)
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(train, ps.sync_sgd(), workers=1, timeout_s=30.0)
    for strategy in (ps.local_sgd(), ps.allreduce("torch")):
        assert ps.run(train, strategy, workers=1, engine=SIMULATED).steps == 8


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


@pytest.mark.thorough
def test_a_class_of_the_script_steps_at_the_server(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([*PYTHON, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.stdout.split() == ["6", "6"], done.stderr


def counted(worker: ps.Worker | None, end: int = 8) -> nn.Module:
    model: Any = line()
    optimizer: Any = Counted(model.parameters(), lr=0.01)
    if worker is not None:
        model, optimizer = worker.prepare(model, optimizer)
    for step in range(0 if worker is None else worker.steps_before, end):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.9**step
        descend(model, optimizer, 1)
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd"])
def test_values_kept_in_param_groups_survive_a_resume(strategy: str, tmp_path: Path) -> None:
    half = ps.run(
        partial(counted, end=4), strategy, workers=1, timeout_s=30.0, runs=tmp_path, checkpoint=ps.Checkpoint()
    )
    run = ps.run(counted, strategy, resume=half.folder, workers=1, timeout_s=30.0)
    for ended, steps in ((half, 4), (run, 8)):
        assert torch.equal(ended.state_dict["weight"], counted(None, steps).weight)


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


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", but_thorough(EVERY, {"local_sgd", "hogwild"}), ids=str)
def test_an_endless_loop_ends_with_the_run(strategy: Any) -> None:
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
    worker.prepare(model, sgd(model), Doubling(rows(8)))


def forgetful(worker: ps.Worker) -> None:
    model = line()
    optimizer = sgd(model)
    worker.prepare(model, optimizer, None)
    descend(model, optimizer)


def restarted(worker: ps.Worker) -> None:
    """A new optimizer over the prepared model."""
    model = line()
    worker.prepare(model, sgd(model), None)
    descend(model, torch.optim.Adam(model.parameters()))


@pytest.mark.parametrize("strategy", ["local_sgd", "sync_sgd"])
@pytest.mark.parametrize(
    ("train", "words"),
    [
        (own_iteration, "Doubling has an __iter__ of its own"),
        (forgetful, r"step\(\) of SGD, .* this worker would train alone"),
        (restarted, r"step\(\) of Adam, .* this worker would train alone"),
    ],
)
def test_what_would_go_past_the_run_is_refused(train: Any, words: str, strategy: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(train, strategy, workers=2, engine=SIMULATED)


def test_after_the_run_any_optimizer_steps_on_its_model() -> None:
    kept: list[nn.Linear] = []

    def train(worker: ps.Worker) -> None:
        kept.append(line())
        descend(*worker.prepare(kept[0], sgd(kept[0])), 1)

    ps.run(train, "sync_sgd", workers=1, engine=SIMULATED)
    before = kept[0].weight.detach().clone()
    descend(kept[0], sgd(kept[0]), 1)
    assert not torch.equal(kept[0].weight, before)


def freezing(worker: ps.Worker) -> None:
    model = nn.Sequential(line(), nn.Linear(1, 1))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), None)
    model[0].requires_grad_(False)
    descend(model, optimizer, 3)


def test_a_tensor_frozen_after_prepare_is_not_moved_by_decay() -> None:
    run = ps.run(freezing, ps.sync_sgd(), workers=1, engine=SIMULATED)
    assert run.missing_gradients == 3
    assert torch.equal(run.state_dict["0.weight"], line().weight)


class Scheduled(torch.optim.SGD):
    def evaluate(self) -> str:
        return "averaged"


def with_a_method(worker: ps.Worker) -> None:
    model = line()
    model, optimizer = worker.prepare(model, Scheduled(model.parameters(), lr=0.1))
    descend(model, optimizer, 1)
    assert optimizer.evaluate() == "averaged"  # type: ignore[attr-defined]


def test_optimizer_methods_act_only_where_it_steps() -> None:
    ps.run(with_a_method, ps.local_sgd(), workers=1, engine=SIMULATED)
    with pytest.raises(ps.ConfigurationError, match=r"optimizer\.evaluate\(\): Scheduled steps at the server"):
        ps.run(with_a_method, ps.sync_sgd(), workers=1, engine=SIMULATED)


def saving(worker: ps.Worker, folder: str) -> None:
    model = nn.Sequential(line(), nn.Tanh())
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    descend(model, optimizer)
    torch.save(model, Path(folder, "model"))
    inputs = torch.ones(1, 4)
    for twin in (copy.deepcopy(model), torch.load(Path(folder, "model"), weights_only=False)):
        assert torch.equal(twin(inputs), model(inputs))


@pytest.mark.parametrize(
    "strategy", but_thorough([*EVERY, ps.first_of(1)], {"sync_sgd", "allreduce(over=torch)"}), ids=str
)
def test_a_saved_prepared_model_loads_without_plesio(strategy: Any, tmp_path: Path) -> None:
    ps.run(partial(saving, folder=str(tmp_path)), strategy, workers=1, timeout_s=30.0)
    with zipfile.ZipFile(tmp_path / "model") as saved:
        assert b"plesio" not in saved.read("model/data.pkl")


def compiled(worker: ps.Worker) -> None:
    model = nn.Sequential(line(), nn.Linear(1, 1))
    model, optimizer, _ = worker.prepare(model, sgd(model), None)
    whole: Callable[[torch.Tensor], torch.Tensor] = torch.compile(model, fullgraph=True, backend="eager")
    for _ in range(3):
        with worker.step():
            descend(whole, optimizer, 1)


@pytest.mark.thorough
def test_a_fullgraph_compiled_model_trains_with_cancellation() -> None:
    assert ps.run(compiled, ps.first_of(1), workers=1, timeout_s=30.0).folded == 3


def visiting(worker: ps.Worker, folder: str) -> None:
    """Worker 1 dies before it took part; the others note what they saw."""
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model = line()
    model, optimizer, loader = worker.prepare(model, sgd(model), DataLoader(rows(96), batch_size=4))
    with Path(folder, str(worker.rank)).open("w") as seen:
        for (batch,) in loader:
            optimizer.zero_grad()
            (1e-6 * model(batch).mean()).backward()
            optimizer.step()
            print(*batch[:, 0].int().tolist(), file=seen)


@pytest.mark.parametrize("strategy", but_thorough(["sync_sgd", "async_sgd", "local_sgd"], {"local_sgd"}))
def test_a_worker_dead_before_training_leaves_its_data_to_the_others(strategy: Any, tmp_path: Path) -> None:
    run = ps.run(partial(visiting, folder=str(tmp_path)), strategy, workers=3, timeout_s=30.0)
    seen = sorted(int(number) for name in "02" for number in (tmp_path / name).read_text().split())
    assert seen == list(range(96))
    assert run.batches_unvisited == 0
    assert any(one.worker == 1 and "worker 1 died; the others go on" in one.what for one in run.incidents)
