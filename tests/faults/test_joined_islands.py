"""Islands whose ranks somebody else started, beside the head and over TCP: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.transport.certificates import make_certificates
from plesio.transport.limits import LEASE_S
from plesio.transport.socket_wire import SocketWire
from support import joined_islands as islands
from support import remote
from support.proxy import Proxy

RANKS = 2
NEAR_FAR = pytest.mark.parametrize(
    "far", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["beside the head", "over TCP"]
)
pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher that these tests themselves run under."""
    for name in [*os.environ]:
        if name.startswith(("PLESIO_", "TORCHELASTIC_", "SLURM_")):
            monkeypatch.delenv(name)


def fork(head: remote.Head, train: Callable[..., object], worker: int, enter: Any = None, **options: Any) -> None:
    """The ranks of that worker."""
    port = islands.free_port()
    for rank in range(RANKS):
        as_rank = islands.as_rank(rank, RANKS, port)
        entered = (lambda first=as_rank: (enter(), first())) if enter is not None else as_rank
        head.fork(train, enter=entered, rank=worker, island=True, **options)


def run_of(strategy: Any, far: bool, train: Callable[..., object], certs: Path | None = None) -> ps.Run:
    with remote.head(far=far, certs=certs) as head:
        for worker in range(2):
            fork(head, train, worker, certs=certs)
        done = head.run(strategy, workers=2, seed=3, timeout_s=60.0)
        assert head.end() == [0] * 2 * RANKS, head.warnings()
    return done


def plain(strategy: Any) -> ps.Run:
    """Workers of one process."""
    return ps.run(partial(islands.train, inside=""), strategy, workers=2, seed=3, engine=ps.Simulated("uniform"))


def assert_equal(run: ps.Run, other: ps.Run) -> None:
    assert (run.version, run.steps, run.samples) == (other.version, other.steps, other.samples)
    assert all(torch.equal(value, other.state_dict[name]) for name, value in run.state_dict.items())


def counted(worker: ps.Worker, folder: Path) -> None:
    """Train, and write how many bytes of tensors this rank sent and took."""
    moved = {"sent": 0, "taken": 0}
    send, take = SocketWire.send, SocketWire.read_payload

    def sending(wire: SocketWire, kind: Any, body: bytes, payload: Any = (), *rest: Any) -> None:
        moved["sent"] += sum(one.nbytes for one in payload)
        send(wire, kind, body, payload, *rest)

    def taking(wire: SocketWire, into: Any) -> None:
        moved["taken"] += sum(one.nbytes for one in into)
        take(wire, into)

    def at_step(step: int) -> None:
        if step == 4:  # what training began with has passed
            SocketWire.send, SocketWire.read_payload = sending, taking  # type: ignore[method-assign]

    islands.train(worker, each=at_step)
    exchanges = islands.EPOCHS * islands.SAMPLES // islands.BATCH // 2 // 4  # of the two workers each
    for what, nbytes in moved.items():
        (folder / f"{what}-{worker.rank}-{worker.island.rank}").write_text(str(nbytes / exchanges))


@pytest.mark.thorough
def test_islands_that_joined_beside_the_head_give_the_bits_of_one_process() -> None:
    assert_equal(run_of(ps.local_sgd(4), False, islands.train), plain(ps.local_sgd(4)))


@pytest.mark.thorough
def test_islands_over_tcp_give_the_bits_of_one_process_and_each_rank_moves_its_part(tmp_path: Path) -> None:
    assert_equal(run_of(ps.local_sgd(4), True, partial(counted, folder=tmp_path)), plain(ps.local_sgd(4)))
    model = sum(one.nbytes for one in islands.build().state_dict().values())
    moved = [float(one.read_text()) for one in tmp_path.iterdir()]
    assert len(moved) == 2 * 2 * RANKS
    assert all(0.9 * model / RANKS < one <= 1.05 * model / RANKS for one in moved)


