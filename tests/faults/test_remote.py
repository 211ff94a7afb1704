"""Workers of other hosts: real processes, over TCP."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from conformance.table import strategies
from plesio.core.events import Joined, LeaseWanted
from plesio.launch.remote.link import _answer_to
from plesio.protocol import remote as messages
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from plesio.strategy.answers import Blend, Rebase, Replace, Round, TopK
from plesio.transport.certificates import make_certificates
from plesio.transport.connect import connect
from plesio.transport.limits import LEASE_S, RETURN_S
from support import remote
from support.long_forms import but_slow, but_thorough
from support.loops import CLASSES, FEATURES, data
from support.proxy import Proxy
from support.reading import free_port
from support.replayed import chancy


def waiting(strategy: Strategy) -> Strategy:
    """The same, whose workers wait for their answers wherever they are: when one comes is up to the network."""
    adopt = strategy.adopt
    if not isinstance(adopt, Rebase):
        return strategy
    return replace(strategy, adopt=Blend(adopt.alpha) if adopt.blends else Replace(adopt.codec))


AT_SERVER = map(waiting, strategies(at_server=True, real=True))
ALL = [one for one in AT_SERVER if not one.gather.in_rounds or one.gather == Round()]
PACKED = [ps.sync_sgd(codec="int8"), ps.sync_sgd(codec=TopK(0.1))]
ALONE = [*ALL, ps.first_of(1), ps.quorum(1), *PACKED]
EACH_WAY = {"async_sgd", "first_of(1)", "elastic_averaging(every=3)", "async_local_sgd(every=3, codec=top 10%)"}
"""Each way of adopting a version; those in lock step have a test of their own."""
IN_LOCK_STEP = [one for one in ALONE if one.in_lock_step]


def same(one: ps.Run, other: ps.Run) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_slow(ALONE, EACH_WAY), ids=lambda one: one.name)
def test_one_remote_worker_gives_the_same_bits_as_a_local_one(strategy: Strategy) -> None:
    train = functools.partial(chancy, epochs=1)
    local, far = ps.run(train, strategy, workers=1, seed=0), remote.run(train, strategy)
    assert far.version == local.version
    assert same(far, local)


def looking_up(worker: ps.Worker) -> None:
    """Two optimizers, one of them of a table with sparse gradients."""
    torch.manual_seed(1)
    table, tower = torch.nn.Embedding(100, 4, sparse=True), torch.nn.Linear(4, 1)
    ours: Any = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    theirs: Any = torch.optim.SGD(tower.parameters(), lr=0.1, momentum=0.9)
    table, tower, ours, theirs = worker.prepare(table, tower, ours, theirs)
    source = torch.Generator().manual_seed(worker.rank)
    for _ in range(12):
        ours.zero_grad()
        theirs.zero_grad()
        tower(table(torch.randint(0, 100, (5,), generator=source))).square().mean().backward()
        ours.step()
        theirs.step()


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", but_thorough(["sync_sgd", "async_sgd"], {"async_sgd"}))
def test_several_optimizers_and_tables_give_the_same_bits_from_afar(strategy: str) -> None:
    workers = 2 if strategy == "sync_sgd" else 1
    local = ps.run(looking_up, strategy, workers=workers)
    assert same(remote.run(looking_up, strategy, workers=workers), local)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_thorough(IN_LOCK_STEP, {"diloco(every=3, codec=int8)"}), ids=lambda one: one.name
)
def test_remote_workers_in_lock_step_give_the_same_bits_as_local_ones(strategy: Strategy) -> None:
    train = functools.partial(chancy, epochs=1)
    local, far = ps.run(train, strategy, workers=3), remote.run(train, strategy, workers=3)
    assert far.version == local.version
    assert same(far, local)
    assert [one.away for run in (local, far) for one in run.summary.workers] == [False] * 3 + [True] * 3


@pytest.mark.few(1)
@pytest.mark.parametrize("far", [True, False], ids=["remote", "of this host"])
def test_a_run_that_workers_joined_replays(tmp_path: Path, far: bool) -> None:
    train = functools.partial(chancy, epochs=1)
    done = remote.run(train, "async_sgd", workers=3, far=far, runs=tmp_path)
    assert ps.replay(done.folder, train=train).identical


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_thorough([ps.async_sgd(), ps.local_sgd(5)], {"async_sgd"}), ids=lambda one: one.name
)
def test_a_remote_worker_asks_for_data_ahead_and_its_run_replays(strategy: Strategy, tmp_path: Path) -> None:
    """Beside one of the head's own host, which does not."""
    train = functools.partial(chancy, epochs=2)
    with remote.head() as head:
        for rank in range(2):
            head.fork(train, rank=rank, address=head.address if rank else head.address.removeprefix("tcp://"))
        done = head.run(strategy, workers=2, runs=tmp_path)
        assert head.end() == [0, 0]
    events = [one.event for one in read_journal(done.folder).decisions()]
    assert {one.worker for one in events if isinstance(one, LeaseWanted) and one.ahead} == {1}
    assert done.batches_unvisited == 0
    assert ps.replay(done.folder, train).identical


