"""Workers whose machine is taken away: SIGTERM at any moment, and nothing is done twice or lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import plesio as ps
from plesio.launch.ctrl_c import end_at_once
from plesio.launch.leaving import LeavingBySignal
from plesio.strategy import Strategy
from support import islands, remote
from support.joined_islands import until
from support.long_forms import but_thorough
from support.loops import Numbered, mlp, sgd

ROWS, EPOCHS, BATCH, WORKERS = 160, 2, 4, 3
STEPS = ROWS // BATCH * EPOCHS
LAST = STEPS // WORKERS // 2
"""Later than that the others may end with the round that its last contribution is in, and nobody takes what it gives back."""
RECIPES = [
    ps.async_sgd(),
    ps.sync_sgd(),
    ps.local_sgd(5),
    ps.async_local_sgd(7),
    ps.async_local_sgd(6, fragments=2),
    ps.diloco(6),
    ps.buffered(2),
    ps.allreduce(),
    ps.hogwild(),
]
QUICK = {"async_local_sgd(every=7)", "sync_sgd", "hogwild"}


def after(seconds: float, number: int = signal.SIGTERM) -> None:
    """This process is sent a signal at some moment from now on."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def visit(worker: ps.Worker, seed: int, test: int, left: Path | None, pause_s: float = 0.002) -> None:
    """Train on leased data. Worker 1 is told to leave at a moment that `seed` says: before prepare, or after so many steps. The
    others do not go to their end before the file `left` is there."""
    moment = random.Random(seed)
    at, later_s = moment.randrange(-2, LAST), moment.random() * 0.01
    told = worker.rank == 1 and os.getpid() != test  # else it is a replay

    def step_is(number: int) -> None:
        if told and number == at:
            after(later_s)

    step_is(-2)
    model = mlp()
    loader: Any = DataLoader(Numbered(ROWS), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    step_is(-1)
    steps = 0
    for _ in range(EPOCHS):
        for _, inputs, labels in loader:
            step_is(steps)
            if left is not None and worker.rank != 1 and steps == LAST:
                until(left.exists, "worker 1 did not leave")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            time.sleep(pause_s)
            optimizer.step()
            steps += 1


def visiting(strategy: Strategy, seed: int, left: Path) -> Callable[[ps.Worker], None]:
    """In lock step nobody needs to wait for worker 1, and a round would wait for all."""
    return partial(visit, seed=seed, test=os.getpid(), left=None if strategy.in_lock_step else left)


def see_it_leave(left: Path) -> Callable[[Any], None]:
    """A `watch` that makes the file `left` once somebody has left."""

    def look(live: Any) -> None:
        if any("left in good order" in one.what for one in live.events):
            left.touch()

    return look


def check(done: ps.Run) -> None:
    """Each batch is in the model once, and nobody died."""
    assert (done.batches_unvisited, done.steps, done.samples) == (0, STEPS, STEPS * BATCH), done
    assert {one.left for one in done.workers} <= {"finished", "left as told"}, done.incidents
    assert all("left in good order" in one.what for one in done.incidents), done.incidents


def check_replay(done: ps.Run, train: Callable[[ps.Worker], object]) -> None:
    assert str(ps.replay(done.folder, train)) == f"bit-identical: {done.version:,} versions, all computed again"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("strategy", but_thorough(RECIPES, QUICK), ids=lambda one: one.name)
def test_sigterm_at_any_moment_makes_no_step_twice_and_loses_none(
    strategy: Strategy, seed: int, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    train = visiting(strategy, seed, left)
    done = ps.run(train, strategy, workers=WORKERS, runs=tmp_path / "runs", watch=see_it_leave(left))
    check(done)
    if strategy.name != "hogwild":
        check_replay(done, train)


@pytest.mark.parametrize("far", [False, True], ids=["beside", "far"])
@pytest.mark.parametrize("strategy", but_thorough(RECIPES[:5], {"async_sgd"}), ids=lambda one: one.name)
def test_a_joined_worker_leaves_with_status_0(strategy: Strategy, far: bool, tmp_path: Path) -> None:
    left = tmp_path / "left"
    train = visiting(strategy, 5, left)
    # it asserts that all end with 0
    done = remote.run(train, strategy, WORKERS, far=far, runs=tmp_path / "runs", watch=see_it_leave(left))
    check(done)
    assert done.workers[1].left == "left as told"
    check_replay(done, train)


def leaving(worker: ps.Worker, at: int, who: int) -> None:
    """As `visit`, but by `worker.leave()`."""
    model = mlp()
    loader: Any = DataLoader(Numbered(ROWS), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    steps = 0
    for _ in range(EPOCHS):
        for _, inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if worker.rank == who and steps == at:
                worker.leave()
            optimizer.step()
            steps += 1


@given(strategy=st.sampled_from(RECIPES[:7]), at=st.integers(0, LAST), who=st.integers(0, 2), seed=st.integers(0, 99))
def test_simulated_workers_leave_in_good_order(
    tmp_path_factory: pytest.TempPathFactory, strategy: Strategy, at: int, who: int, seed: int
) -> None:
    train, folder = partial(leaving, at=at, who=who), tmp_path_factory.mktemp("runs")
    done = ps.run(train, strategy, workers=WORKERS, engine=ps.Simulated("uniform"), seed=seed, runs=folder)
    check(done)
    check_replay(done, train)


def rank_is_told(worker: ps.Worker) -> None:
    if worker.rank == 1 and worker.island.rank == 1:
        worker.leave()
    islands.train(worker, inside="ddp")


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.local_sgd(2)], ids=lambda one: one.name)
def test_an_island_leaves_as_one_when_one_of_its_ranks_is_told(strategy: Strategy) -> None:
    done = ps.run(rank_is_told, strategy, workers=2, ranks=2)
    assert [one.left for one in done.workers] == ["finished", "left as told"]
    assert done.samples == 2 * islands.SAMPLES
    assert [one.what for one in done.incidents] == ["worker 1 rank 0 left in good order, as it was told to"]


def clients(worker: ps.Worker) -> None:
    model = nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(32, 2))
    given: Any = ps.Clients(data, ps.splits.iid(32, 8), per_round=4, rounds=4, batch_size=2)
    model, optimizer, given = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), given)
    for turn, client in enumerate(given):
        if worker.rank == 1 and turn == 2:
            worker.leave()
        for (inputs,) in client:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("strategy", [ps.fedavg(), ps.fedbuff(2)], ids=lambda one: one.name)
