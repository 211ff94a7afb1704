"""Servers that are killed outright, and whose spares go on: real processes, killed at random moments."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.local import patience
from plesio.launch.local.rebirths import Rebirths
from plesio.server.checkpoints import CheckpointStore
from plesio.strategy import Strategy
from plesio.strategy.answers import TopK
from support import loops, remote
from support.long_forms import but_slow, but_thorough
from support.processes import called
from support.replayed import chancy
from support.row_loop import BATCH, SAMPLES, dealt

EPOCHS, BATCHES = 6, 16
WENT_ON = re.compile(r"the server died at version (\d+) and went on after [\d.]+ s; no update lost")
STRATEGIES: dict[str, Strategy] = {
    "async": ps.async_sgd(),
    "sync": ps.sync_sgd(),
    "first": ps.first_of(2),
    "local": ps.local_sgd(every=3),
    "diloco": ps.diloco(every=3),
    "bounded": ps.bounded_staleness(3),
    "buffered": ps.buffered(2),
    "elastic": ps.elastic_averaging(every=3),
    "int8": ps.local_sgd(every=3, codec="int8"),
    "top-k": ps.diloco(every=3, codec=TopK(0.2)),
    "allreduce": ps.allreduce(),
    "gradients, int8": ps.sync_sgd(codec="int8"),
    "gradients, top-k": ps.async_sgd(codec=TopK(0.2)),
}


def survived(strategy: Strategy, folder: Path, kills: int, seed: int, workers: int = 3, **more: Any) -> ps.Run:
    """A run whose server is killed so many times, in its first second or two."""
    return killed(partial(chancy, **{"epochs": EPOCHS, **more}), strategy, folder, kills, seed, workers)


def killed(train: Any, strategy: Strategy, folder: Path, kills: int, seed: int, workers: int, **more: Any) -> ps.Run:
    rng = random.Random(seed)
    more = {"pace": 0.02, **more}  # else a fast machine is done before the first
    at_s = sorted([0.3, *(rng.uniform(0.2, 0.3 * kills) for _ in range(kills - 1))])
    faults = [ps.Kill(None, after_s=each) for each in at_s]
    run = ps.run(
        train, strategy, workers=workers, faults=faults, runs=folder, durability="process", timeout_s=60, **more
    )
    assert not [one.what for one in run.incidents if not WENT_ON.fullmatch(one.what) and "switched" not in one.what]
    return run


def check_nothing_lost(run: ps.Run, train: Any) -> None:
    assert all(one.left == "finished" for one in run.summary.workers)
    assert str(ps.replay(run.folder, train)) == f"bit-identical: {run.version:,} versions, all computed again"


@pytest.mark.parametrize("name", but_thorough(STRATEGIES, {"async"}, {"sync", "diloco"}))
def test_a_server_that_is_killed_goes_on_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    run = survived(STRATEGIES[name], tmp_path, kills=3, seed=len(name))
    assert run.steps == EPOCHS * BATCHES or name == "first"  # which calls steps off, whose data is leased again
    assert 1 <= len(run.incidents) <= 3
    check_nothing_lost(run, partial(chancy, epochs=EPOCHS))


def first_weight(model: Any) -> dict[str, float]:
    return {"weight": float(next(model.parameters()).sum())}


def test_a_server_that_is_killed_between_evaluations_goes_on_with_them(tmp_path: Path) -> None:
    each = {"evaluate": first_weight, "evaluate_every": ps.Rounds(2)}
    run = killed(partial(chancy, epochs=EPOCHS), ps.async_sgd(), tmp_path, kills=2, seed=1, workers=2, **each)
    assert run.history[-1].version == run.version
    check_nothing_lost(run, partial(chancy, epochs=EPOCHS))


TABLES: dict[str, Strategy] = {
    "async": ps.async_sgd(),
    "sync": ps.sync_sgd(),
    "each": ps.sync_sgd(rows="each"),
    "first": ps.first_of(2),
    "local": ps.local_sgd(every=3),
    "buffered": ps.buffered(2),
    "phases": ps.phases(ps.sync_sgd(), (20, ps.local_sgd(2))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(list(TABLES), {"async", "sync"}))
def test_a_server_with_tables_that_is_killed_goes_on_and_no_row_is_lost(name: str, tmp_path: Path) -> None:
    """Two tables: ids that wait to be admitted, rows that die and are born again."""
    train = partial(dealt, epochs=12, mortal=True)
    run = killed(train, TABLES[name], tmp_path, kills=3, seed=len(name), workers=3)
    assert run.incidents
    assert run.steps == 12 * SAMPLES // BATCH or name == "first"
    assert run.rows["ids"].refused
    assert run.rows["deep.words"].evicted or name in ("local", "phases")  # these have few rounds
    check_nothing_lost(run, train)


def test_tables_whose_gradients_wait_for_a_fold_go_on_without_a_spare(tmp_path: Path) -> None:
    """It says so if one was asked for."""
    run = ps.run(partial(dealt, epochs=1), ps.buffered(2, rows="with"), workers=2, durability="process")
    assert [one.what.partition(": ")[2] for one in run.incidents] == [
        "under buffered(k=2, rows=with) gradients of rows wait for their fold in its own memory"
    ]


def test_tables_do_not_survive_unasked(tmp_path: Path) -> None:
    """It would take speed from a run that only keeps checkpoints."""
    train = partial(dealt, epochs=1000, ends=tmp_path)
    with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint"):
        ps.run(train, ps.async_sgd(), workers=2, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.05), timeout_s=30)


PHASES = ps.phases(ps.sync_sgd(), (8, ps.local_sgd(2)), (14, ps.async_sgd()), (40, ps.diloco(2, codec="int8")))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", but_slow(["adam", "sgd"], {"adam"}))
def test_a_server_that_is_killed_around_a_switch_does_it_again(kind: str, tmp_path: Path) -> None:
    """The optimizer goes from the server to the workers and back, by what they left."""
    run = survived(PHASES, tmp_path, kills=4, seed=3, kind=kind)
    said = [one.what for one in run.incidents if one.what.startswith("switched")]
    assert [one.split(" at version")[0] for one in said] == [
        f"switched from {one.name} to {two.name}" for one, two in itertools.pairwise(PHASES.phases)
    ]
    assert run.steps == EPOCHS * BATCHES
    check_nothing_lost(run, partial(chancy, epochs=EPOCHS, kind=kind))


def killing(worker: ps.Worker, died: Path) -> None:
    """Worker 0 kills the server as soon as it is answered with another strategy: after that switch, and perhaps before there is
    a spare that knows of it."""
    model, data = loops.mlp(), DataLoader(TensorDataset(*loops.data(96)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), data)
    for _ in range(4):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loops.loss_of(model, inputs, labels).backward()
            optimizer.step()
            if worker.rank == 0 and worker.version >= 8 and not died.exists():
                died.touch()
                os.kill(worker.server_pid, signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(["async", "sync"], {"async"}))
def test_a_server_that_is_killed_right_after_a_switch_does_it_again(name: str, tmp_path: Path) -> None:
    """The optimizer goes from the workers to the server."""
    then = STRATEGIES[name]
    train = partial(killing, died=tmp_path / "died")
    strategy = ps.phases(ps.local_sgd(2), (8, then))
    run = ps.run(train, strategy, workers=2, runs=tmp_path, durability="process", timeout_s=60)
    switched, went_on = (one.what for one in run.incidents)
    assert switched.startswith(f"switched from local_sgd(every 2 steps) to {then.name} at version 8")
    assert WENT_ON.fullmatch(went_on)
    check_nothing_lost(run, train)


def in_turn(*todo: Callable[[], object], every_s: float = 0.3) -> Callable[[ps.Live], None]:
    """A `watch` that does one after the other, once training has begun; one that gives False again a moment later."""
    left = list(todo)

    def watch(live: Any) -> None:
        if left and live.time_s > every_s * (1 + len(todo) - len(left)) and left[0]() is not False:
            left.pop(0)

    return watch


def to(name: str, number: int) -> bool:
    """Send a signal to the process of that name; whether there is one."""
    found = called(name)[:1]
    for one in found:
        os.kill(one, number)
    return bool(found)


def kill(name: str) -> bool:
    return to(name, signal.SIGKILL)


def endless(**more: Any) -> ps.Run:
    return ps.run(
        partial(loops.endless, pause_s=0.005), "async_sgd", workers=2, durability="process", **{"timeout_s": 30, **more}
    )


@pytest.mark.thorough
def test_a_spare_that_dies_is_replaced() -> None:
    watch = in_turn(partial(kill, "spare"), partial(kill, "spare"), partial(kill, "server"))
    run = endless(watch=watch, until=ps.Until(seconds=2))
    assert [bool(WENT_ON.fullmatch(one.what)) for one in run.incidents] == [True]
    assert not called("spare") + called("server")


@pytest.mark.thorough
def test_three_deaths_within_a_minute_end_the_run() -> None:
    """They may have a cause that does not go away, such as too little memory."""
    with pytest.raises(
        ps.ServerLostError, match=r"is not replaced: 3 died within \d s; the weights were in its memory"
    ):
        endless(watch=in_turn(*[partial(kill, "server")] * 3))
    assert not called("spare") + called("server")


class Deadly(torch.optim.SGD):
    """A server that steps by a huge gradient dies of it, and so does its successor."""

    def step(self, closure: Any = None) -> Any:
        if any(one.grad.abs().max() > 1e6 for group in self.param_groups for one in group["params"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


def deadly(worker: ps.Worker) -> None:
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, Deadly(model.parameters(), lr=0.1), None)
    inputs, labels = loops.data()
    for step in range(20):
        optimizer.zero_grad()
        (loops.loss_of(model, inputs, labels) * (1e12 if step == 5 else 1.0)).backward()
        optimizer.step()


def test_a_message_that_kills_the_next_server_too_ends_the_run() -> None:
    with pytest.raises(ps.ServerLostError, match="is not replaced: its successor had died of the same message"):
        ps.run(deadly, "sync_sgd", workers=2, durability="process", timeout_s=30)


@pytest.mark.thorough
def test_a_server_that_is_stopped_is_killed_and_its_spare_goes_on() -> None:
    run = endless(watch=in_turn(partial(to, "server", signal.SIGSTOP)), timeout_s=2, until=ps.Until(seconds=6))
    silent, went_on = (one.what for one in run.incidents)
    assert re.fullmatch(r"the server \(\d+\) has said nothing for 2 s: killed", silent)
    assert WENT_ON.fullmatch(went_on)


class StopsInWriting:
    """A training function. Where it arrives, the first checkpoint that is written stops its process in the middle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: ps.Worker) -> None:
        loops.endless(worker, pause_s=0.005)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        save = CheckpointStore.save

        def stops(store: CheckpointStore, *what: Any) -> Path:
            if not (self.folder / "stopped").exists():
                (self.folder / "stopped").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            return save(store, *what)

        CheckpointStore.save = stops  # type: ignore[method-assign]