def test_a_run_over_tls_gives_the_same_bits(tmp_path: Path) -> None:
    (certs,) = make_certificates(tmp_path / "certs", ["127.0.0.1"])
    train = functools.partial(chancy, epochs=1)
    with remote.head(certs=certs) as head:
        for rank in range(2):
            head.fork(train, rank=rank, certs=certs)
        far = head.run("sync_sgd", workers=2)
        assert head.end() == [0, 0]
    assert same(far, ps.run(train, "sync_sgd", workers=2))


@pytest.mark.thorough
def test_workers_that_are_not_of_the_run_are_refused_by_name(tmp_path: Path) -> None:
    """Another token, strategy, setting, rank: each is told what is wrong, and the run goes on with the others."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"token": "a token of somebody else's"}, "the worker's token .* is not the head's"),
        ({"strategy": "sync_sgd"}, "was told other settings than the run has: strategy="),
        ({"seed": 7}, "was told other settings than the run has: seed=7, not None"),
        ({"rank": 5}, "worker 5 has no seat: the run has 2 workers, 0 to 1"),
    ]
    with remote.head() as head:
        for options, _ in wrong:
            head.fork(functools.partial(chancy, epochs=1), **options)
        for rank in range(2):
            head.fork(functools.partial(counting, into=tmp_path, epochs=1, pause_s=0.02), rank=rank, after_s=1.0)
        done = head.run("async_sgd", workers=2)
        assert head.end() == [1, 1, 1, 1, 0, 0]
    assert (done.version, done.batches_unvisited) == (240, 0)
    for _, why in wrong:
        assert re.search(why, head.warned)


def joined(done: ps.Run) -> list[tuple[int, int]]:
    """Who joined, as worker and incarnation."""
    events = [one.event for one in read_journal(done.folder).decisions()]
    return [(one.worker, one.incarnation) for one in events if isinstance(one, Joined)]


def counting(worker: Any, into: Path, epochs: int, pause_s: float = 0.004) -> None:
    """Trains, and leaves how many of its steps were taken."""
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    loader = DataLoader(TensorDataset(*data(960)), batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = worker.prepare(model, optimizer, loader, schedule)
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(dropout(inputs, 0.1)), labels).backward()
            time.sleep(pause_s)
            optimizer.step()
            schedule.step()
            (into / f"at-{os.getpid()}").write_text(str(worker.version))


def dies(worker: ps.Worker) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.01)


def begun(folder: Path, workers: int, version: int = 20) -> bool:
    versions = [int(file.read_text() or 0) for file in folder.glob("at-*")]
    return len(versions) >= workers and min(versions) >= version


def newest_checkpoint(runs: Path) -> int:
    """The version of it; 0 if there is none."""
    return max((int(one.name.removeprefix("version-")) for one in runs.glob("*/checkpoints/version-*")), default=0)


def kill_ahead_of_checkpoints(head: remote.Head, folder: Path, workers: int) -> None:
    """Kill the server when each worker has seen a later version than the newest checkpoint's."""

    def ahead(by: int) -> bool:
        newest = newest_checkpoint(folder / "runs")
        return newest > 0 and begun(folder, workers, version=newest + by)

    while True:
        until(lambda: ahead(3))
        os.kill(head.server_pid(), signal.SIGSTOP)
        if ahead(1):  # also now that it writes no other
            return os.kill(head.server_pid(), signal.SIGKILL)
        os.kill(head.server_pid(), signal.SIGCONT)


