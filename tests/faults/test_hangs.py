"""What stands still, or takes the means to go on: whatever it is, a run ends, in time and with a word about it."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

import plesio as ps
from plesio.engine.forkserver import PRELOAD, ForkServer
from plesio.engine.job import Live
from support import loops
from support.processes import alive, descendants, gone_within, open_descriptors

SHORT = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=20)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process but a fork server, no descriptor more than before."""
    ForkServer.shared(PRELOAD)
    open_before = open_descriptors()
    yield
    assert gone_within(descendants() - {ForkServer.shared(PRELOAD).pid}, 1.0)
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


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd", "hogwild", "allreduce"])
def test_the_fork_servers_death_is_one_clear_error(name: str) -> None:
    """Its children go with it, and the next run has a new one."""
    seen: list[float] = []
    first = ForkServer.shared().pid
    with pytest.raises(
        ps.ServerLostError,
        match=rf"the fork server \(process {first}\), which .*, ended unexpectedly \(exit code -9\); .* "
        r"took the run along at version \d+, .* are lost",
    ):
        ps.run(loops.endless, name, workers=2, watch=once(20, partial(end_the_fork_server, seen)), timeout_s=30)
    assert time.monotonic() - seen[0] < 4.0
    assert gone_within(descendants(), 1.0)
    assert ps.run(SHORT, name, workers=2, timeout_s=30).steps == 40
    assert alive(ForkServer.shared().pid)


def test_a_frozen_fork_server_does_not_hold_up_the_end_of_a_run() -> None:
    """Who is gone, it cannot tell."""
    fork_server = ForkServer.shared().pid
    try:
        freeze = once(20, partial(os.kill, fork_server, signal.SIGSTOP))
        run = ps.run(
            partial(loops.endless, pause_s=0.005), "async_sgd", workers=2, watch=freeze, until=ps.Until(steps=60)
        )
    finally:
        os.kill(fork_server, signal.SIGCONT)
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


@pytest.mark.parametrize(
    ("name", "steps", "until", "words"),
    [
        ("hogwild", 200, None, ", though every worker had ended"),  # they finish
        ("async_sgd", 10**9, ps.Until(steps=20), ", though every worker had ended"),  # they are stopped
        ("hogwild", 10**9, None, ""),  # they never need it
    ],
)
def test_a_frozen_server_is_noticed(name: str, steps: int, until: ps.Until | None, words: str, tmp_path: Path) -> None:
    """Whether the workers end or not: in the time given, and a grace."""

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


def test_a_last_evaluation_that_never_ends_is_given_up() -> None:
    """What was trained comes back."""
    run = ps.run(SHORT, "async_sgd", workers=2, evaluate=never_returns, timeout_s=2.0)
    assert run.ended == "finished"
    assert run.steps == 40
    assert run.history == ()
    assert run.state_dict
    assert given_up(run) == [
        "the last evaluation, of version 40, was given up: evaluate did not return within 2 s (timeout_s)"
    ]


def test_a_last_evaluation_that_is_dropped_after_a_stop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.engine.local.JUDGE_S", 1.0)
    run = ps.run(loops.endless, "async_sgd", workers=2, evaluate=never_returns, until=ps.Until(steps=40))
    (told,) = given_up(run)
    assert told.endswith("was given up: evaluate did not return within 1 s of the run being asked to stop")


def test_a_last_evaluation_that_ctrl_c_did_not_wait_for_is_told() -> None:
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


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_with_many_open_files_can_run(fresh: bool, limit: Callable[[int], None]) -> None:
    """More than `select` knows of; also when the fork server's own line has a number beyond that."""
    limit(3000)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        if fresh:
            ForkServer.close_shared()
        assert ps.run(SHORT, "async_sgd", workers=2, evaluate=lambda model: {"a": 1.0}, timeout_s=30).steps == 40
    finally:
        for file in files:
            os.close(file)


@pytest.mark.parametrize("more", [0, 20, 60, 100])
def test_too_few_descriptors_are_said(more: int, limit: Callable[[int], None]) -> None:
    """Whatever opening it is that fails; and nothing stays open. When there are more, the same fork server will do."""
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


def test_a_fork_server_begun_with_few_descriptors_is_told_of_more(limit: Callable[[int], None]) -> None:
    """Else it, and its children, would silently lose those that are passed to them."""
    ForkServer.close_shared()
    limit(limit_that_leaves(24))
    fork_server = ForkServer.shared(PRELOAD).pid
    limit(3000)
    assert ps.run(SHORT, "async_sgd", workers=20, timeout_s=30).steps == 400
    assert ForkServer.shared().pid == fork_server


@pytest.mark.parametrize("free", [0, 1, 3])
def test_too_few_descriptors_for_the_fork_server_itself(free: int, limit: Callable[[int], None]) -> None:
    ForkServer.close_shared()
    before = open_descriptors()
    limit(limit_that_leaves(free))
    with pytest.raises(ps.ConfigurationError, match="workers=2 takes about 22 file descriptors more"):
        ps.run(SHORT, "async_sgd", workers=2, timeout_s=30)
    assert open_descriptors() == before


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_run_names_a_checkpoint_only_if_there_is_one(kept: bool, tmp_path: Path) -> None:
    every_s = 0.05 if kept else 60.0
    with pytest.raises(ps.ServerLostError) as caught:
        ps.run(
            loops.endless,
            "async_sgd",
            workers=2,
            checkpoint=ps.Checkpoint(tmp_path, every_s=every_s),
            faults=[ps.Kill(after_s=0.5)],
            timeout_s=30,
        )
    assert (f"go on from the last checkpoint with resume='{tmp_path}'" in str(caught.value)) == kept
    assert (f"are lost (there is no checkpoint in '{tmp_path}' yet)" in str(caught.value)) != kept
