"""Workers of other hosts that go on while their answers travel: real processes, over TCP."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plesio as ps
from faults.test_remote import begun, joined, kill_ahead_of_checkpoints, meanwhile, until
from plesio.core.events import Pushed
from plesio.protocol.journal import read_journal
from plesio.transport.limits import LEASE_S
from support import remote
from support.proxy import Proxy
from support.row_each import row_each

WORKERS, SAMPLES, BATCH, WIDTH = 2, 240, 4, 250
GOING_ON = ps.async_local_sgd(every=3, overlap=True)


def visiting(
    worker: ps.Worker, into: Path, epochs: int, pause_s: float = 0.004, each: Callable[[int], None] = lambda step: None
) -> None:
    """Each sample has a row of its own in the model, from which each fold of it takes 1. 240 kB travel each way."""
    model, optimizer, loader = row_each(worker, SAMPLES, BATCH, WIDTH, lr=float(WORKERS))
    step = 0
    for _ in range(epochs):
        for (samples,) in loader:
            optimizer.zero_grad()
            model(samples).sum().backward()
            time.sleep(pause_s)
            optimizer.step()
            step += 1
            (into / f"at-{os.getpid()}").write_text(str(worker.version))
            each(step)


def visits(done: ps.Run) -> set[float]:
    """How often samples are in the weights: each, everywhere in its row."""
    return set((-done.state_dict["weight"]).unique().tolist())


def taken_late(done: ps.Run) -> int:
    """How many answers were taken between two contributions."""
    events = [one.event for one in read_journal(done.folder).decisions()]
    return sum(one.adopted_at > 0 for one in events if isinstance(one, Pushed))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "exact"),
    [
        (GOING_ON, True),
        (ps.async_local_sgd(every=3), True),
        (ps.local_sgd(3, codec="int4", overlap=True), False),
        (ps.async_sgd("plain", ahead=1), True),
    ],
)
def test_workers_that_go_on_fold_each_batch_once_and_the_run_replays(
    strategy: ps.Strategy, exact: bool, tmp_path: Path
) -> None:
    """`exact`: whether the weights tell how often."""
    train = functools.partial(visiting, into=tmp_path, epochs=4)
    done = remote.run(train, strategy, workers=WORKERS, runs=tmp_path / "runs")
    assert (done.steps, done.batches_unvisited, list(done.discarded)) == (4 * SAMPLES // BATCH, 0, [])
    assert not exact or visits(done) == {4.0}
    assert strategy.computes_ahead or taken_late(done) > 0
    again = ps.replay(done.folder, train)
    assert again.identical, again.differs


@pytest.mark.thorough
def test_connections_that_are_cut_in_the_middle_lose_and_double_nothing(tmp_path: Path) -> None:
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(WORKERS):
            head.fork(functools.partial(visiting, into=tmp_path, epochs=12), rank=rank)

        def cut() -> None:
            until(lambda: begun(tmp_path, WORKERS, version=4))
            proxy.becomes = lambda chunk: (time.sleep(0.01), chunk)[1]  # most of the time something is on the wire
            for _ in range(12):
                proxy.cut()
                time.sleep(random.uniform(0.05, 0.3))
            proxy.becomes = bytes

        with meanwhile(cut):
            done = head.run(GOING_ON, workers=WORKERS, runs=tmp_path / "runs")
        assert head.end() == [0, 0]
        proxy.close()
    assert proxy.connections > 10
    assert visits(done) == {12.0}
    assert done.batches_unvisited == 0
    assert sorted(joined(done)) == [(0, 1), (1, 1)]


@pytest.mark.thorough
def test_a_head_that_is_killed_and_resumed_folds_each_batch_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": WORKERS, "checkpoint": ps.Checkpoint(every_s=0.2)}
    train = functools.partial(visiting, into=tmp_path, epochs=8)
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(WORKERS):
            head.fork(train, rank=rank)

        def kill() -> None:
            kill_ahead_of_checkpoints(head, tmp_path, WORKERS)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            head.run(GOING_ON, **settings, durability="none", runs=tmp_path / "runs")
        (folder,) = (tmp_path / "runs").iterdir()
        head.reopen()
        done = head.run(GOING_ON, **settings, runs=tmp_path / "again", resume=folder)
        assert head.end() == [0, 0]
    assert visits(done) == {8.0}
    assert head.warned.count("the run went back from version ") == 2
    again = ps.replay(done.folder, train)
    assert again.identical, again.differs


def dies(step: int, into: Path, after_s: float) -> None:
    """At the end of the seventh step: one step before, a contribution was sent."""
    if step == 7:
        time.sleep(after_s)
        (into / "dying").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.5, marks=pytest.mark.thorough)], ids=["at once", "answered"])
def test_a_worker_that_dies_between_sending_and_taking_loses_only_what_it_did_since(
    after_s: float, tmp_path: Path
) -> None:
    train = functools.partial(visiting, into=tmp_path, epochs=4)
    with remote.head(rejoin_s=30.0) as head:
        head.fork(train, rank=0)
        head.fork(functools.partial(train, each=functools.partial(dies, into=tmp_path, after_s=after_s)), rank=1)

        def replace() -> None:
            until((tmp_path / "dying").exists)
            head.fork(train, rank=1)

        with meanwhile(replace):
            done = head.run(GOING_ON, workers=WORKERS, runs=tmp_path / "runs")
        assert head.end() == [0, -signal.SIGKILL, 0]
    assert visits(done) == {4.0}
    assert done.batches_unvisited == 0
    assert joined(done)[2:] == [(1, 2)]


@pytest.mark.thorough
def test_an_answer_that_never_comes_ends_at_the_deadline(tmp_path: Path) -> None:
    """The server is stopped while the worker computes; its proxy still beats."""
    with remote.head() as head:
        head.fork(functools.partial(visiting, into=tmp_path, epochs=1000))

        def stop() -> None:
            until(lambda: begun(tmp_path, 1, version=4))
            os.kill(pid := head.server_pid(), signal.SIGSTOP)
            until(lambda: "DeadlineError" in head.warnings())
            os.kill(pid, signal.SIGCONT)

        with (
            meanwhile(stop),
            pytest.raises(ps.DeadlineError, match=r"worker 0 waited for .* for 2 s: the server has not"),
        ):
            head.run(GOING_ON, workers=1, timeout_s=1.0)
        assert head.end() == [1]


def in_flight(worker: ps.Worker, raises: BaseException, into: Path) -> None:
    """Raises while a contribution is on its way."""

    def each(step: int) -> None:
        if step == 4:
            (into / "raises soon").touch()
            time.sleep(0.3)
        elif step == 6:  # a contribution was sent
            time.sleep(0.3)
            raise raises

    visiting(worker, into, epochs=4, each=each)


def joins(head: remote.Head, train: Callable[[ps.Worker], None], told: Path) -> None:
    """A worker that leaves how it ended, and what threads of ours there are then."""
    pid = os.fork()
    if not pid:
        before = set(threading.enumerate())  # a library that another test imported may start its own after a fork
        try:
            warnings.simplefilter("ignore")
            with ps.join(address=head.address, token=remote.TOKEN) as worker:
                train(worker)
            how = "well"
        except BaseException as error:
            how = type(error).__name__
        told.write_text(f"{how}: {sorted(one.name for one in set(threading.enumerate()) - before)}")
        os._exit(0)
    head.pids.append(pid)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("raised", "silent"),
    [
        (ValueError("no"), ""),
        (KeyboardInterrupt(), "up"),
        pytest.param(ValueError("no"), "up", marks=pytest.mark.slow),
        pytest.param(ValueError("no"), "down", marks=pytest.mark.slow),
        pytest.param(KeyboardInterrupt(), "", marks=pytest.mark.slow),
        pytest.param(KeyboardInterrupt(), "down", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_raises_while_a_contribution_is_in_flight_ends(
    raised: BaseException, silent: str, tmp_path: Path
) -> None:
    """The wire is slow, or takes no byte one way."""
    with remote.head(rejoin_s=2.0) as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        joins(head, functools.partial(in_flight, raises=raised, into=tmp_path), tmp_path / "told")

        def silence() -> None:
            until((tmp_path / "raises soon").exists)
            proxy.silent = frozenset(silent.split())
            proxy.becomes = lambda chunk: (time.sleep(0.1), chunk)[1]
            until((tmp_path / "told").exists)
            proxy.silent, proxy.becomes = frozenset(), bytes

        with meanwhile(silence), pytest.raises((ps.WorkerError, ps.WorkerLostError)):
            head.run(GOING_ON, workers=1)
        assert head.end() == [0]
        proxy.close()
    assert (tmp_path / "told").read_text() == f"{type(raised).__name__}: []"


@pytest.mark.thorough
def test_a_worker_that_goes_on_is_told_why_the_run_ended(tmp_path: Path) -> None:
    with remote.head() as head:
        head.fork(functools.partial(in_flight, raises=ValueError("no more"), into=tmp_path), rank=0)
        head.fork(functools.partial(visiting, into=tmp_path, epochs=1000), rank=1)
        with pytest.raises(ps.WorkerError, match="no more"):
            head.run(ps.local_sgd(3, overlap=True), workers=WORKERS)
        assert head.end() == [1, 1]
    assert "plesio.errors.WorkerError: worker 0 raised ValueError: no more" in head.warned


@pytest.mark.slow
def test_a_worker_cut_off_for_longer_than_the_lease_takes_its_seat_again(tmp_path: Path) -> None:
    with remote.head(rejoin_s=30.0) as head:
        proxy = Proxy(head.port)
        for rank, port in enumerate((head.port, proxy.port)):
            head.address = f"tcp://127.0.0.1:{port}"
            head.fork(functools.partial(visiting, into=tmp_path, epochs=20, pause_s=0.02), rank=rank)

        def cut_off() -> None:
            until(lambda: begun(tmp_path, WORKERS, version=4))
            proxy.open = False
            proxy.cut()
            time.sleep(LEASE_S + 1.5)
            proxy.open = True

        with meanwhile(cut_off):
            done = head.run(GOING_ON, workers=WORKERS, runs=tmp_path / "runs")
        assert head.end() == [0, 0]
        proxy.close()
    assert visits(done) == {20.0}
    assert done.batches_unvisited == 0
    assert joined(done) == [(0, 1), (1, 1), (1, 2)]
