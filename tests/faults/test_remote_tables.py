"""Workers of other hosts whose models have tables: real processes, over TCP, whose connections are cut."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from conformance.table import strategies
from faults.test_remote import joined, meanwhile, newest_checkpoint, until
from faults.test_wrong_workers import Wrong
from plesio.protocol.rows import RowsRequest
from plesio.protocol.worker import Aside
from plesio.strategy import Strategy
from plesio.strategy.answers import AtOnce, WithFold
from plesio.transport.limits import LEASE_S
from plesio.transport.row_slots import MOST
from plesio.transport.wire import FrameKind
from support import remote
from support.long_forms import but_slow, but_thorough, in_turn
from support.proxy import Proxy
from support.row_loop import dealt, same_rows
from support.row_twin import ADAGRAD, assert_rows, train, twin_of


def both(strategy: Strategy) -> list[Strategy]:
    """With both answers to when rows step."""
    other = WithFold() if strategy.rows.at_once else AtOnce()
    return [strategy, replace(strategy, rows=other, name=f"{strategy.name} rows {other.words}")]


ALL = [one for strategy in strategies(at_server=True, real=True) for one in both(strategy)]
LATE = [ps.local_sgd(2, overlap=True), ps.async_sgd(ahead=1)]
"""Workers of this host go on while their answers travel; those of others wait."""
QUICK = {one.name for one in ALL if one.name.split()[0] in ("async_sgd", "sync_sgd", "first_of(2)", "local_sgd(every")}
FIRST_OF_ALL = {"async_sgd rows at once", "sync_sgd"}


def mixed(loop: Callable[..., object], strategy: Strategy, folder: Path, far: str, servers: int = 1) -> ps.Run:
    """A run of a worker for each digit: whether it comes over the network."""
    with remote.head() as head:
        for rank, is_far in enumerate(far):
            head.fork(loop, rank=rank, address=head.address.removeprefix("" if is_far == "1" else "tcp://"))
        done = head.run(strategy, workers=len(far), runs=folder, servers=servers)
        assert head.end() == [0] * len(far), head.warnings()
    return done


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    but_thorough([*ALL, *LATE], FIRST_OF_ALL, {*QUICK, LATE[0].name} - FIRST_OF_ALL),
    ids=lambda one: one.name,
)
def test_rows_are_those_of_a_plain_model_wherever_workers_are_and_the_run_replays(
    strategy: Strategy, tmp_path: Path
) -> None:
    done = mixed(train, strategy, tmp_path, "101")
    assert_rows(done, twin_of(done.folder, strategy, ADAGRAD))
    assert ps.replay(done.folder, train).identical


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "way"),
    in_turn([ps.async_sgd(), ps.sync_sgd(), ps.first_of(2)], ["looks", "twice", "accumulates", "ahead", "twice ahead"]),
    ids=lambda one: getattr(one, "name", one),
)
def test_so_they_are_however_a_step_looks_them_up(strategy: Strategy, way: str, tmp_path: Path) -> None:
    loop = functools.partial(train, way=way)
    done = mixed(loop, strategy, tmp_path, "110", servers=2)
    assert_rows(done, twin_of(done.folder, strategy, ADAGRAD, way))
    assert ps.replay(done.folder, loop).identical


@pytest.mark.thorough
@pytest.mark.parametrize("far", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["remote", "of this host"])
def test_workers_that_join_have_the_bits_and_the_figures_of_those_of_ps_run(far: bool) -> None:
    loop = functools.partial(dealt, pause_s=0.0)
    local, done = ps.run(loop, "sync_sgd", workers=2), remote.run(loop, "sync_sgd", workers=2, far=far)
    assert same_rows(done, local)
    assert all(torch.equal(value, local.state_dict[name]) for name, value in done.state_dict.items())
    assert done.summary.bytes == local.summary.bytes
    figures = [{name: figures_of(one) for name, one in run.rows.items()} for run in (done, local)]
    assert figures[0] == figures[1]
    assert all(one["pulled_bytes"] and one["pushed_bytes"] for one in figures[0].values())


def figures_of(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__ if name != "memory_bytes"}


IDS, DIM, BATCH = 6000, 32, 500
NEVER = torch.arange(10**9, 10**9 + 2000)


class Each(nn.Module):
    """Each sample has a row, which moves by 1 when it steps. Others are only read."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ps.Table(DIM, ps.RowSGD(1.0), scale=0.0)
        self.others = ps.Table(DIM, ps.RowSGD(1.0), seed=7)
        self.top = nn.Linear(1, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.ids(ids)
        return rows.sum() + self.top(torch.ones(1, 1)).sum()


def each(worker: Any, epochs: int = 4, ahead: bool = False, waits: Path | None = None, step_s: float = 0.002) -> None:
    """`waits`: in its fifth step each worker waits for that file, worker 0 before it reads, the others before they pull."""
    net, first_values = Each(), ps.Table(DIM, seed=7)(NEVER).detach()
    loader = DataLoader(TensorDataset(torch.arange(IDS)), batch_size=BATCH, shuffle=True)
    net, optimizer, loader = worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.05), loader)
    step = 0
    for _ in range(epochs):
        for (ids,) in worker.ahead(loader, lambda batch: {net.ids: batch[0]}) if ahead else loader:
            step += 1
            time.sleep(step_s)
            with worker.step():
                optimizer.zero_grad()
                if waits is not None and step == 5:
                    (waits / f"at-{worker.rank}").touch()
                    until((waits / "go").exists)
                if step % 5 == 0 and not (waits is not None and worker.rank):
                    with torch.no_grad():
                        assert torch.equal(net.others(NEVER), first_values)
                net(ids).backward()
                optimizer.step()


