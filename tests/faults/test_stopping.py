"""Runs that are stopped keep and report what was done, even where that takes longer than any other wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.launch.job import Live
from plesio.launch.local import children
from plesio.launch.local.forker import Done
from plesio.launch.local.forkserver import ForkServer
from plesio.observe.files import RunFolder
from plesio.server.checkpoints import FOLDER, PREFIX, latest
from plesio.transport.channel import Channel
from support import loops, stopping
from support.processes import descendants, gone_within

SLOW_S = 3.6
"""Longer than any process that was asked to end is waited for, after Ctrl-C or otherwise."""
SHORT = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=20)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process but the fork server."""
    yield
    assert gone_within(descendants() - {ForkServer.shared().pid}, 1.0)


@pytest.fixture
def slow_disk(tmp_path: Path) -> Callable[..., stopping.SlowDisk]:
    """Makes a training function during which checkpoints take long to write."""
    return lambda train, seconds=SLOW_S: stopping.SlowDisk(train, tmp_path, seconds)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_when(there: Path, *more_s: float) -> threading.Thread:
    """Ctrl-C once that file is there, and again after each of so many seconds more."""

    def wait() -> None:
        end_s = time.monotonic() + 60
        while not there.exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        press()
        for pause_s in more_s:
            time.sleep(pause_s)
            press()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def once_stepped() -> Callable[[Live], None]:
    """Presses Ctrl-C when some steps were taken, and never again."""
    pressed: list[bool] = []

    def watch(live: Live) -> None:
        if live.steps > 10 and not pressed:
            pressed.append(True)
            press()

    return watch


