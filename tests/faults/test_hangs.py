"""Hangs and exhausted resources: every run ends in time, with a clear message."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import plesio as ps
import plesio.worker.metrics
from plesio.launch.job import Job, Live
from plesio.launch.local.forkserver import ForkServer
from plesio.launch.local.processes import Processes
from plesio.launch.local.server_process import Server
from plesio.observe.summary import Incident
from plesio.protocol.launcher import Progress, Stop, Trouble
from plesio.protocol.worker import Contribution
from plesio.transport.channel import Channel, channel_pair, readable
from support import loops
from support.long_forms import but_slow
from support.processes import alive, descendants, gone_within, open_descriptors

SHORT = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=20)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process but a fork server, no descriptor more than before."""
    ForkServer.shared()
    open_before = open_descriptors()
    yield
    assert gone_within(descendants() - {ForkServer.shared().pid}, 1.0)
    assert open_descriptors() <= open_before


def once(when: int, act: Callable[[], object]) -> Callable[[Live], None]:
    """Does it after so many steps, and never again."""
    acted: list[bool] = []

    def watch(live: Live) -> None:
        if live.steps >= when and not acted:
            acted.append(True)
            act()

    return watch


def end_the_fork_server(seen: list[float]) -> None:
    seen.append(time.monotonic())
    os.kill(ForkServer.shared().pid, signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", but_slow(["async_sgd", ps.allreduce("torch"), "sync_sgd", "hogwild"], {"async_sgd"}), ids=str
)
def test_the_fork_servers_death_is_one_clear_error(name: Any) -> None:
    """Its children die with it, and the next run starts a new one."""
    seen: list[float] = []
    first = ForkServer.shared().pid
    with pytest.raises(
        ps.ServerLostError,
        match=rf"the fork server \(process {first}\), which .*, ended unexpectedly \(exit code -9\); .* "
        r"the run ended with it at version \d+, .* are lost",
    ):
        ps.run(loops.endless, name, workers=2, watch=once(20, partial(end_the_fork_server, seen)), timeout_s=30)
    assert time.monotonic() - seen[0] < 4.0
    assert gone_within(descendants(), 1.0)
    assert ps.run(SHORT, name, workers=2, timeout_s=30).steps in (20, 40)
    assert alive(ForkServer.shared().pid)


@pytest.mark.thorough
def test_the_fork_servers_death_before_training_is_one_clear_error() -> None:
    start = Processes.start

    def bereft(self: Processes, job: Job, *sockets: Sequence[socket.socket]) -> None:
        os.kill(ForkServer.shared().pid, signal.SIGKILL)
        start(self, job, *sockets)

    with patch.object(Processes, "start", bereft), pytest.raises(ps.ServerLostError, match=r"server \(.*exit code -9"):
        ps.run(SHORT, "async_sgd", workers=2, timeout_s=30)
    assert ps.run(SHORT, "async_sgd", workers=2, timeout_s=30).steps == 40


@pytest.mark.thorough
def test_a_frozen_fork_server_does_not_hold_up_the_end_of_a_run() -> None:
    """A frozen fork server cannot end processes. It is ended itself, with all of them."""
    fork_server = ForkServer.shared().pid
    freeze = once(20, partial(os.kill, fork_server, signal.SIGSTOP))
    run = ps.run(partial(loops.endless, pause_s=0.005), "async_sgd", workers=2, watch=freeze, until=ps.Until(steps=60))
    assert gone_within(descendants(), 1.0)
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert ps.run(SHORT, "async_sgd", workers=2, timeout_s=30).steps == 40