@pytest.mark.thorough
def test_a_server_that_stands_still_while_it_writes_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    run = ps.run(
        StopsInWriting(tmp_path),
        "async_sgd",
        workers=2,
        runs=tmp_path,
        checkpoint=ps.Checkpoint(every_s=0.1),
        timeout_s=3,
        until=ps.Until(seconds=6),
    )
    silent, went_on = (one.what for one in run.incidents)
    assert re.fullmatch(
        r"the server \(\d+\) has said nothing for 3 s, and gets no further with a checkpoint: killed", silent
    )
    assert WENT_ON.fullmatch(went_on)


@pytest.mark.parametrize(("gets_on", "ends_s"), [(False, 13), (True, 18)])
def test_patience_with_a_server_that_writes_follows_its_progress_and_ends(
    gets_on: bool, ends_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 20 s, when workers say that the server does not answer."""
    now_s = 0
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(patience, "progress_of", lambda pid: f"{now_s if gets_on else 0} bytes")
    one = patience.Patience(10.0, CtrlC())
    one.begun_s = one.heard_s = 0.0
    one.writes(True)
    hangs = []
    for now_s in range(25):
        hangs += [now_s] * one.server_hangs(1)
    assert hangs == [ends_s], "it is told once"


def test_workers_are_late_from_when_a_checkpoint_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now_s))
    one, late = patience.Patience(10.0, CtrlC()), list[float]()
    one.ask()
    for now_s in range(20):
        if now_s in (1, 10):
            one.writes(now_s == 1)
        late += [now_s] * one.workers_are_late()
    assert late[0] == 10 + patience.GRACE_S + 1


@pytest.mark.parametrize(("every_s", "why_not"), [(29.0, "3 died within 58 s"), (31.0, "")])
def test_a_spare_goes_on_unless_three_servers_died_within_a_minute_unasked(every_s: float, why_not: str) -> None:
    deaths = Rebirths()
    deaths.expected = 1
    assert [deaths.why_not(1, 0, every_s * number) for number in range(4)] == ["", "", "", why_not]


def test_the_progress_of_a_process_is_its_work_and_what_it_writes(tmp_path: Path) -> None:
    before = patience.progress_of(os.getpid())
    assert before
    (tmp_path / "file").write_bytes(bytes(100_000))
    assert patience.progress_of(os.getpid()) != before


def slow(model: Any) -> dict[str, float]:
    time.sleep(2.5)
    return {"loss": 0.0}


@pytest.mark.thorough
def test_a_server_that_waits_for_the_last_evaluation_is_left_alone() -> None:
    assert not endless(evaluate=slow, timeout_s=1, until=ps.Until(seconds=0.5)).incidents


@pytest.mark.thorough
def test_nobody_is_left_behind_a_stopped_spare() -> None:
    endless(watch=in_turn(partial(to, "spare", signal.SIGSTOP)), until=ps.Until(seconds=1))
    assert not called("spare") + called("server")


def faster_later(worker: ps.Worker, epochs: int) -> None:
    """Its optimizer has a momentum from the sixth step on: the server begins to keep something then."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(64, 4)
    model, optimizer, loader = worker.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
    for epoch in range(epochs):
        for step, inputs in enumerate(loader):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.param_groups[0]["momentum"] = 0.9 if epoch or step > 5 else 0.0
            optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_an_optimizer_that_keeps_something_new_goes_on_without_a_spare(asked: bool, tmp_path: Path) -> None:
    """It says so if a spare was asked for."""
    train = partial(faster_later, epochs=3)
    durability = "process" if asked else "auto"
    run = ps.run(train, "sync_sgd", workers=2, checkpoint=ps.Checkpoint(), durability=durability, runs=tmp_path)
    told = [
        "a death of the server ends the run from here on: the optimizer began to keep 'momentum_buffer' after the run had begun"
    ]
    assert [one.what for one in run.incidents] == told * asked
    bare = ps.run(train, "sync_sgd", workers=2, durability="none")
    assert all(torch.equal(one, bare.state_dict[name]) for name, one in run.state_dict.items())


@pytest.mark.thorough
def test_a_run_that_keeps_checkpoints_survives_without_being_asked(tmp_path: Path) -> None:
    kept: Any = {"runs": tmp_path, "checkpoint": ps.Checkpoint(every_s=0.1), "faults": [ps.Kill(after_s=0.5)]}
    run = ps.run(loops.endless, "async_sgd", workers=2, timeout_s=30, until=ps.Until(seconds=1), **kept)
    assert WENT_ON.fullmatch(run.incidents[0].what)
    with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint"):
        ps.run(loops.endless, "async_sgd", workers=2, timeout_s=30, durability="none", **kept)


FAR = ps.phases(ps.sync_sgd(), (20, ps.local_sgd(2)), (35, ps.async_sgd()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy",
    [ps.async_sgd(), *(pytest.param(one, marks=pytest.mark.slow) for one in (ps.local_sgd(every=2), FAR))],
    ids=lambda one: one.name,
)
def test_workers_of_other_hosts_do_not_notice(strategy: Strategy, tmp_path: Path) -> None:
    """They have proxies, which drop what is said twice."""
    train = partial(chancy, epochs=2 * EPOCHS)
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(2):
            head.fork(train, rank=rank)
        faults = [ps.Kill(after_s=0.2 * one) for one in range(1, 5)]
        run = head.run(strategy, workers=2, faults=faults, durability="process", runs=tmp_path / "runs")
        assert head.end() == [0, 0]
    assert run.incidents
    others = [one.what for one in run.incidents if not WENT_ON.fullmatch(one.what)]
    assert all("knocked and was turned away" in one or one.startswith("switched") for one in others)  # and came again
    assert run.batches_unvisited == 0
    check_nothing_lost(run, train)