@pytest.mark.thorough
def test_a_run_stopped_within_a_round_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Its checkpoint is a version of the uninterrupted run, made before workers left."""
    train = partial(stopping.lingering, pause_s=0.3)
    whole = ps.run(train, ps.sync_sgd(), workers=3, timeout_s=30)
    kept = ps.Checkpoint(every_s=0.1)
    first = ps.run(train, ps.sync_sgd(), workers=3, runs=tmp_path, checkpoint=kept, until=ps.Until(steps=6))
    second = ps.run(train, ps.sync_sgd(), workers=3, runs=tmp_path, resume=first.folder)
    assert second.version == whole.version
    assert all(torch.equal(value, second.state_dict[name]) for name, value in whole.state_dict.items())


def unevenly(worker: ps.Worker) -> None:
    """Without end, on data of its own, each worker slower than the one before."""
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    while True:
        optimizer.zero_grad()
        loops.loss_of(model, *loops.data(8)).backward()
        time.sleep((0.02, 0.4, 1.0)[worker.rank])
        optimizer.step()


@pytest.mark.thorough
def test_the_last_checkpoint_is_of_the_version_at_the_stop(tmp_path: Path) -> None:
    """Each worker is within a step then; it counts, and its answer carries the stop."""
    kept = ps.Checkpoint(every_s=0.05)
    run = ps.run(unevenly, ps.async_sgd(), workers=3, runs=tmp_path, checkpoint=kept, until=ps.Until(steps=12))
    assert run.folder is not None
    assert latest(run.folder / FOLDER).manifest.version == run.version - 3


def checkpoint_of(folder: Path, version: int) -> bool:
    """Whether there is one checkpoint, whole, of that version at most; and nothing half."""
    (one,) = folder.iterdir()
    return one.name.startswith(PREFIX) and latest(folder).manifest.version <= version


@pytest.mark.thorough
def test_a_stop_waits_for_the_last_checkpoint(slow_disk: Any, tmp_path: Path) -> None:
    """No worker is killed for the time the server takes to write it."""
    run = ps.run(
        slow_disk(loops.endless),
        ps.async_sgd(),
        workers=2,
        runs=tmp_path / "runs",
        checkpoint=ps.Checkpoint(every_s=1000),
        until=ps.Until(steps=20),
        timeout_s=30,
    )
    assert run.ended == "20 steps were up"
    assert run.incidents == ()
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert len(list(tmp_path.glob("finally *"))) == 2
    assert checkpoint_of(run.folder / FOLDER, run.version)


@pytest.mark.thorough
@pytest.mark.parametrize("every_s", [1000.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_ctrl_c_waits_for_the_last_checkpoint(every_s: float, slow_disk: Any, tmp_path: Path) -> None:
    """Also for one that is being written at the time."""
    pressed = press_when(tmp_path / "writing") if every_s < 1 else None
    with pytest.raises(ps.RunInterrupted, match=r"interrupted at version .*; go on with resume=") as caught:
        ps.run(
            slow_disk(loops.endless),
            ps.async_sgd(),
            workers=2,
            runs=tmp_path / "runs",
            checkpoint=ps.Checkpoint(every_s=every_s, keep=1),
            watch=None if pressed else once_stepped(),
            timeout_s=30,
        )
    run = caught.value.run
    assert run.incidents == ()
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert len(list(tmp_path.glob("finally *"))) == 2
    assert checkpoint_of(run.folder / FOLDER, run.version)
    assert pressed is None or pressed.join() is None


@pytest.mark.thorough
def test_ctrl_c_during_the_last_checkpoint_loses_nothing(slow_disk: Any, tmp_path: Path) -> None:
    pressed = press_when(tmp_path / "writing")
    with pytest.raises(ps.RunInterrupted, match="interrupted at version 40; ") as caught:
        ps.run(
            slow_disk(SHORT),
            ps.async_sgd(),
            workers=2,
            runs=tmp_path / "runs",
            checkpoint=ps.Checkpoint(every_s=1000),
            timeout_s=30,
        )
    pressed.join()
    assert caught.value.run.steps == 40
    assert checkpoint_of(caught.value.folder / FOLDER, 40)


@pytest.mark.thorough
def test_a_second_ctrl_c_does_not_wait_for_a_checkpoint(slow_disk: Any, tmp_path: Path) -> None:
    started_s = time.monotonic()
    pressed = press_when(tmp_path / "writing", 1.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        ps.run(
            slow_disk(SHORT, 60.0),
            ps.async_sgd(),
            workers=2,
            checkpoint=ps.Checkpoint(tmp_path / "ck", every_s=1000),
            timeout_s=120,
        )
    pressed.join()
    assert not isinstance(caught.value, ps.RunInterrupted)
    assert time.monotonic() - started_s < 30.0


@pytest.mark.thorough
@pytest.mark.parametrize("ctrl_c", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_endless_checkpoint_is_a_deadline_error(ctrl_c: bool, slow_disk: Any, tmp_path: Path) -> None:
    """The error names the server and what it was doing."""
    words = r"the server process \(\d+\) said nothing for 8 s at version .*: it is writing a checkpoint into '.*ck' and"
    started_s = time.monotonic()
    run = partial(
        ps.run,
        slow_disk(loops.endless, 100.0),
        ps.async_sgd(),
        workers=2,
        checkpoint=ps.Checkpoint(tmp_path / "ck", every_s=1000),
        timeout_s=5.0,
    )
    if ctrl_c:
        with pytest.raises(ps.RunInterrupted), pytest.warns(RuntimeWarning, match=words):
            run(watch=once_stepped())
    else:
        with pytest.raises(ps.DeadlineError, match=words):
            run(until=ps.Until(steps=20))
    assert time.monotonic() - started_s < 30.0


def presses_while_it_is_written(monkeypatch: pytest.MonkeyPatch, times: int, number: int = signal.SIGINT) -> None:
    """Ctrl-C in the middle of the writing of a run folder."""
    write = RunFolder.write

    def pressed(*what: Any) -> dict[str, str]:
        for _ in range(times):
            signal.raise_signal(number)
        return write(*what)

    monkeypatch.setattr(RunFolder, "write", pressed)


def test_ctrl_c_during_writing_the_run_folder_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presses_while_it_is_written(monkeypatch, 1)
    with pytest.raises(ps.RunInterrupted, match="interrupted at version 40; written to") as caught:
        ps.run(SHORT, ps.async_sgd(), workers=2, runs=tmp_path)
    assert caught.value.run.steps == 40
    assert {"summary.json", "report.html", "weights.safetensors"} <= {one.name for one in caught.value.folder.iterdir()}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_second_ctrl_c_does_not_wait_for_the_run_folder(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may have ended the training."""
    presses_while_it_is_written(monkeypatch, 1 if interrupted else 2)
    train, watch = (loops.endless, once_stepped()) if interrupted else (SHORT, None)
    with pytest.raises(KeyboardInterrupt) as caught:
        ps.run(train, ps.async_sgd(), workers=2, runs=tmp_path, watch=watch)
    assert caught.type is KeyboardInterrupt, "after another class Python exits with 1, not as a signal does"
    assert not list(tmp_path.glob("*/summary.json"))


def test_a_second_sigterm_exits_as_a_signal_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presses_while_it_is_written(monkeypatch, 2, signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        ps.run(SHORT, ps.async_sgd(), workers=2, runs=tmp_path)
    assert caught.value.code == 128 + signal.SIGTERM


@pytest.mark.thorough
def test_an_error_is_reported_despite_a_dying_loader_process() -> None:
    """Torch raises for a dead loader process anywhere, even while the worker reports its error."""
    with pytest.raises(ps.WorkerError, match="worker 1 raised Unlucky: the user's error") as caught:
        ps.run(stopping.unlucky, ps.async_sgd(), workers=2, timeout_s=30)
    assert "Traceback" in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionResetError("[Errno 104]"), EOFError(), ValueError("no")])