def test_a_worker_of_clients_leaves_when_the_client_under_way_has_had_its_turn(strategy: Strategy) -> None:
    done = ps.run(clients, strategy, workers=2)
    assert done.workers[1].left == "left as told"
    assert sum(one.turns for one in done.summary.clients) == 16


def hanging(worker: ps.Worker, signals: int) -> None:
    """Worker 1 hangs in a step, and is told so often to leave."""
    model = mlp()
    model, optimizer = worker.prepare(model, sgd(model))
    for step in worker.steps(20):
        if worker.rank == 1 and step == 1:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
            raise AssertionError("nobody ended it")
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("signals", "options"), [(2, {}), (1, {"leave_s": 0.3})], ids=["second signal", "leave_s"])
def test_a_second_sigterm_and_the_end_of_leave_s_are_a_death(signals: int, options: dict[str, Any]) -> None:
    done = ps.run(partial(hanging, signals=signals), "async_sgd", workers=2, **options)
    assert done.workers[1].left == "died"


def with_a_handler(worker: ps.Worker, folder: Path) -> None:
    """The script's own handler was set before, and notes the signal."""
    model = mlp()
    model, optimizer = worker.prepare(model, sgd(model))
    for _ in worker.steps(40):
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        if worker.rank == 1 and not (folder / "told").exists():
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_handler_that_the_script_set_before_it_joined_is_called_too(tmp_path: Path) -> None:
    def set_handler() -> None:
        signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "told").touch())

    with remote.head() as door:
        for rank in range(2):
            door.fork(partial(with_a_handler, folder=tmp_path), enter=set_handler, rank=rank)
        done = door.run("async_sgd", 2)
        assert door.end() == [0, 0]
    assert (tmp_path / "told").exists()
    assert [one.left for one in done.workers] == ["finished", "left as told"]


