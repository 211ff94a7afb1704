"""Table servers that join from other processes over TCP, as from other hosts: cut off, killed, too many, too few."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from faults.test_remote import meanwhile, newest_checkpoint, until
from plesio.strategy import Strategy
from plesio.transport.certificates import make_certificates
from plesio.transport.limits import LEASE_S
from support.long_forms import but_slow
from support.proxy import Proxy
from support.remote import Head, head
from support.row_loop import Net, dealt, same_rows
from support.row_twin import ADAGRAD, STEPS, assert_rows, train, twin_of

OFTEN = ps.Checkpoint(every_s=0.1, keep=3)


@contextmanager
def joined(loop: Any = train, workers: int = 3, elsewhere: int = 2, **options: Any) -> Iterator[Head]:
    """A head beside which workers are, unless they are `far`, and table servers elsewhere."""
    over = {name: options.pop(name) for name in ("certs",) if name in options}
    with head(far=options.pop("far", False), servers_join=elsewhere, **over) as door:
        for rank in range(workers):
            door.fork(loop, rank=rank, **over)
        for _ in range(elsewhere):
            door.fork_server(**{"rejoin_s": 10.0, **over, **options})
        yield door


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_slow([ps.async_sgd(), ps.sync_sgd(), ps.first_of(2)], {"sync_sgd"}), ids=lambda one: one.name
)
def test_rows_are_those_of_the_twin_and_one_server_replays(strategy: Strategy, tmp_path: Path) -> None:
    with joined() as door:
        run = door.run(strategy, 3, runs=tmp_path, timeout_s=60, servers=3)
        assert door.end() == [0] * 5
    assert run.folder is not None
    assert_rows(run, twin_of(run.folder, strategy, ADAGRAD))
    again = ps.replay(run.folder, train, servers=1)
    assert str(again) == f"bit-identical: {run.version:,} versions, all computed again"


@pytest.mark.thorough
@pytest.mark.parametrize("far", [False, True], ids=["workers beside the head", "all elsewhere"])
def test_all_servers_may_be_elsewhere_behind_certificates(far: bool, tmp_path: Path) -> None:
    (certs,) = make_certificates(tmp_path / "certs", ["127.0.0.1"])
    with joined(certs=certs, far=far) as door:
        run = door.run(ps.async_sgd(), 3, runs=tmp_path / "runs", timeout_s=60, servers=2)
        assert door.end() == [0] * 5
    assert run.folder is not None
    assert_rows(run, twin_of(run.folder, ps.async_sgd(), ADAGRAD))


@pytest.mark.parametrize(
    "strategy", [ps.async_sgd(), pytest.param(ps.sync_sgd(), marks=pytest.mark.slow)], ids=lambda one: one.name
)
def test_connections_that_are_cut_lose_and_double_no_row(strategy: Strategy, tmp_path: Path) -> None:
    with head(far=False, servers_join=2) as door:
        proxy, begun, done = Proxy(door.port), tmp_path / "begun", tmp_path / "done"
        for rank in range(3):
            door.fork(partial(slowly, begun=begun, done=done), rank=rank)
        for _ in range(2):
            door.fork_server(address=f"127.0.0.1:{proxy.port}")

        def cut() -> None:
            until(begun.exists)
            for _ in range(12):
                before = proxy.connections
                proxy.cut()
                until(lambda before=before: proxy.connections > before)
                time.sleep(0.1)
            done.touch()

        with meanwhile(cut):
            run = door.run(strategy, 3, runs=tmp_path, timeout_s=60, servers=3)
        assert door.end() == [0] * 5
        proxy.close()
    assert proxy.connections > 12
    assert run.folder is not None
    assert_rows(run, twin_of(run.folder, strategy, ADAGRAD))
    assert run.steps == 3 * STEPS


def slowly(worker: Any, begun: Path, done: Path) -> None:
    """`train`, with a pause in each of its steps; before the last one it waits until `done` is there."""
    count, steps = worker.count, itertools.count(1)

    def pause(samples: int) -> None:
        begun.touch()
        time.sleep(0.1)
        if next(steps) == STEPS:
            until(done.exists)
        count(samples)

    worker.count = pause
    train(worker)


@pytest.fixture
def lost(tmp_path: Path) -> tuple[ps.Run, Path]:
    """A run that nobody disturbed, and one with checkpoints of which a table server elsewhere was killed."""
    loop = partial(dealt, epochs=12)
    whole = ps.run(loop, ps.sync_sgd(), workers=3, timeout_s=60)
    with joined(loop) as door:

        def kill() -> None:
            until(lambda: newest_checkpoint(tmp_path) > 0)
            os.kill(door.pids[-1], signal.SIGKILL)

        words = r"table server [12] at \S+ was lost at version \d+, .* go on from the last checkpoint"
        with meanwhile(kill), pytest.raises(ps.ServerLostError, match=words) as caught:
            door.run(ps.sync_sgd(), 3, runs=tmp_path, timeout_s=60, servers=3, checkpoint=OFTEN)
    assert caught.value.resume is not None
    return whole, caught.value.resume


@pytest.mark.thorough
def test_a_killed_server_is_named_and_any_number_goes_on_here_or_elsewhere(lost: Any, tmp_path: Path) -> None:
    whole, place = lost
    loop = partial(dealt, epochs=12)
    run = ps.run(loop, ps.sync_sgd(), workers=3, timeout_s=60, servers=2, resume=place)
    assert (run.version, same_rows(whole, run)) == (whole.version, True)
    with joined(loop) as door:
        run = door.run(ps.sync_sgd(), 3, timeout_s=60, servers=3, resume=place)
        assert door.end() == [0] * 5
    assert (run.version, same_rows(whole, run)) == (whole.version, True)


@pytest.mark.thorough
def test_a_server_that_outlives_its_run_joins_the_next_one_there(tmp_path: Path) -> None:
    loop = partial(dealt, epochs=12)
    with joined(loop, rejoin_s=30.0) as door:

        def kill() -> None:
            until(lambda: newest_checkpoint(tmp_path) > 0)
            os.kill(door.pids[-1], signal.SIGKILL)

        with meanwhile(kill), pytest.raises(ps.ServerLostError) as caught:
            door.run(ps.sync_sgd(), 3, runs=tmp_path, timeout_s=60, servers=3, checkpoint=OFTEN)
        door.reopen()
        for rank in range(3):
            door.fork(loop, rank=rank)
        door.fork_server()
        run = door.run(ps.sync_sgd(), 3, timeout_s=60, servers=3, resume=caught.value.resume)
        assert door.end() == [1, 1, 1, 0, -signal.SIGKILL, 0, 0, 0, 0]
    assert run.batches_unvisited == 0


@pytest.mark.thorough
def test_a_stopped_server_ends_the_run_after_its_lease() -> None:
    with joined(partial(dealt, epochs=400)) as door:

        def stop(live: ps.Live) -> None:
            if live.version >= 3 and door.pids:
                os.kill(door.pids[-1], signal.SIGSTOP)

        with pytest.raises(ps.ServerLostError, match=r"table server [12] at \S+ was lost"):
            door.run(ps.async_sgd(), 3, timeout_s=10 * LEASE_S, servers=3, watch=stop)


@pytest.mark.thorough
def test_ctrl_c_ends_the_servers_elsewhere_with_the_run(tmp_path: Path) -> None:
    with joined(partial(dealt, epochs=400)) as door:
        pressed: list[int] = []

        def press(live: ps.Live) -> None:
            if live.version >= 3 and not pressed:
                pressed.append(live.version)
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(ps.RunInterrupted):
            door.run(ps.async_sgd(), 3, timeout_s=60, servers=3, watch=press, runs=tmp_path)
        assert door.end()[3:] == [0, 0]


def brings(worker: Any) -> None:
    """Training begins with rows that worker 0 has from before, on a clock of their own."""
    prepare = worker.prepare

    def with_rows(net: Net, *others: Any) -> Any:
        net.ids(torch.arange(100, 120)).sum().backward()
        return prepare(net, *others)

    worker.prepare = with_rows
    dealt(worker, epochs=1)


@pytest.mark.thorough
def test_rows_from_before_the_run_are_dealt_to_servers_elsewhere() -> None:
    whole = ps.run(brings, ps.sync_sgd(), workers=3, timeout_s=60)
    with joined(brings) as door:
        run = door.run(ps.sync_sgd(), 3, timeout_s=60, servers=3)
        assert door.end() == [0] * 5
    assert {*range(100, 120)} < {*run.tables["ids"].get_extra_state()["keys"].tolist()}
    assert same_rows(whole, run)


@pytest.mark.thorough
def test_evaluations_see_rows_from_elsewhere() -> None:
    def looked(model: nn.Module) -> dict[str, float]:
        return {"ids": float(model.ids(torch.arange(30)).double().sum())}

    with joined(partial(dealt, epochs=4, pause_s=0.01)) as door:
        run = door.run(ps.async_sgd(), 3, looked, timeout_s=60, servers=3, evaluate_every_s=0.2)
        assert door.end() == [0] * 5
    net = Net()
    net.ids = run.tables["ids"]
    with torch.no_grad():
        assert looked(net)["ids"] == pytest.approx(run.history[-1].metrics["ids"], abs=1e-6)


@pytest.mark.thorough
def test_who_may_not_join_is_told_why(tmp_path: Path) -> None:
    mark, over = tmp_path / "begun", tmp_path / "over"
    with joined(partial(waits, mark=mark, over=over)) as door:
        refused = [
            door.fork_server(enter=partial(until, mark.exists)),
            door.fork_server(token="another token, as long as it"),
        ]
        door.pids[-2:] = []
        codes: list[int] = []

        def see() -> None:
            codes.extend(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in refused)
            over.touch()

        with meanwhile(see):
            door.run(ps.async_sgd(), 3, timeout_s=60, servers=3)
        assert (codes, door.end()) == ([1, 1], [0] * 5)
    assert "the run needs no table server: all 2 that it waits for are here" in door.warned
    assert "ProofError" in door.warned


def waits(worker: Any, mark: Path, over: Path) -> None:
    """`train`, which waits in its first step."""
    count = worker.count

    def pause(samples: int) -> None:
        mark.touch()
        until(over.exists)
        count(samples)

    worker.count = pause
    train(worker)


@pytest.mark.thorough
def test_training_waits_for_servers_and_names_those_that_do_not_come() -> None:
    with head(far=False, servers_join=2) as door:
        door.fork(train, rank=0)
        door.fork_server(rejoin_s=1.0)
        with pytest.raises(ps.DeadlineError, match="did not begin: table server 2 did not come within 4 s"):
            door.run(ps.async_sgd(), 1, timeout_s=4, servers=3)
        assert door.end() == [1, 1]
        with pytest.raises(ps.ServerLostError, match="no server: tried to reach the head"):
            ps.join_server(door.address, token="too late, and long enough", rejoin_s=0.1)


@pytest.mark.parametrize("servers", [1, 2])
def test_numbers_that_cannot_be_are_refused(servers: int) -> None:
    refused = pytest.raises(ps.ConfigurationError, match=rf"of {servers} servers are to join")
    with head(servers_join=3 if servers > 1 else 1) as door, refused:
        door.run(ps.async_sgd(), 1, servers=servers)
