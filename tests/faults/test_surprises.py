"""What users run into: loader processes, frozen workers, edited modules, several threads, slips."""

from __future__ import annotations

import gc
import importlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.launch.job import Live
from plesio.launch.local.forkserver import ForkServer
from support import loops
from support.long_forms import but_slow
from support.processes import gone_within


def fed_by_processes(worker: ps.Worker, epochs: int, persistent: bool, pause_s: float = 0.0) -> None:
    """Its batches are made by two processes of its DataLoader."""
    model = loops.mlp()
    loader = DataLoader(TensorDataset(*loops.data()), batch_size=4, num_workers=2, persistent_workers=persistent)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            time.sleep(pause_s)


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(["sync_sgd", "async_sgd", "hogwild"], {"hogwild"}))
def test_a_death_is_noticed_despite_surviving_loader_processes(name: Any) -> None:
    """They notice after 5 s and hold the dead worker's connections, under allreduce gloo's too."""
    run = ps.run(
        partial(fed_by_processes, epochs=1000, persistent=True, pause_s=0.005),
        name,
        workers=3,
        faults=[ps.Kill(worker=1, after_s=0.5)],
        until=ps.Until(seconds=2.5),
        timeout_s=30,
    )
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    assert any("worker 1 died" in one.what for one in run.incidents)


@pytest.mark.thorough
def test_a_run_does_not_wait_for_idle_loader_processes() -> None:
    train = partial(fed_by_processes, epochs=2, persistent=True)
    run = ps.run(train, ps.async_sgd(), workers=2, until=ps.Until(seconds=4.5), timeout_s=30)
    assert run.ended == "finished"
    assert run.incidents == ()


def opens_its_data(number: int, folder: Path) -> None:
    """What a process of a DataLoader does before torch makes it look out for its parent."""
    (folder / str(os.getpid())).touch()
    time.sleep(2.0)


def killed_while_its_loader_begins(worker: ps.Worker, folder: Path) -> None:
    loader = DataLoader(
        TensorDataset(*loops.data()), batch_size=4, num_workers=2, worker_init_fn=partial(opens_its_data, folder=folder)
    )
    model = loops.mlp()
    model, _, loader = worker.prepare(model, loops.sgd(model), loader)
    if worker.rank == 0:
        next(iter(loader))
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    raise ValueError("the run ends, and worker 0 is killed")


def test_loader_processes_die_with_their_worker(tmp_path: Path) -> None:
    with pytest.raises(ps.WorkerError, match="the run ends"):
        ps.run(partial(killed_while_its_loader_begins, folder=tmp_path), ps.async_sgd(), workers=2, timeout_s=30)
    started = {int(path.name) for path in tmp_path.iterdir()}
    assert len(started) == 2
    assert gone_within(started, 1.0)


@pytest.mark.thorough
def test_loader_processes_of_an_evaluation_end_with_the_run(tmp_path: Path) -> None:
    kept: list[DataLoader[Any]] = []

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        if not kept:
            data = TensorDataset(*loops.data())
            begun = partial(opened, folder=tmp_path)
            kept.append(DataLoader(data, num_workers=2, persistent_workers=True, worker_init_fn=begun))
        return {"batches": sum(1 for _ in kept[0])}

    def opened(number: int, folder: Path) -> None:
        (folder / str(os.getpid())).touch()

    run = ps.run(
        partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=4),
        ps.async_sgd(),
        workers=2,
        evaluate=evaluate,
        timeout_s=30,
    )
    assert run.history
    assert run.incidents == ()
    started = {int(path.name) for path in tmp_path.iterdir()}
    assert len(started) == 2
    assert gone_within(started, 1.0)


def freezing(worker: ps.Worker) -> None:
    """Worker 1 stands still after three steps; the others do all the rest."""
    model = loops.mlp()
    loader = DataLoader(TensorDataset(*loops.data()), batch_size=2)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    for step, (inputs, labels) in enumerate(loader):
        if worker.rank == 1 and step == 3:
            time.sleep(1000)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["async_sgd", pytest.param("hogwild", marks=pytest.mark.slow)])