def test_a_broken_pipe_to_a_loader_process_is_explained(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own message, which comes a moment later, and only once."""

    def torchs(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    before = signal.signal(signal.SIGCHLD, torchs)
    try:
        monkeypatch.setattr(
            "plesio.launch.local.children.time.sleep", lambda seconds: signal.raise_signal(signal.SIGCHLD)
        )
        told = children._words_of(error)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
    why = "" if isinstance(error, ValueError) else "; DataLoader worker (pid 7) exited unexpectedly"
    assert told == f"{error}{why}"


ENDS_EARLY = """
import os, signal, sys
from plesio.launch.local.forkserver import ForkServer
print(ForkServer.shared(["slow_to_import"]).pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_a_fork_server_ends_with_its_launcher_even_while_importing(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(60)")
    script = subprocess.Popen(
        [sys.executable, "-c", ENDS_EARLY],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    fork_server = int(script.stdout.readline())
    time.sleep(1.0)
    script.kill()
    script.wait()  # not for the end of its output, which the fork server holds open, too
    assert gone_within({fork_server}, 5.0)
    script.communicate()


@pytest.mark.thorough
def test_a_fork_server_outlives_the_thread_that_started_it() -> None:
    """The kernel's parent-death signal follows the parent's thread."""
    ForkServer.close_shared()
    versions: list[int] = []
    thread = threading.Thread(target=lambda: versions.append(ps.run(SHORT, ps.async_sgd(), workers=2).version))
    thread.start()
    thread.join()
    fork_server = ForkServer.shared().pid
    assert ps.run(SHORT, ps.async_sgd(), workers=2).version == versions[0] == 40
    assert ForkServer.shared().pid == fork_server


@pytest.mark.thorough
def test_the_last_round_is_complete() -> None:
    """A worker asking for data at the stop gets some; without it the last round would be smaller."""
    run = ps.run(stopping.late_for_data, "sync_sgd", workers=3, data="shards", until=ps.Until(seconds=0.7))
    assert run.ended.startswith("0.7 seconds")
    assert 0 < run.version < 10
    assert run.summary.folded == 3 * run.version
    assert run.discarded == {}


@pytest.mark.thorough
def test_ctrl_c_does_not_wait_for_what_train_refers_to(tmp_path: Path) -> None:
    """Nor does the next run get an answer that nobody waits for any more."""
    first = ForkServer.shared().pid
    pressed = press_when(tmp_path / "loading")
    with pytest.raises(
        ps.RunInterrupted, match=r"before there was a result, while starting 2 workers: importing .*; there is no"
    ):
        ps.run(stopping.SlowToLoad(tmp_path), "sync_sgd", workers=2)
    pressed.join()
    assert time.time() - (tmp_path / "loading").stat().st_mtime < 5.0
    assert gone_within({first}, 1.0)
    assert ps.run(SHORT, "sync_sgd", workers=2).steps == 40


@pytest.mark.slow
def test_the_next_run_works_after_a_start_that_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ForkServer.shared()
    assert ps.run(SHORT, "sync_sgd", workers=2).steps == 40
    with monkeypatch.context() as brief:
        brief.setattr("plesio.launch.local.forkserver.START_S", 0.2)
        with pytest.raises(ps.DeadlineError, match=r"waited 0\.2 s for the start of processes from the fork server"):
            ps.run(stopping.SlowToLoad(tmp_path), "sync_sgd", workers=2)
    assert ps.run(SHORT, "sync_sgd", workers=2).steps == 40


@pytest.mark.thorough
def test_a_start_interrupted_half_way_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the server and one worker were started."""
    started: list[int] = []

    def receive(self: Channel[Any], *waiting: Any) -> Any:
        if len(started) == 2:
            raise KeyboardInterrupt
        message, descriptors = as_ever(self, *waiting)
        if isinstance(message, Done) and message.pid:
            started.append(message.pid)
        return message, descriptors

    as_ever = Channel.receive
    with monkeypatch.context() as once:
        once.setattr(Channel, "receive", receive)
        with pytest.raises(KeyboardInterrupt):
            ps.run(SHORT, "sync_sgd", workers=2)
    assert gone_within(set(started), 1.0)
    assert ps.run(SHORT, "sync_sgd", workers=2).steps == 40


@pytest.mark.thorough
def test_a_worker_that_never_steps_ends_with_the_run() -> None:
    run = ps.run(stopping.only_reads, "sync_sgd", workers=2, until=ps.Until(seconds=0.3))
    assert run.ended.startswith("0.3 seconds")
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert sum(one.metrics["left_by_itself"] for one in run.logged) == 2.0


def fails_to_clean_up(worker: ps.Worker) -> None:
    try:
        loops.endless(worker)
    finally:
        if worker.rank == 0:
            raise ValueError("cleanup failed")


def test_a_worker_that_raises_after_ctrl_c_does_not_cost_the_run() -> None:
    with pytest.raises(ps.RunInterrupted) as caught:
        ps.run(fails_to_clean_up, ps.async_sgd(), workers=2, watch=once_stepped(), timeout_s=30)
    run = caught.value.run
    assert run.version > 10
    (incident,) = run.incidents  # with a hint where it was given nothing any more
    assert incident.what.startswith("worker 0 raised ValueError: cleanup failed")
    assert [one.left for one in run.workers] == ["raised", "finished"]