@contextmanager
def meanwhile(do: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread beside the run, which has the main one."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    yield
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.thorough
def test_connections_that_are_cut_lose_and_double_nothing(tmp_path: Path) -> None:
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(2):
            head.fork(functools.partial(counting, into=tmp_path, epochs=4), rank=rank)

        def cut() -> None:
            until(lambda: begun(tmp_path, 2))
            for _ in range(15):
                proxy.cut()
                time.sleep(random.uniform(0.01, 0.2))

        with meanwhile(cut):
            done = head.run("async_sgd", workers=2)
        assert head.end() == [0, 0]
        proxy.close()
    assert proxy.connections > 10
    assert (done.version, done.steps, done.batches_unvisited) == (960, 960, 0)
    assert not done.discarded
    assert [one.left for one in done.workers] == ["finished"] * 2


@pytest.mark.thorough
def test_a_worker_whose_connection_is_closed_while_it_computes_keeps_its_seat(tmp_path: Path) -> None:
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        head.fork(functools.partial(computing_for_long, computes=tmp_path / "computes", for_s=2 * RETURN_S))

        def cut() -> None:
            until((tmp_path / "computes").exists)
            proxy.cut()

        with meanwhile(cut):
            done = head.run("async_sgd", workers=1, runs=tmp_path / "runs")
        assert head.end() == [0]
        proxy.close()
    assert proxy.connections == 2
    assert joined(done) == [(0, 1)]
    assert done.steps == 3


def computing_for_long(worker: Any, computes: Path, for_s: float) -> None:
    model = nn.Linear(1, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    for step in range(3):
        model(torch.ones(1)).backward()
        if step == 1:
            computes.touch()
            time.sleep(for_s)
        optimizer.step()


@pytest.mark.thorough
def test_a_killed_worker_has_a_successor_in_its_seat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "plesio")
    with remote.head() as head:
        train = functools.partial(counting, into=tmp_path, epochs=4)
        pids = [head.fork(train, rank=rank) for rank in range(2)]

        def replace() -> None:
            until(lambda: begun(tmp_path, 2))
            os.kill(pids[1], signal.SIGKILL)
            head.fork(train, rank=1)

        with meanwhile(replace):
            done = head.run("async_sgd", workers=2, runs=tmp_path / "runs")
        assert head.end() == [0, -signal.SIGKILL, 0]
    assert (done.version, done.batches_unvisited) == (960, 0)
    assert done.steps == done.folded == 960
    assert joined(done) == [(0, 1), (1, 1), (1, 2)]
    assert any("worker 1 died" in one.what for one in done.incidents)
    assert any("worker 1 is back" in one.what for one in done.incidents)
    told = [one.getMessage() for one in caplog.records if one.name == "plesio"]
    assert [one.split(" is ")[0] for one in told if "of 2 are here" in one][2:] == ["worker 1"]
    incidents = [one.what for one in done.incidents]
    assert [one for one in told if one in incidents] == incidents  # a successor that knocks too soon is told of, too


@pytest.mark.slow
def test_a_worker_cut_off_for_longer_than_the_lease_rejoins_in_place(tmp_path: Path) -> None:
    with remote.head(rejoin_s=30.0) as head:
        proxy = Proxy(head.port)
        for rank, port in enumerate((head.port, proxy.port)):
            head.address = f"tcp://127.0.0.1:{port}"
            head.fork(functools.partial(counting, into=tmp_path, epochs=4, pause_s=0.02), rank=rank)

        def cut_off() -> None:
            until(lambda: begun(tmp_path, 2))
            proxy.open = False
            proxy.cut()
            time.sleep(LEASE_S + 1.5)
            proxy.open = True

        with meanwhile(cut_off):
            done = head.run("async_sgd", workers=2, runs=tmp_path / "runs")
        assert head.end() == [0, 0]
        proxy.close()
    assert (done.version, done.batches_unvisited) == (960, 0)
    assert joined(done) == [(0, 1), (1, 1), (1, 2)]
    assert any("worker 1 is back" in one.what for one in done.incidents)


@pytest.mark.parametrize(
    ("strategy", "version"),
    [
        (ps.async_sgd(), 480),
        pytest.param(ps.sync_sgd(), 240, marks=pytest.mark.slow),
        pytest.param(ps.local_sgd(every=2), None, marks=pytest.mark.slow),
    ],
)
def test_workers_outlive_a_killed_server_and_go_on_from_its_checkpoint_and_the_run_replays(
    strategy: Strategy, version: int | None, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"workers": 2, "checkpoint": ps.Checkpoint(every_s=0.2)}
    train = functools.partial(counting, into=tmp_path, epochs=2, pause_s=0.03)  # it is killed before it ends
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(2):
            head.fork(train, rank=rank)

        def kill() -> None:
            until(lambda: begun(tmp_path, 2, version=40))
            kill_ahead_of_checkpoints(head, tmp_path, 2)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            head.run(strategy, **settings, durability="none", runs=tmp_path / "runs")
        (folder,) = (tmp_path / "runs").iterdir()
        head.reopen()
        done = head.run(strategy, **settings, runs=tmp_path / "again", resume=folder)
        assert head.end() == [0, 0]
    assert done.batches_unvisited == 0
    assert version in (None, done.version)
    assert done.incidents[0].what.startswith("resumed at version ")
    assert head.warned.count("the run went back from version ") == 2
    assert str(ps.replay(done.folder, train)) == f"bit-identical: {done.version} versions, all computed again"
    assert joined(done)[-2:] == [(0, 2), (1, 2)] or joined(done)[-2:] == [(1, 2), (0, 2)]


@pytest.mark.thorough
def test_workers_that_know_two_addresses_go_on_where_the_run_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": 2, "checkpoint": ps.Checkpoint(every_s=0.2)}
    train, port = functools.partial(counting, into=tmp_path, epochs=2, pause_s=0.03), free_port()
    with remote.head(rejoin_s=30.0) as first:
        for rank in range(2):
            first.fork(train, rank=rank, address=f"{first.address},127.0.0.1:{port}")

        def kill() -> None:
            until(lambda: begun(tmp_path, 2, version=40))
            kill_ahead_of_checkpoints(first, tmp_path, 2)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            first.run("async_sgd", **settings, durability="none", runs=tmp_path / "runs")
        first.close()
        (folder,) = (tmp_path / "runs").iterdir()
        with remote.head(rejoin_s=30.0, port=port) as second:
            done = second.run("async_sgd", **settings, runs=tmp_path / "again", resume=folder)
        assert first.end() == [0, 0], first.warnings()
    assert (done.version, done.batches_unvisited) == (480, 0)
    assert str(ps.replay(done.folder, train)) == f"bit-identical: {done.version} versions, all computed again"


def gathers(worker: ps.Worker, into: Path) -> None:
    """Worker 0 prepares, worker 1 raises when it is told to, and worker 2 prepares when the run is over."""
    (into / f"here {worker.rank}").touch()
    until(lambda: worker.rank == 0 or (into / f"go {worker.rank}").exists())
    if worker.rank == 1:
        raise ValueError("no data here")
    one_step(worker, 1.0, into)


@pytest.mark.parametrize("far", [True, False], ids=["remote", "of this host"])
def test_workers_are_told_why_training_did_not_begin_and_a_long_name_is_cut(
    far: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with remote.head(far) as head:
        for rank in range(3):
            head.fork(functools.partial(gathers, into=tmp_path), rank=rank)

        def knock() -> None:
            until(lambda: all((tmp_path / f"here {rank}").exists() for rank in range(3)))
            wire = connect("127.0.0.1", head.port, remote.TOKEN, None, messages.NO_TICKET)
            _answer_to(messages.Knock("x" * 40_000, "y" * 40_000, options={"z" * 40_000: "z" * 40_000}), wire)
            wire.close()
            (tmp_path / "go 1").touch()

        with caplog.at_level("INFO", "plesio"), meanwhile(knock), pytest.raises(ps.WorkerError, match="no data here"):
            head.run("sync_sgd", workers=4)
        (tmp_path / "go 2").touch()
        assert head.end() == [1, 1, 1]
    assert head.warned.count("plesio.errors.WorkerError: worker 1 raised ValueError: no data here") == 2
    assert "last checkpoint" not in head.warned
    (refused,) = (one.getMessage() for one in caplog.records if "was refused" in one.getMessage())
    assert refused.startswith("xxx")
    assert len(refused) < 1200


@pytest.mark.thorough
@pytest.mark.parametrize(("train", "how"), [(dies, "died"), (str, "finished")])
def test_a_head_whose_workers_all_go_before_the_others_come_says_that_training_did_not_begin(
    train: Callable[..., object], how: str
) -> None:
    with remote.head(rejoin_s=0.5) as head:
        head.fork(train, rank=0)
        with pytest.raises(ps.WorkerLostError, match=f"training did not begin: worker 0 {how}, worker 1 did not come;"):
            head.run("sync_sgd", workers=2)


@pytest.mark.slow
def test_a_stopped_worker_loses_its_seat_within_the_lease_and_takes_it_again(tmp_path: Path) -> None:
    train = functools.partial(counting, into=tmp_path, epochs=4, pause_s=0.02)
    with remote.head(rejoin_s=30.0) as head:
        pids = [head.fork(train, rank=rank) for rank in range(2)]

        def stop() -> None:
            until(lambda: begun(tmp_path, 2))
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(LEASE_S + 2)
            os.kill(pids[1], signal.SIGCONT)

        with meanwhile(stop):
            done = head.run("sync_sgd", workers=2, runs=tmp_path / "runs")
        assert head.end() == [0, 0]
    assert done.batches_unvisited == 0
    assert joined(done) == [(0, 1), (1, 1), (1, 2)]
    (died,) = (one for one in done.incidents if "worker 1 died" in one.what)
    (back,) = (one for one in done.incidents if "worker 1 is back" in one.what)
    assert ps.replay(done.folder, train).identical
    assert back.time_s - died.time_s < 4.0  # it was missed for the rest of that time


def test_what_only_a_worker_of_the_head_can_give_is_asked_for(tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=1)
    done = remote.run(train, "async_sgd", workers=2, far=False, evaluate=lambda model: {"two": 2.0})
    assert done.history[-1].metrics == {"two": 2.0}
    with remote.head() as head:
        head.fork(train)
        with pytest.raises(ps.ConfigurationError, match="only a worker on the head's own host can hand over"):
            head.run("async_sgd", workers=1, evaluate=lambda model: {"two": 2.0})


@pytest.mark.parametrize("far", [True, False], ids=["remote", "of this host"])
def test_a_run_ends_though_the_process_of_its_worker_goes_on(far: bool) -> None:
    with remote.head(far) as head:
        pid = os.fork()
        if not pid:
            try:
                for one in head._door.sockets:
                    one.close()
                with ps.join(address=head.address, token=remote.TOKEN) as worker:
                    chancy(worker, epochs=1)
                time.sleep(100.0)
            finally:
                os._exit(0)
        head.pids.append(pid)
        done = head.run("async_sgd", workers=1)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert [one.left for one in done.workers] == ["finished"]


@pytest.mark.thorough
def test_a_stopped_server_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(2):
            head.fork(functools.partial(counting, into=tmp_path, epochs=2, pause_s=0.01), rank=rank)

        def stop() -> None:
            until(lambda: begun(tmp_path, 2))
            os.kill(pid := head.server_pid(), signal.SIGSTOP)
            time.sleep(LEASE_S + 1.5)
            os.kill(pid, signal.SIGCONT)

        with meanwhile(stop):
            done = head.run("async_sgd", workers=2)
        assert head.end() == [0, 0]
    assert (done.version, done.batches_unvisited) == (480, 0)
    assert "the server has said nothing for 5 s: it is stopped, or hangs; the workers wait" in {
        one.what for one in done.incidents
    }


def open_sockets() -> set[str]:
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if link.is_symlink() and os.readlink(link).startswith("socket:")}


def forks(worker: Any, into: Path) -> None:
    """Leaves how many of this process's sockets a process that it forks does not hold."""
    model = nn.Linear(FEATURES, CLASSES)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    ours, child = open_sockets(), os.fork()
    if not child:
        (into / "closed").write_text(str(len(ours - open_sockets())))
        os._exit(0)
    os.waitpid(child, 0)


def test_a_process_that_a_worker_forked_does_not_hold_its_connection(tmp_path: Path) -> None:
    """It would hide the worker's end from the head."""
    with pytest.warns(RuntimeWarning, match="nothing was trained"):
        remote.run(functools.partial(forks, into=tmp_path), "async_sgd")
    assert (tmp_path / "closed").read_text() == "1"


def one_step(worker: Any, gradient: float, into: Path, waits_for: str = "") -> None:
    """One step with this gradient, once that file is there."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    until(lambda: not waits_for or (into / waits_for).exists())
    model(torch.ones(1, 1)).sum().backward()
    model.weight.grad.fill_(gradient)
    (into / f"steps-{gradient:g}").touch()
    optimizer.step()


@pytest.mark.thorough
def test_a_successor_does_not_overwrite_what_the_dead_worker_had_sent(tmp_path: Path) -> None:
    """A round holds what a dead worker had sent; its successor has the same slot."""
    step = functools.partial(one_step, into=tmp_path)
    with remote.head(rejoin_s=30.0) as head:
        head.fork(functools.partial(step, gradient=0.0, waits_for="go"), rank=0)
        old = head.fork(functools.partial(step, gradient=1.0), rank=1)

        def replace() -> None:
            until(lambda: (tmp_path / "steps-1").exists())
            time.sleep(1.0)
            os.kill(old, signal.SIGKILL)
            head.fork(functools.partial(step, gradient=100.0), rank=1)
            time.sleep(3.0)
            (tmp_path / "go").touch()

        with meanwhile(replace):
            done = head.run("sync_sgd", workers=2)
        assert head.end() == [0, -signal.SIGKILL, 0]
    assert done.folded == 3
    (weight,) = done.state_dict.values()
    assert float(weight) == -0.5 - 100.0  # the mean of 0 and 1, then the successor alone


def large(worker: Any, into: Path) -> None:
    """Trains nothing (lr=0), with a model that is read in place."""
    torch.manual_seed(0)
    model = nn.Linear(600, 600)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for step in range(300):
        model(torch.ones(1, 600)).sum().backward()
        time.sleep(0.01)
        optimizer.step()
        (into / f"at-{os.getpid()}").write_text(str(step))


@pytest.mark.thorough
def test_a_head_that_begins_anew_has_the_weights_of_its_workers(tmp_path: Path) -> None:
    with remote.head(rejoin_s=30.0) as head:
        head.fork(functools.partial(large, into=tmp_path), rank=0)

        def kill() -> None:
            until(lambda: begun(tmp_path, 1))
            os.kill(head.server_pid(), signal.SIGKILL)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            head.run("async_sgd", workers=1)
        head.reopen()
        done = head.run("async_sgd", workers=1)
        assert head.end() == [0]
    torch.manual_seed(0)
    assert torch.equal(done.state_dict["weight"], nn.Linear(600, 600).weight)


def test_hogwild_is_refused_with_what_to_take_instead() -> None:
    with remote.head() as head, pytest.raises(ps.ConfigurationError, match="take async_sgd"):
        head.run("hogwild", workers=1)


def test_all_reduce_over_tls_is_refused(tmp_path: Path) -> None:
    (certs,) = make_certificates(tmp_path / "certs", ["127.0.0.1"])
    with remote.head(certs=certs) as head, pytest.raises(ps.ConfigurationError, match="knows no TLS"):
        head.run("allreduce", workers=1)


@pytest.mark.thorough
@pytest.mark.parametrize("far", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["remote", "of this host"])
def test_rounds_of_a_large_model_folded_in_place_give_the_same_bits_everywhere(far: bool) -> None:
    train = functools.partial(chancy, epochs=1, hidden=16_384)
    done = remote.run(train, "sync_sgd", workers=2, far=far)
    assert done.version > 0
    assert same(done, ps.run(train, "sync_sgd", workers=2))
