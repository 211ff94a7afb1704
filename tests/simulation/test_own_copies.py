"""Simulated workers have their own copies of objects, as processes have."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Restart
from plesio.launch.one_process.own_copies import own_copies
from support.loops import descend
from support.runs import assert_replays

INPUTS = torch.arange(256.0).view(64, 4) / 256
TARGETS = INPUTS.sum(1, keepdim=True)


class Trainer:
    """Keeps what it works with in itself, and brings its data into shape in place, as trainers do."""

    def __init__(self) -> None:
        self.inputs, self.targets = INPUTS * 255, TARGETS.clone()

    def train(self, worker: Any) -> None:
        self.inputs /= 255
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader: Any = DataLoader(TensorDataset(self.inputs, self.targets), 8)
        self.model, self.optimizer, self.loader = worker.prepare(self.model, self.optimizer, self.loader)
        for self.epoch in range(3):
            for inputs, targets in self.loader:
                self.step(inputs, targets)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        descend(self.optimizer, (self.model(inputs) - targets).square().mean())


def with_trainer(trainer: Trainer, worker: Any) -> None:
    trainer.train(worker)


@pytest.mark.parametrize("how", ["a method", "an argument"])
def test_each_simulated_worker_has_its_own_trainer_object(how: str, tmp_path: Path) -> None:
    trainer = Trainer()
    train = trainer.train if how == "a method" else functools.partial(with_trainer, trainer)
    real = ps.run(train, ps.sync_sgd(), workers=2, timeout_s=60, runs=tmp_path)
    virtual = ps.run(train, ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"), runs=tmp_path)
    assert torch.equal(real.state_dict["weight"], virtual.state_dict["weight"])
    assert_replays(real, train)
    assert_replays(virtual, train)
    assert vars(trainer).keys() == {"inputs", "targets"}, "the caller's own is left alone"
    assert torch.equal(trainer.inputs, INPUTS * 255)


class Noisy:
    """Its nested function is over itself, and is the copy's in a copy."""

    def __init__(self) -> None:
        self.add: Any = lambda numbers: numbers + self.noise

    def train(self, worker: Any) -> None:
        self.noise = float(worker.rank)
        model = nn.Linear(4, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            descend(optimizer, model(self.add(INPUTS)).mean())


def test_nested_functions_of_an_object_refer_to_the_copy(tmp_path: Path) -> None:
    real = ps.run(Noisy().train, ps.sync_sgd(), workers=2, timeout_s=60, runs=tmp_path)
    virtual = ps.run(Noisy().train, ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"))
    assert torch.equal(real.state_dict["weight"], virtual.state_dict["weight"])
    assert_replays(real, Noisy().train)


def test_the_training_functions_closure_is_shared() -> None:
    seen: list[int] = []

    def train(note: str, worker: Any) -> None:
        seen.append(worker.rank)
        with_a_frozen_global(worker)

    ps.run(functools.partial(train, "a note"), ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"))
    assert sorted(seen) == [0, 1]


BACKBONE = nn.Linear(4, 4).requires_grad_(False)


def with_a_frozen_global(worker: Any) -> None:
    model = nn.Sequential(BACKBONE, nn.Linear(4, 1))
    model, optimizer = worker.prepare(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
    model(INPUTS).sum().backward()
    optimizer.step()


MODEL = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def with_a_global(worker: Any) -> None:
    model = nn.Sequential(MODEL[0], nn.Linear(4, 1))
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(INPUTS).sum().backward()
    optimizer.step()


def test_a_model_shared_by_two_workers_is_refused(tmp_path: Path) -> None:
    told = (
        "worker 1 gave prepare a Linear that another worker of this run holds.*make the model.*in the training function"
    )
    with pytest.raises(ps.ConfigurationError, match=told):
        ps.run(with_a_global, ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"))
    run = ps.run(with_a_global, ps.sync_sgd(), workers=2, timeout_s=60, runs=tmp_path)
    with pytest.raises(ps.ConfigurationError, match=told):
        ps.replay(run.folder, with_a_global)


def test_a_restarted_worker_may_prepare_its_earlier_model() -> None:
    faults = (Crash(worker=0, at_s=0.05), Restart(worker=0, at_s=0.1))
    cluster = Cluster((Group(1, Constant(0.1)),), faults=faults)
    assert ps.run(with_a_global, ps.async_sgd(), workers=1, engine=ps.Simulated(cluster)).version > 0


class Carrying:
    """A training function with data of its own."""

    def __init__(self, **carried: Any) -> None:
        self.__dict__.update(carried)

    def __call__(self, worker: Any) -> None: ...


def test_writes_into_a_copy_stay_in_it() -> None:
    numbers = torch.arange(100.0)
    train = Carrying(whole=numbers, array=np.arange(100), words=["a"])
    copies = own_copies(train, workers=2)
    first: Any = copies()
    second: Any = copies()
    first.whole.zero_(), first.array.fill(0), first.words.clear()
    for one in (second, train):
        assert torch.equal(one.whole, torch.arange(100.0))
        assert (one.array == np.arange(100)).all()
        assert one.words == ["a"]


def test_a_training_function_that_cannot_be_pickled_is_refused() -> None:
    for engine in ("local", ps.Simulated("uniform")):
        with pytest.raises(ps.ConfigurationError, match=r"the training function cannot be .*pickle.*lock"):
            ps.run(Carrying(lock=threading.Lock()), ps.sync_sgd(), workers=2, engine=engine)


def test_copies_beyond_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.system.memory.room", lambda: {"the host's memory": 1 << 20})
    train = Carrying(words=[str(number) for number in range(2000)])
    own_copies(train, workers=2)
    with pytest.raises(ps.SharedMemoryError, match="a copy for each of the 256 workers of what the training function"):
        own_copies(train, workers=256)


def test_bound_methods_have_objects_of_their_own() -> None:
    again = own_copies([].append, workers=2)
    first, second = again(), again()
    first(1)
    second(2)
    assert [first.__self__, second.__self__] == [[1], [2]]  # type: ignore[attr-defined]