def on_its_own(worker: ps.Worker, folder: str, steps: int, pause_s: float) -> None:
    """It has no data of the run's, and so, under `hogwild`, never waits for the server."""
    Path(folder, "server.pid").write_text(str(worker.server_pid))
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data()
    for _ in range(steps):
        optimizer.zero_grad()
        loops.loss_of(model, inputs, labels).backward()
        optimizer.step()
        time.sleep(pause_s)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "steps", "until", "words"),
    [
        pytest.param("hogwild", 200, None, ", though every worker had ended", marks=pytest.mark.slow),  # they finish
        ("async_sgd", 10**9, ps.Until(steps=20), ", though every worker had ended"),  # they are stopped
        pytest.param("hogwild", 10**9, None, "", marks=pytest.mark.slow),  # they never need it
    ],
)
def test_a_frozen_server_is_a_deadline_error(
    name: str, steps: int, until: ps.Until | None, words: str, tmp_path: Path
) -> None:
    """Within timeout_s and a grace period, whether the workers end or not."""

    def freeze() -> None:
        os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGSTOP)

    started_s = time.monotonic()
    with pytest.raises(
        ps.DeadlineError,
        match=rf"the server process \(\d+\) said nothing for \d+ s at version .* training{words}: it was",
    ):
        ps.run(
            partial(on_its_own, folder=str(tmp_path), steps=steps, pause_s=0.005),
            name,
            workers=2,
            watch=once(20, freeze),
            until=until,
            timeout_s=2.0,
        )
    assert time.monotonic() - started_s < 25.0


def never_returns(model: object) -> dict[str, float]:
    time.sleep(1000)
    return {}


def given_up(run: ps.Run) -> list[str]:
    return [one.what for one in run.incidents if "the last evaluation, of version" in one.what]


@pytest.mark.thorough
def test_an_endless_last_evaluation_is_given_up() -> None:
    """The trained weights are returned."""
    run = ps.run(SHORT, "async_sgd", workers=2, evaluate=never_returns, timeout_s=2.0)
    assert run.ended == "finished"
    assert run.steps == 40
    assert run.history == ()
    assert run.state_dict
    assert given_up(run) == [
        "the last evaluation, of version 40, was given up: evaluate did not return within 2 s (timeout_s)"
    ]


@pytest.mark.thorough
def test_giving_up_the_last_evaluation_after_a_stop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.launch.local.patience.JUDGE_S", 1.0)
    run = ps.run(loops.endless, "async_sgd", workers=2, evaluate=never_returns, until=ps.Until(steps=40))
    (told,) = given_up(run)
    assert told.endswith("was given up: evaluate did not return within 1 s of the run being asked to stop")


@pytest.mark.thorough
def test_giving_up_the_last_evaluation_after_ctrl_c_is_reported() -> None:
    press = once(20, partial(signal.raise_signal, signal.SIGINT))
    with pytest.raises(ps.RunInterrupted) as caught:
        ps.run(loops.endless, "async_sgd", workers=2, evaluate=never_returns, watch=press)
    (told,) = given_up(caught.value.run)
    assert told.endswith("was given up: after Ctrl-C nobody waited for it")


def may_open(most_now: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_now, most))