@pytest.mark.slow
@NEAR_FAR
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.diloco(4)], ids=lambda one: one.name)
def test_other_strategies_and_what_every_rank_holds(strategy: ps.Strategy, far: bool) -> None:
    run = run_of(strategy, far, partial(islands.train, inside="ddp"))
    for name, value in plain(strategy).state_dict.items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_islands_over_tls(tmp_path: Path) -> None:
    (certs,) = make_certificates(tmp_path / "certs", ["127.0.0.1"])
    assert_equal(run_of(ps.local_sgd(4), True, islands.train, certs), plain(ps.local_sgd(4)))


@pytest.mark.slow
def test_an_island_whose_ranks_are_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # as each of them is told then
    assert_equal(run_of(ps.local_sgd(4), True, islands.train), plain(ps.local_sgd(4)))


@pytest.mark.thorough
@NEAR_FAR
def test_the_death_of_a_rank_is_one_death_and_a_successor_has_the_seat(tmp_path: Path, far: bool) -> None:
    train = partial(islands.train_or_die, folder=tmp_path, victim=1)
    with remote.head(far=far) as head:
        for worker in range(2):
            fork(head, train, worker)
        fork(head, train, 1, enter=lambda: islands.wait_for(tmp_path / "died"))
        run = head.run(ps.async_local_sgd(2), workers=2, timeout_s=60.0)
        codes = head.end()
    assert codes[:2] + codes[4:] == [0] * 4
    assert codes[2:4] == [1, -9]  # the leader's collective failed
    assert_one_death(run)


def assert_one_death(run: ps.Run) -> None:
    assert [one.what.split(";")[0] for one in run.summary.incidents if "died" in one.what] == ["worker 1 died"]
    assert run.samples == islands.EPOCHS * islands.SAMPLES  # each batch was folded once
    assert all(one.folded for one in run.summary.workers)


def fork_all_reduce(
    head: remote.Head, train: Callable[..., object], before: Callable[[], object] = lambda: None
) -> None:
    """Workers that are one group."""
    port = islands.free_port()
    for rank in range(RANKS):
        enter = islands.as_rank(rank, RANKS, port)
        head.fork(train, enter=lambda first=enter: (before(), first()), strategy="allreduce")


@pytest.mark.thorough
@NEAR_FAR
def test_workers_that_all_reduce_are_one_island(far: bool) -> None:
    """The bits are those of processes that the run starts."""
    train = partial(islands.train, inside="")
    with remote.head(far=far) as head:
        fork_all_reduce(head, train)
        done = head.run("allreduce", workers=RANKS, seed=3, timeout_s=60.0)
        assert head.end() == [0] * RANKS, head.warnings()
    other = ps.run(train, ps.allreduce("torch"), workers=RANKS, seed=3)
    assert (done.steps, done.samples) == (other.steps, other.samples)
    assert all(torch.equal(value, other.state_dict[name]) for name, value in done.state_dict.items())


def all_reduce_or_die(worker: ps.Worker, folder: Path) -> None:
    """Rank 1 kills itself once, in its fifth step."""
    died = folder / "died"

    def each(step: int) -> None:
        if worker.rank == 1 and step == 5 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    islands.train(worker, inside="", each=each)


@pytest.mark.thorough
def test_successors_of_workers_that_all_reduced_go_on_from_what_was_shown(tmp_path: Path) -> None:
    train = partial(all_reduce_or_die, folder=tmp_path)
    with remote.head(far=True) as head:
        fork_all_reduce(head, train)
        fork_all_reduce(head, train, before=lambda: islands.wait_for(tmp_path / "died"))
        run = head.run("allreduce", workers=RANKS, timeout_s=60.0)
        codes = head.end()
    assert codes[1:] == [-9, 0, 0]
    assert run.samples == islands.EPOCHS * islands.SAMPLES
    assert "the workers have begun anew" in [one.what for one in run.incidents]


def test_a_worker_that_all_reduces_does_not_join_alone() -> None:
    words = r"RANK, WORLD_SIZE, .* start all of them with torchrun"
    with pytest.raises(ps.ConfigurationError, match=words), ps.join("allreduce", address="127.0.0.1:1"):
        pass