def assert_each_once(done: ps.Run, moved: float) -> None:
    rows = done.tables["ids"].get_extra_state()
    assert sorted(rows["keys"].tolist()) == list(range(IDS))
    assert torch.equal(rows["values"], torch.full((IDS, DIM), -moved))
    assert done.batches_unvisited == 0
    assert done.tables["others"].rows == 0


def begins(begun: list[int]) -> Callable[[ps.Live], None]:
    """For `watch`: the versions that it saw, once there are some."""
    return lambda live: begun.append(live.version) if live.version else None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "ahead"),
    [
        (ps.async_sgd(), False),
        pytest.param(ps.sync_sgd(rows="each"), True, marks=pytest.mark.thorough),
        pytest.param(ps.async_sgd(), True, marks=pytest.mark.slow),
        pytest.param(ps.sync_sgd(rows="each"), False, marks=pytest.mark.slow),
    ],
    ids=lambda one: getattr(one, "name", "ahead" if one else ""),
)
def test_connections_that_are_cut_step_each_row_once(strategy: Strategy, ahead: bool, tmp_path: Path) -> None:
    """At any byte: of keys, values, gradients or what is between."""
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(2):
            head.fork(functools.partial(each, epochs=12, ahead=ahead), rank=rank)
        begun = list[int]()

        def cut() -> None:
            until(lambda: bool(begun))
            for _ in range(30):
                if begun[-1] >= 24 and proxy.connections > 6:
                    break  # not at the end: who is away then finds nobody to come back to
                proxy.limits = [random.randrange(1, 1 << 18) for _ in range(2)]
                proxy.cut()
                time.sleep(random.uniform(0.02, 0.1))

        with meanwhile(cut):
            done = head.run(strategy, workers=2, watch=begins(begun))
        assert head.end() == [0, 0], head.warnings()
        proxy.close()
    assert proxy.connections > 6
    assert_each_once(done, 12.0)
    assert not done.discarded
    assert [one.left for one in done.workers] == ["finished"] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", but_slow([ps.sync_sgd(), ps.first_of(1)], {"sync_sgd"}), ids=lambda one: one.name)
