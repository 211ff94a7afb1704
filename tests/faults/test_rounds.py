"""Rounds that take a least number of sites, and rounds that somebody looks at: real processes, killed for real."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.protocol.journal import read_journal
from support import remote

ROUNDS = 12


def site(worker: ps.Worker, rounds: int = ROUNDS, step_s: float = 0.1) -> None:
    """One round is one step on data that only this site has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = worker.prepare(model, optimizer)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(worker.rank))
    while worker.version < rounds:
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        worker.log(loss=loss.item(), site=worker.rank)
        time.sleep(step_s)
        worker.contribute(samples=8 + worker.rank)


def members(folder: Path | None) -> list[list[int]]:
    """The sites of each version."""
    assert folder is not None
    return [[one.worker for one in fold.members] for fold in read_journal(folder).folds()]


@pytest.mark.thorough
def test_a_site_alone_waits_for_another_and_goes_on_when_that_is_back(tmp_path: Path) -> None:
    with remote.head(rejoin_s=3.0) as head:
        pids = [head.fork(site, rank=rank) for rank in range(3)]

        killed, back = threading.Event(), threading.Event()

        def watch(live: Any) -> None:
            if live.version >= 3 and not killed.is_set():
                killed.set()
                for pid in pids[1:]:
                    os.kill(pid, signal.SIGKILL)
            if not back.is_set() and any("takes 2 workers, and 1 came" in one.what for one in live.events):
                back.set()
                head.fork(site, rank=1)

        rounds: list[ps.Round] = []
        options: dict[str, Any] = {"runs": tmp_path, "timeout_s": 60.0, "watch": watch, "on_round": rounds.append}
        run = head.run(ps.fedavg(clients_min=2), workers=3, **options)
    assert back.is_set()
    assert run.version == ROUNDS
    made = members(run.folder)
    assert all(len(one) >= 2 for one in made)
    assert [0, 1] in made
    assert [one.version for one in rounds] == [*range(1, ROUNDS + 1)]
    for one, sites in zip(rounds, made, strict=True):
        assert [(told.id, told.samples, told.metrics["site"]) for told in one.clients] == [(k, 8 + k, k) for k in sites]
    assert all(torch.equal(value, run.state_dict[name]) for name, value in rounds[-1].state_dict.items())
    told = [one.what for one in run.summary.incidents]
    assert any("takes 2 workers, and 1 came (missing: worker 1 died" in what for what in told), told


def telling(worker: ps.Worker, into: Path, train: Callable[[ps.Worker], None]) -> None:
    (into / str(worker.rank)).write_text(str(os.getpid()))
    train(worker)


def lent(worker: ps.Worker) -> None:
    """Clients of which each knows its number."""
    torch.manual_seed(0)
    inputs = torch.randn(60, 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = ps.Clients(
        torch.utils.data.TensorDataset(inputs), ps.splits.iid(60, 10), per_round=3, rounds=5, batch_size=3
    )
    model, optimizer, clients = worker.prepare(model, optimizer, data)
    for client in clients:
        for (batch,) in client:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        client.log(mine=client.id)


@pytest.mark.thorough
def test_real_workers_wait_for_whoever_looks_and_a_choice_replays(tmp_path: Path) -> None:
    """As in virtual time, though a worker is killed while a version is looked at."""

    def look(round: ps.Round, seen: list[list[int]]) -> None:
        assert all(one.metrics == {"mine": one.id} for one in round.clients)
        seen.append(sorted(one.id for one in round.clients))
        if round.version == 2:
            round.choose([6, 7, 8])

    def on_round(round: ps.Round) -> None:
        look(round, real)
        assert round.evaluate(lambda model: {"weight": model.weight.sum()})["weight"] != 0
        if round.version == 1:
            os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
            time.sleep(0.3)

    real: list[list[int]] = []
    virtual: list[list[int]] = []
    train = functools.partial(telling, into=tmp_path, train=lent)
    run = ps.run(train, ps.fedavg(), workers=2, on_round=on_round, runs=tmp_path / "runs")
    ps.run(lent, ps.fedavg(), workers=2, on_round=functools.partial(look, seen=virtual), engine=ps.Simulated("uniform"))
    assert real == virtual
    assert real[2:] == [[6, 7, 8]] * 3
    assert [one.version for one in run.history] == [1, 2, 3, 4, 5]
    assert ps.replay(run.folder, train).identical


@pytest.mark.thorough
def test_a_run_that_is_stopped_while_a_site_waits_ends_in_order(tmp_path: Path) -> None:
    faults = [ps.Kill(worker=worker, after_s=0.5) for worker in (1, 2)]
    train = functools.partial(site, rounds=10_000)
    run = ps.run(train, ps.fedavg(clients_min=2), workers=3, faults=faults, until=ps.Until(seconds=3), runs=tmp_path)
    told = " ".join(one.what for one in run.summary.incidents)
    assert "takes 2 workers, and 1 came" in told
    assert "was stopped" not in told
    assert run.workers[0].left != "stopped"
    assert all(len(one) >= 2 for one in members(run.folder))
    assert ps.replay(run.folder, train).identical


def telling_server(worker: ps.Worker, into: Path) -> None:
    (into / "server").write_text(str(worker.server_pid))
    lent(worker)


@pytest.mark.thorough
@pytest.mark.parametrize("durability", [pytest.param("none", marks=pytest.mark.thorough), "process"])
def test_a_run_whose_server_is_killed_while_a_version_is_looked_at_draws_the_same(
    tmp_path: Path, durability: str
) -> None:
    """Whether a spare goes on, or the run is resumed. No checkpoint lies between a version and the choice made of it."""

    def look(round: ps.Round, seen: dict[int, list[int]], kills: int = 0) -> None:
        seen[round.version] = sorted(one.id for one in round.clients)
        if round.version == 2:
            round.choose([6, 7, 8, 9])
            time.sleep(0.3 * (kills > 0))  # a checkpoint is due
        if round.version == kills:
            os.kill(int((tmp_path / "server").read_text()), signal.SIGKILL)

    whole: dict[int, list[int]] = {}
    seen: dict[int, list[int]] = {}
    alone = ps.run(lent, ps.fedavg(), workers=1, on_round=functools.partial(look, seen=whole))
    train = functools.partial(telling_server, into=tmp_path)
    options: dict[str, Any] = {"workers": 1, "runs": tmp_path / "runs", "checkpoint": ps.Checkpoint(every_s=0.1)}
    options["durability"] = durability
    killed = functools.partial(look, seen=seen, kills=4 if durability == "none" else 2)
    if durability == "process":
        run = ps.run(train, ps.fedavg(), on_round=killed, **options)
        assert any("the server died at version 2 and went on" in one.what for one in run.summary.incidents)
    else:
        with pytest.raises(ps.ServerLostError):
            ps.run(train, ps.fedavg(), on_round=killed, **options)
        (folder,) = (tmp_path / "runs").iterdir()
        run = ps.run(train, ps.fedavg(), on_round=functools.partial(look, seen=seen), resume=folder, **options)
    assert seen == whole
    assert all(torch.equal(value, alone.state_dict[name]) for name, value in run.state_dict.items())
    assert ps.replay(run.folder, train).identical