def all_told(worker: ps.Worker) -> None:
    model = mlp()
    model, optimizer = worker.prepare(model, sgd(model))
    for step, _ in enumerate(worker.steps(40)):
        if step == 2:
            worker.leave()
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["local", "simulated"])
def test_a_run_that_all_workers_leave_says_so(engine: Any) -> None:
    done = ps.run(all_told, "sync_sgd", workers=2, engine=engine)
    assert done.ended == "all workers were told to leave"
    assert done.steps == 6


def leaving_once(worker: ps.Worker, folder: Path) -> None:
    """The first process leaves, and the second goes on. So in a replay the journal alone says that the first left."""
    model = mlp()
    loader: Any = DataLoader(Numbered(ROWS), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    for _ in range(EPOCHS):
        for _, inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if worker.version >= 1 and not (folder / "left").exists():
                (folder / "left").touch()
                worker.leave()
            optimizer.step()


def test_a_seat_that_was_left_is_free_for_another(tmp_path: Path) -> None:
    with remote.head(rejoin_s=60.0) as door:
        train = partial(leaving_once, folder=tmp_path)
        door.fork(train, rank=0)

        def look(live: Any) -> None:
            if any("left in good order" in one.what for one in live.events) and len(door.pids) == 1:
                door.fork(train, rank=0)

        done = door.run("async_local_sgd", 1, watch=look, runs=tmp_path)
        assert door.end() == [0, 0]
    assert (done.batches_unvisited, done.steps) == (0, STEPS)
    check_replay(done, train)


def ending_once(worker: ps.Worker, folder: Path, killed: bool) -> None:
    """The first process ends in the middle of the second pass, and another goes on. Each leaves the samples of its steps."""
    model = mlp()
    loader: Any = DataLoader(Numbered(ROWS), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, sgd(model), loader)
    for epoch in range(EPOCHS):
        for number, (samples, inputs, labels) in enumerate(loader):
            if (epoch, number) == (1, 2) and not (folder / "ended").exists():
                (folder / "ended").touch()
                worker.leave()
                if killed:
                    os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            with (folder / f"pass-{epoch}").open("a") as file:
                file.writelines(f"{sample}\n" for sample in samples.tolist())


@pytest.mark.parametrize("far", [True, False], ids=["far", "near"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "left"])
def test_who_goes_on_in_the_middle_of_a_lone_workers_pass_has_its_order(
    tmp_path: Path, killed: bool, far: bool
) -> None:
    with remote.head(far, rejoin_s=60.0) as door:
        train = partial(ending_once, folder=tmp_path, killed=killed)
        door.fork(train, rank=0)

        def look(live: Any) -> None:
            words = "died" if killed else "left in good order"
            if any(words in one.what for one in live.events) and len(door.pids) == 1:
                door.fork(train, rank=0)

        done = door.run("sync_sgd", 1, watch=look, runs=tmp_path)
        assert door.end() == [-signal.SIGKILL if killed else 0, 0]
    for epoch in range(EPOCHS):
        assert sorted(map(int, (tmp_path / f"pass-{epoch}").read_text().split())) == [*range(ROWS)]
    assert (done.batches_unvisited, done.steps) == (0, STEPS)
    check_replay(done, train)


def told_late(worker: ps.Worker) -> None:
    leaving(worker, at=-1, who=0)
    os.kill(os.getpid(), signal.SIGTERM)


def test_who_is_told_after_the_last_step_has_finished() -> None:
    done = ps.run(told_late, "async_sgd", workers=2)
    check(done)
    assert ([one.left for one in done.workers], done.ended, done.incidents) == (["finished"] * 2, "finished", ())


@pytest.mark.parametrize("scripts_own", [False, True], ids=["plesio join", "a script"])
def test_of_the_handlers_from_before_only_a_scripts_own_is_called(scripts_own: bool) -> None:
    called: list[str] = []
    own = (lambda *_: called.append("own")) if scripts_own else end_at_once  # by which `plesio` ends its commands
    before = signal.signal(signal.SIGTERM, own)
    try:
        with LeavingBySignal(lambda: called.append("leave"), leave_s=60.0):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == ["leave", "own"][: 1 + scripts_own]