def test_a_frozen_last_worker_is_evicted(name: str) -> None:
    """Its batches are counted as not visited."""
    run = ps.run(freezing, name, workers=3, timeout_s=3.0, until=ps.Until(seconds=20.0), pace=0.01)
    assert run.ended == "finished"
    (told,) = (one.what for one in run.incidents)
    assert "worker 1 was silent for" in told
    assert told.endswith("s and all the others had ended: evicted")
    assert run.batches_unvisited > 0


MODULE = """
import os
from support import loops

def train(worker, file):
    file.write_text(f"{word} {{os.environ.get('PLESIO_TEST_WORD')}}")
    loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=1)
"""


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Writes a module with this word in it, and imports it as somebody does who edits it."""
    monkeypatch.syspath_prepend(tmp_path)

    def edit(word: str) -> ModuleType:
        (tmp_path / "edited_between_runs.py").write_text(MODULE.format(word=word))
        importlib.invalidate_caches()
        return importlib.reload(importlib.import_module("edited_between_runs"))

    yield edit
    ForkServer.close_shared()  # it knows a module that is no longer there


@pytest.mark.thorough
def test_edited_modules_and_environment_reach_the_next_run(
    edited: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "said"
    ps.run(partial(edited("before").train, file=file), ps.async_sgd(), workers=1)
    assert file.read_text() == "before None"
    monkeypatch.setenv("PLESIO_TEST_WORD", "set")
    first = ForkServer.shared().pid
    module = edited("afterwards")
    ps.run(partial(module.train, file=file), ps.async_sgd(), workers=1)
    assert file.read_text() == "afterwards set"
    second = ForkServer.shared().pid
    assert second != first
    monkeypatch.delenv("PLESIO_TEST_WORD")
    ps.run(partial(module.train, file=file), ps.async_sgd(), workers=1)
    assert file.read_text() == "afterwards None"
    assert ForkServer.shared().pid == second, "nothing was edited"


ELSEWHERE = f"""
import sys
sys.path.insert(0, {str(Path(ps.__file__).parents[1])!r})
import plesio as ps
from support import loops

FOUND = ps.__file__

def train(worker):
    assert ps.__file__ == FOUND, ps.__file__
    loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=2)

if __name__ == "__main__":
    print(ps.run(train, "async_sgd", workers=1).steps)
"""


@pytest.mark.thorough
def test_processes_import_from_the_scripts_paths(tmp_path: Path) -> None:
    """From sys.path as the script left it, not from the current folder."""
    script, shadows = tmp_path / "script" / "train.py", ("select.py", "plesio/__init__.py")
    shadow = "raise SystemExit('the current folder was searched')"
    for file, text in ((script, ELSEWHERE), *((tmp_path / "current" / name, shadow) for name in shadows)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path / "current", env=environment, capture_output=True, text=True, timeout=280
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def cell() -> Callable[[ps.Worker], None]:
    """What a notebook's cell makes anew each time it is run: a class, and a training function that refers to it."""

    class Data:
        pass

    def train(worker: ps.Worker) -> None:
        worker.log(there=sum(type(one) is type and one.__name__ == Data.__name__ for one in gc.get_objects()))
        loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=2)

    return train


@pytest.mark.thorough
def test_classes_of_earlier_runs_are_forgotten() -> None:
    """A notebook cell run again and again does not fill the memory."""
    for _ in range(3):
        run = ps.run(cell(), ps.async_sgd(), workers=1)
        assert run.logged[0].metrics["there"] == 1.0