def test_so_they_are_in_rounds_that_step_rows_with_the_fold(strategy: Strategy, tmp_path: Path) -> None:
    loop = functools.partial(train, way="twice ahead", steps=150)
    with remote.head() as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(2):
            head.fork(loop, rank=rank)
        begun = list[int]()

        def cut() -> None:
            until(lambda: bool(begun))
            for _ in range(8):  # not at the end, either
                time.sleep(random.uniform(0.02, 0.1))
                proxy.cut()

        with meanwhile(cut):
            done = head.run(strategy, workers=2, runs=tmp_path, watch=begins(begun))
        assert head.end() == [0, 0], head.warnings()
        proxy.close()
    assert proxy.connections > 4
    assert_rows(done, twin_of(done.folder, strategy, ADAGRAD, "twice ahead"))


@pytest.mark.slow
def test_workers_that_lost_their_seats_while_they_wait_for_rows_go_on(tmp_path: Path) -> None:
    """What is read then is right, and of the steps that pulled nothing comes: their data is given out again."""
    with remote.head(rejoin_s=30.0) as head:
        proxy = Proxy(head.port)
        head.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(3):
            loop = functools.partial(each, epochs=4, ahead=rank == 2, waits=tmp_path, step_s=0.02)
            head.fork(loop, rank=rank)

        def cut_off() -> None:
            until(lambda: all((tmp_path / f"at-{rank}").exists() for rank in range(3)))
            proxy.open = False
            proxy.cut()
            time.sleep(LEASE_S + 1.5)
            proxy.open = True
            (tmp_path / "go").touch()

        with meanwhile(cut_off):
            done = head.run("async_sgd", workers=3, runs=tmp_path / "runs")
        assert head.end() == [0, 0, 0], head.warnings()
        proxy.close()
    assert sorted(joined(done))[::2] == [(0, 1), (1, 1), (2, 1)]
    assert sorted(joined(done))[1::2] == [(0, 2), (1, 2), (2, 2)]
    assert_each_once(done, 4.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_thorough([ps.async_sgd(), ps.sync_sgd()], {"async_sgd"}), ids=lambda one: one.name
)
def test_a_killed_worker_has_a_successor_that_pulls_rows(strategy: Strategy, tmp_path: Path) -> None:
    loop = functools.partial(train, dies=tmp_path / "died", steps=40)
    with remote.head() as head:
        for rank in range(2):
            head.fork(loop, rank=rank)

        def follow() -> None:
            until((tmp_path / "died").exists)
            head.fork(loop, rank=1)

        with meanwhile(follow):
            done = head.run(strategy, workers=2, runs=tmp_path / "runs")
        assert sorted(head.end()) == [-signal.SIGKILL, 0, 0], head.warnings()
    assert_rows(done, twin_of(done.folder, strategy, ADAGRAD))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.sync_sgd(rows="each")], ids=lambda one: one.name)
def test_workers_outlive_a_killed_server_and_rows_go_on_from_its_checkpoint(strategy: Strategy, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": 2, "checkpoint": ps.Checkpoint(every_s=0.1)}
    loop = functools.partial(each, epochs=12, step_s=0.02)
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(2):
            head.fork(loop, rank=rank)

        def kill() -> None:
            until(lambda: newest_checkpoint(tmp_path / "runs") > 10)
            time.sleep(0.05)
            os.kill(head.server_pid(), signal.SIGKILL)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            head.run(strategy, **settings, durability="none", runs=tmp_path / "runs")
        (folder,) = (tmp_path / "runs").iterdir()
        head.reopen()
        done = head.run(strategy, **settings, runs=tmp_path / "again", resume=folder)
        assert head.end() == [0, 0], head.warnings()
    assert_each_once(done, 12.0)


def brings(worker: Any) -> None:
    net = Each()
    net(torch.arange(5)).backward()
    worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.05))