def raising(worker: ps.Worker) -> None:
    """One rank does, in its fifth step."""

    def each(step: int) -> None:
        if (worker.rank, worker.island.rank, step) == (1, 1, 5):
            raise KeyError("on purpose")

    islands.train(worker, each=each)


@pytest.mark.slow
@NEAR_FAR
def test_what_a_rank_raises_ends_the_run_with_its_name(far: bool) -> None:
    with pytest.raises(ps.WorkerError, match="worker 1 rank 1 raised KeyError: 'on purpose'"):
        run_of(ps.local_sgd(4), far, raising)


def pausing(worker: ps.Worker, folder: Path, pause_s: float = 0.05) -> None:
    def each(step: int) -> None:
        if step == 2:
            (folder / f"begun-{worker.rank}-{worker.island.rank}").touch()
        time.sleep(pause_s)

    islands.train(worker, each=each)


@pytest.mark.slow
def test_connections_of_ranks_that_are_cut_lose_and_double_nothing(tmp_path: Path) -> None:
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for worker in range(2):
            fork(head, partial(pausing, folder=tmp_path), worker)

        def cut() -> None:
            islands.wait_for(tmp_path / "begun-1-1")
            for _ in range(5):
                proxy.cut()
                time.sleep(0.15)

        cutting = threading.Thread(target=cut)
        cutting.start()
        run = head.run(ps.local_sgd(4), workers=2, seed=3, timeout_s=60.0)
        cutting.join()
        assert head.end() == [0] * 2 * RANKS, head.warnings()
        proxy.close()
    assert proxy.connections > 2 * 2 * RANKS
    assert_equal(run, plain(ps.local_sgd(4)))


@pytest.mark.slow
def test_a_rank_that_is_cut_off_for_longer_than_its_lease_is_the_death_of_its_worker(tmp_path: Path) -> None:
    """The others of it hear so, and the other worker goes on."""
    with remote.head() as head:
        proxy = Proxy(head.port)
        there, port, train = head.address, islands.free_port(), partial(pausing, folder=tmp_path, pause_s=0.5)
        told = tmp_path / "told"
        fork(
            head, partial(islands.train, each=lambda step: islands.wait_for(told) if step == islands.ALONE else None), 0
        )
        for rank in range(RANKS):
            head.address = f"tcp://127.0.0.1:{proxy.port}" if rank else there
            head.fork(train, enter=islands.as_rank(rank, RANKS, port), rank=1, island=True)

        def cut_off() -> None:
            islands.wait_for(tmp_path / "begun-1-1")
            proxy.open = False
            proxy.cut()
            time.sleep(LEASE_S + 1.5)
            proxy.open = True
            islands.until(lambda: "was lost for longer than its lease" in head.warnings())
            told.touch()

        cutting = threading.Thread(target=cut_off)
        cutting.start()
        run = head.run(ps.async_local_sgd(4), workers=2, timeout_s=60.0)
        cutting.join()
        codes = head.end()
        proxy.close()
    assert codes == [0, 0, 1, 1]
    assert [one.what.split(";")[0] for one in run.summary.incidents if "died" in one.what] == ["worker 1 died"]
    assert run.samples == islands.EPOCHS * islands.SAMPLES


@pytest.mark.slow
@pytest.mark.timeout(300)
@NEAR_FAR
def test_torchrun_restarts_an_island_into_its_seat(tmp_path: Path, far: bool) -> None:
    script = str(Path(islands.__file__))
    with remote.head(far=far, rejoin_s=60.0) as head:
        own = "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--max-restarts=2", f"--nproc-per-node={RANKS}"
        told = {"PLESIO_JOIN": head.address, "PLESIO_TOKEN": remote.TOKEN, "OMP_NUM_THREADS": "1"}
        agents = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    *own,
                    f"--rdzv-id={worker}",
                    script,
                    str(tmp_path),
                    "1",
                ],
                env={**os.environ, **told, "PLESIO_RANK": str(worker)},
            )
            for worker in range(2)
        ]
        run = head.run(ps.async_local_sgd(2), workers=2, timeout_s=120.0)
        assert [agent.wait(60.0) for agent in agents] == [0, 0]
    assert_one_death(run)