def limit_that_leaves(free: int) -> int:
    """The limit under which so many descriptors can be opened, and one: that of the look itself is closed again."""
    used = set(map(int, os.listdir("/proc/self/fd")))
    return next(islice((number for number in count() if number not in used), free, None))


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Sets how many descriptors this process may have, until the test ends."""
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield may_open
    may_open(before)


@pytest.mark.thorough
@pytest.mark.parametrize("fresh", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_process_with_many_open_files_can_run(fresh: bool, limit: Callable[[int], None]) -> None:
    """With descriptors beyond `select`'s limit, the fork server's socket among them."""
    limit(3000)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        if fresh:
            ForkServer.close_shared()
        assert ps.run(SHORT, "async_sgd", workers=2, evaluate=lambda model: {"a": 1.0}, timeout_s=30).steps == 40
    finally:
        for file in files:
            os.close(file)


@pytest.mark.thorough
@pytest.mark.parametrize("more", but_slow([0, 20, 60, 100], {60}))
def test_too_few_descriptors_are_a_clear_error(more: int, limit: Callable[[int], None]) -> None:
    """Whichever open fails, nothing stays open, and the fork server can be used again."""
    fork_server = ForkServer.shared().pid
    may = limit_that_leaves(more)
    limit(may)
    before, processes = open_descriptors(), descendants()
    with pytest.raises(
        ps.ConfigurationError, match=rf"^workers=16 takes about 120 file descriptors more .* have {may} in all"
    ) as caught:
        ps.run(SHORT, "async_sgd", workers=16, evaluate=lambda model: {"a": 1.0}, timeout_s=30)
    assert open_descriptors() == before, "though the exception, and with it every frame, is still there"
    assert gone_within(descendants() - processes, 1.0)
    limit(3000)
    assert ps.run(SHORT, "async_sgd", workers=16, timeout_s=30).steps == 320
    assert ForkServer.shared().pid == fork_server
    del caught


@pytest.mark.thorough
def test_a_fork_server_learns_of_a_raised_descriptor_limit(limit: Callable[[int], None]) -> None:
    """Otherwise it would silently lose the descriptors passed to it."""
    ForkServer.close_shared()
    limit(limit_that_leaves(24))
    fork_server = ForkServer.shared().pid
    limit(3000)
    assert ps.run(SHORT, "async_sgd", workers=20, timeout_s=30).steps == 400
    assert ForkServer.shared().pid == fork_server


@pytest.mark.parametrize("free", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 3))])
def test_too_few_descriptors_for_the_fork_server_are_a_clear_error(free: int, limit: Callable[[int], None]) -> None:
    ForkServer.close_shared()
    before = open_descriptors()
    limit(limit_that_leaves(free))
    with pytest.raises(ps.ConfigurationError, match="workers=2 takes about 22 file descriptors more"):
        ps.run(SHORT, "async_sgd", workers=2, timeout_s=30)
    assert open_descriptors() == before


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_lost_run_names_a_checkpoint_only_if_there_is_one(kept: bool, tmp_path: Path) -> None:
    every_s = 0.05 if kept else 60.0
    with pytest.raises(ps.ServerLostError) as caught:
        ps.run(
            loops.endless,
            "async_sgd",
            workers=2,
            durability="none",
            checkpoint=ps.Checkpoint(tmp_path, every_s=every_s),
            faults=[ps.Kill(after_s=0.5)],
            timeout_s=30,
        )
    assert (f"go on from the last checkpoint with resume='{tmp_path}'" in str(caught.value)) == kept
    assert (f"are lost (there is no checkpoint in '{tmp_path}' yet)" in str(caught.value)) != kept


# Answers that nobody reads


def one_stands_still(worker: ps.Worker, how: str, folder: Path) -> None:
    """Worker 2 freezes in its fifth step; or pauses there for many versions and takes 100 quicker ones. Then all end.

    The others go on until the caller says that they are done, a minute at most.
    """
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data(8)
    if worker.rank == 2:
        keep_few_answers(worker)
    for step in count():
        if worker.rank == 2 and step == 5:
            (folder / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP) if how == "freezes" else time.sleep(0.6)
        if (how == "pauses" and step == (105 if worker.rank == 2 else 600)) or (folder / "done").exists():
            break
        if how == "freezes" and (folder / "pid").exists() and time.time() - (folder / "pid").stat().st_mtime > 60:
            break
        time.sleep(0.002 if worker.rank == 2 else 0.004)
        optimizer.zero_grad()
        loops.loss_of(model, inputs, labels).backward()
        optimizer.step()
    (folder / "done").touch()
    if how == "freezes" and worker.rank == 0:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)  # else the end of the run waits for it


def keep_few_answers(worker: ps.Worker) -> None:
    """The pipe they lie in has room for one or two pages of them, and not for sixteen: so it is full soon."""
    fcntl.fcntl(worker._exchange.doorbell._answers.descriptor, fcntl.F_SETPIPE_SZ, 8192)  # type: ignore[union-attr]


@pytest.mark.thorough
def test_a_frozen_worker_with_a_cancelled_step_is_evicted(tmp_path: Path) -> None:
    train = partial(one_stands_still, how="freezes", folder=tmp_path)
    told: list[str] = []

    def end_after_the_eviction(live: Live) -> None:
        told.extend(one.what for one in live.events)
        if live.version > 100 and any(what.endswith("evicted") for what in told):
            (tmp_path / "done").touch()

    run = ps.run(train, ps.first_of(2), workers=3, timeout_s=2.0, watch=end_after_the_eviction)
    assert any(one.worker == 2 and one.what.endswith("evicted") for one in run.incidents)
    assert [one.left for one in run.workers] == ["finished", "finished", "evicted"]
    assert run.version > 100  # the others never stood still
    assert run.workers[2].discarded <= 6


@pytest.mark.thorough
def test_a_worker_that_paused_contributes_again(tmp_path: Path) -> None:
    """It need not read one message per version made meanwhile; a step is cancelled once."""
    train = partial(one_stands_still, how="pauses", folder=tmp_path)
    run = ps.run(train, ps.first_of(2), workers=3, timeout_s=30.0)
    assert run.version > 120
    assert run.workers[2].folded > 20
    assert run.workers[2].folded + run.workers[2].discarded <= 106


def deaf(worker: ps.Worker) -> None:
    """Worker 1 contributes without a look at what it is answered."""
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data(8)
    if worker.rank == 1:
        keep_few_answers(worker)
        for number in count(1):
            worker._exchange.doorbell.send(Contribution(number, steps=1))  # type: ignore[union-attr]
    for _ in range(50):
        optimizer.zero_grad()
        loops.loss_of(model, inputs, labels).backward()
        time.sleep(0.005)
        optimizer.step()


def test_a_worker_that_reads_no_answers_is_cut_off() -> None:
    run = ps.run(deaf, ps.async_sgd("plain"), workers=2, timeout_s=30.0)
    assert "worker 1 does not read what it is answered: cut off" in [one.what for one in run.incidents]
    assert [one.left for one in run.workers] == ["finished", "died"]
    assert run.workers[0].folded == 50
    assert run.workers[1].folded > 30  # a page of answers or two: as many as the pipe has room for


# A run whose own process stands still


def talkative(worker: ps.Worker, folder: Path) -> None:
    """Each step is worth a message to the process that began the run; `folder`/"steps" is as long as their number."""
    plesio.worker.metrics.LOG_S = 0.0
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    with (folder / "steps").open("ab", buffering=0) as steps:
        while not worker.stopped:
            optimizer.zero_grad()
            loss = model(torch.ones(1, loops.FEATURES)).sum()
            loss.backward()
            optimizer.step()
            worker.log(loss=loss)
            steps.write(b".")


@pytest.mark.thorough
def test_training_goes_on_while_the_launcher_is_stopped(tmp_path: Path) -> None:
    """As after Ctrl-Z: the launcher reads nothing, and more is written than its socket holds."""
    steps = tmp_path / "steps"

    def stand_still() -> None:
        before, end_s = steps.stat().st_size, time.monotonic() + 20.0
        while steps.stat().st_size < before + 2000 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert steps.stat().st_size >= before + 2000

    train = partial(talkative, folder=tmp_path)
    run = ps.run(train, "async_sgd", workers=2, timeout_s=30.0, watch=once(1, stand_still), until=ps.Until(steps=2000))
    assert run.ended == "2000 steps were up"
    for worker in range(2):
        logged = [one for one in run.logged if one.worker == worker]
        assert sum(one.steps for one in logged) == run.workers[worker].steps
        assert [one.time_s for one in logged] == sorted(one.time_s for one in logged)


def test_incidents_for_a_stopped_launcher_are_kept_and_progress_is_dropped() -> None:
    ours, its = channel_pair()
    server = SimpleNamespace(engine=Channel(ours, Stop, "the engine"))
    engine: Channel[Progress | Trouble] = Channel(its, Progress | Trouble, "the server")
    tell = partial(Server.tell_engine, server)  # type: ignore[arg-type]
    for number in range(5000):
        tell(Trouble(Incident(0.0, number, "")) if number % 5 == 0 else Progress(version=number))
    got: list[Progress | Trouble] = []
    while len(got) < 1000 or not isinstance(got[-1], Progress) or got[-1].version != 5000:
        while readable(engine.fileno(), 0.0):
            got.append(engine.receive(1.0)[0])
        tell(Progress(version=5000))
    assert [one.incident.worker for one in got if isinstance(one, Trouble)] == list(range(0, 5000, 5))
    assert sum(isinstance(one, Progress) and one.version < 5000 for one in got) < 1000
    server.engine.close()
    engine.close()