def test_a_training_function_may_be_larger_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data it refers to is sent with it."""
    monkeypatch.setattr("plesio.transport.channel.MESSAGE_BYTES_MAX", 1_000_000)
    data = torch.arange(1_000_000)

    def train(worker: ps.Worker) -> None:
        worker.log(total=data.sum())
        loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=2)

    run = ps.run(train, ps.async_sgd(), workers=1)
    assert run.logged[0].metrics["total"] == data.sum()


@pytest.mark.thorough
def test_a_program_ends_without_resource_warnings() -> None:
    """Python shows them only in development mode."""
    program = (
        "from functools import partial; import plesio as ps; from support import loops\n"
        "ps.run(partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=2), 'async_sgd', workers=1)"
    )
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", program]
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")


SHORT = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=5)


def test_a_concurrent_run_is_refused() -> None:
    """From any thread; the run under way goes on."""
    refused: list[str] = []

    def another() -> None:
        with pytest.raises(ps.ConfigurationError) as caught:
            ps.run(SHORT, ps.async_sgd(), workers=1)
        refused.append(str(caught.value))

    def watch(live: Live) -> None:
        if not refused:
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()

    run = ps.run(SHORT, ps.async_sgd(), workers=1, watch=watch)
    assert run.steps == 5
    assert "another run is under way in this process" in refused[0]
    assert ps.run(SHORT, ps.async_sgd(), workers=1).steps == 5


def generates(worker: ps.Worker) -> Iterator[int]:
    yield worker.rank


async def awaits(worker: ps.Worker) -> None:
    worker.log(loss=1.0)


class Generates:
    def __call__(self, worker: ps.Worker, times: int) -> Iterator[int]:
        yield times


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (generates, "has a yield in it"),
        (partial(partial(Generates()), times=2), "has a yield in it"),
        (partial(awaits), "is an async def"),
    ],
)
def test_generators_and_coroutines_are_refused_as_train(train: Callable[..., object], words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(train, ps.async_sgd(), workers=1)


def idle(worker: ps.Worker) -> None:
    os.getpid()


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_a_run_that_trained_nothing_warns(engine: str | ps.Simulated) -> None:
    with pytest.warns(RuntimeWarning, match=r"nothing was trained: no worker called worker\.prepare") as caught:
        run = ps.run(idle, ps.async_sgd(), workers=2, engine=engine)
    assert run.version == 0
    assert caught[0].filename == __file__


NAME = b"caf\xe9.png".decode(errors="surrogateescape")
"""The name of a file that is not encoded in UTF-8, as `os.listdir` gives it."""


def stumbles(worker: ps.Worker, how: str) -> None:
    model = loops.mlp()
    model, optimizer = worker.prepare(model, loops.sgd(model))
    for step in itertools.count():
        if how == "raises":
            raise ValueError(f"cannot read {NAME}")
        if how == "stops" and step == 3:
            worker.stop(f"cannot read {NAME}")
        worker.log(**{NAME: 1.0})
        loops.loss_of(model, *loops.data(8)).backward()
        optimizer.step()


def cannot_judge(model: torch.nn.Module) -> dict[str, float]:
    raise ValueError(f"cannot read {NAME}")


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_messages_outside_utf8_are_escaped(engine: str | ps.Simulated, tmp_path: Path) -> None:
    words = r"cannot read caf\\udce9\.png"
    with pytest.raises(ps.WorkerError, match=words):
        ps.run(partial(stumbles, how="raises"), ps.async_sgd(), workers=2, engine=engine)
    run = ps.run(partial(stumbles, how="stops"), ps.async_sgd(), workers=2, engine=engine, runs=tmp_path)
    assert r"cannot read caf\udce9.png" in run.ended
    with pytest.raises(ps.EvaluateError, match=words):
        ps.run(
            partial(stumbles, how=""),
            ps.async_sgd(),
            workers=2,
            engine=engine,
            evaluate=cannot_judge,
            until=ps.Until(seconds=20),
        )


def leaving_a_child(worker: Any, note: str) -> None:
    """As a pool that nobody shuts down: it waits for work for ever."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600.0,), daemon=False)
    child.start()
    Path(note).write_text(str(child.pid))
    model = torch.nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


@pytest.mark.thorough
def test_a_child_process_left_by_training_does_not_hold_the_run(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert ps.run(partial(leaving_a_child, note=str(note)), ps.sync_sgd(), workers=1, timeout_s=60).version == 1
    assert gone_within({int(note.read_text())}, 10.0)