def test_rows_of_before_the_run_do_not_come_from_another_host() -> None:
    with remote.head() as head:
        head.fork(brings)
        with pytest.raises(ps.PlesioError):
            head.run("async_sgd", workers=1)
        assert head.end() == [1]
    assert re.search(r"the model's tables have rows \(ids, others\).* cannot hand them over", head.warned)


# What no worker says


def asks(*said: tuple[RowsRequest, Any]) -> Callable[[Wrong], None]:
    """Each but the last is served."""

    def ask(wrong: Wrong) -> None:
        for place, (request, keys) in enumerate(said):
            wrong.say(FrameKind.CHANNEL, request, np.array(keys, np.int64).tobytes())
            if place < len(said) - 1:
                wrong.hear()

    return ask


def pushes(payload: int) -> Callable[[Wrong], None]:
    """A contribution with three rows pulled for it."""

    def push(wrong: Wrong) -> None:
        asks((FIRST, [1, 2, 3]), (RowsRequest(0, ((0, 1), (0, 0))), [9]))(wrong)
        wrong.hear()
        wrong.push(1, wrong.moving.nbytes + payload, aside=Aside(rows=True))

    return push


FIRST, TURN = RowsRequest(1, ((0, 3), (0, 0))), "RowsRequest out of turn"
WRONG: list[tuple[Callable[[Wrong], None], str]] = [
    (asks((RowsRequest(2, FIRST.wanted), [1, 2, 3])), TURN),
    (asks((RowsRequest(1, ((0, 3),)), [1, 2, 3])), TURN),
    (asks((RowsRequest(1, ((0, MOST + 1), (0, 0))), ())), TURN),
    (asks((RowsRequest(1, ((MOST, 1), (0, 0))), [1])), TURN),
    (asks((RowsRequest(1, ((-1, 3), (0, 0))), [1, 2, 3])), "no message"),
    (asks((FIRST, [1, 2])), "16 bytes with RowsRequest; 24 were expected"),
    (asks((FIRST, [1, 2, 1])), "a row twice"),
    (asks((FIRST, [1, 2, 3]), (FIRST, [4, 5, 6])), TURN),
    (asks((FIRST, [1, 2, 3]), (RowsRequest(1, ((3, 1), (0, 0))), [2])), "a row twice"),
    (asks((RowsRequest(1, (), ahead=True), ())), TURN),
    (asks((RowsRequest(1, FIRST.wanted, ahead=True), [1, 2, 3])), TURN),
    (pushes(0), "bytes with Contribution"),
    (pushes(3 * DIM * 4), "bytes with Contribution"),
    (pushes(4 * DIM * 4 + 4), "bytes with Contribution"),
]


@pytest.mark.thorough
def test_a_worker_that_asks_for_rows_as_it_may_not_is_hung_up_on(tmp_path: Path) -> None:
    told = []
    with remote.head() as head:
        head.fork(functools.partial(each, epochs=1, waits=tmp_path), rank=0)

        def attack() -> None:
            for say, why in WRONG:
                wrong = Wrong(head, Each())
                wrong.take_part()
                say(wrong)
                with pytest.raises(ps.PlesioError) as caught:
                    wrong.hear()
                wrong.link.close()
                told.append((why, str(caught.value)))
            right = Wrong(head, Each())
            right.take_part()
            pushes(3 * DIM * 4 + 3)(right)
            right.hear()
            right.link.close()
            (tmp_path / "go").touch()

        with meanwhile(attack):
            done = head.run("async_sgd", workers=2)
        assert head.end() == [0]
    for why, said in told:
        assert re.search(f"the head hung up: .*{why}", said)
    hung_up_on = [one.what for one in done.incidents if "worker 1 was hung up on: " in one.what]
    assert len(hung_up_on) == len(told) == len(WRONG)
    assert (done.steps, done.batches_unvisited) == (IDS // BATCH + 1, 0)
