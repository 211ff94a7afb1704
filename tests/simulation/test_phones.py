"""Clients that can be drawn at some times only, and clients that drop out of a turn."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart
from plesio.core.leases import DataLeases
from plesio.worker.clients.turn import Client
from support.loops import CLASSES, FEATURES, data, descend
from support.runs import by_name

INPUTS, LABELS = data(240)
HOUR_S = 3600.0
CLUSTER = Cluster((Group(3, Constant(300.0)),))
DRAWN: list[tuple[int, int, float]] = []
"""Client, round and time of everybody who was found there."""


def awake(client: int, round: int, time_s: float) -> bool:
    """Client k is there in hour k, of 12."""
    there = int(time_s / HOUR_S) % 12 == client // 2
    if there:
        DRAWN.append((client, round, time_s))
    return there


def phones(**settings: Any) -> ps.Clients:
    split = ps.splits.iid(240, 24)
    return ps.Clients(TensorDataset(INPUTS, LABELS), split, **{"per_round": 2, "batch_size": 2, **settings})


def train(worker: ps.Worker, **settings: Any) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, lent = worker.prepare(model, optimizer, phones(**settings))
    for client in lent:
        for inputs, labels in client:
            descend(optimizer, cross_entropy(model(inputs), labels))


def day(strategy: ps.Strategy, cluster: Cluster = CLUSTER, **settings: Any) -> ps.Run:
    options = {key: settings.pop(key) for key in ("runs", "checkpoint", "resume", "until") if key in settings}
    return ps.run(
        partial(train, **settings), strategy, workers=3, engine=ps.Simulated(cluster), timeout_s=1e5, **options
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", [ps.fedavg(), ps.fedbuff(3)], ids=by_name)
def test_clients_are_drawn_at_their_time_and_the_run_replays(strategy: ps.Strategy, tmp_path: Path) -> None:
    faults = tuple(one for at in (4e3, 2e4) for one in (Crash(worker=1, at_s=at), Restart(worker=1, at_s=at + 99)))
    uneven = Cluster((Group(2, LogNormal(300.0, 0.5)), Group(1, Constant(900.0))), faults=faults)
    run = day(strategy, uneven, rounds=24, available=awake, runs=tmp_path)
    assert run.batches_unvisited == 0
    assert len({one.client // 2 for one in run.summary.clients}) >= 8, "of most hours"
    assert ps.replay(run.folder, partial(train, rounds=24, available=awake)).identical


def test_a_round_that_finds_nobody_waits() -> None:
    DRAWN.clear()
    late = lambda client, round, time_s: awake(client, round, time_s) and client // 2 == 5  # noqa: E731
    run = day(ps.fedavg(), rounds=2, available=late)
    assert [one.client for one in run.summary.clients] == [10, 11]
    assert min(time_s for _, round, time_s in DRAWN if round == 0) >= 0
    assert run.summary.wall_s > 5 * HOUR_S
    assert run.version == 2


def test_a_round_waits_for_as_many_as_must_count() -> None:
    few = lambda client, round, time_s: client == 0 or (client == 1 and time_s >= HOUR_S)  # noqa: E731
    run = day(ps.fedavg(), rounds=1, available=few, clients_min=2)
    assert [one.client for one in run.summary.clients] == [0, 1]
    assert HOUR_S < run.summary.wall_s < 2.5 * HOUR_S


def test_nobody_is_ever_there() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"round 0, begun after 0 s: for a week 1 clients were never there"):
        day(ps.fedavg(), rounds=1, available=lambda client, round, time_s: False)


def test_what_has_a_default_is_not_asked_with_the_time() -> None:
    assert not phones(available=lambda client, round, share=3: client < share).timed
    assert phones(available=awake).timed


def test_a_resumed_day_goes_on_from_its_last_round(tmp_path: Path) -> None:
    whole = day(ps.fedavg(), rounds=12, available=awake)
    until = ps.Until(seconds=0.55 * whole.summary.wall_s)
    first = day(
        ps.fedavg(),
        rounds=12,
        available=awake,
        runs=tmp_path / "a",
        checkpoint=ps.Checkpoint(every_s=900.0),
        until=until,
    )
    assert 2 < first.version < 10
    DRAWN.clear()
    second = day(ps.fedavg(), rounds=12, available=awake, runs=tmp_path / "b", resume=first.folder)
    begun = {round: time_s for _, round, time_s in DRAWN}
    assert min(begun.values()) > HOUR_S, "it is not the beginning of the day again"
    assert sorted(begun.values()) == [begun[round] for round in sorted(begun)]
    assert second.version == 12
    assert ps.replay(second.folder, partial(train, rounds=12, available=awake)).identical


def test_turns_that_come_to_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    run = day(ps.fedavg(), rounds=20, dropout=0.4, runs=tmp_path)
    lost = {(number, round) for round in range(20) for number in phones().drawn(0, round) if drops(number, round)}
    assert 8 <= len(lost) <= 24
    assert sum(one.left_out for one in run.summary.clients) == len(lost)
    assert run.summary.samples == 10 * (40 - len(lost))
    assert ps.replay(run.folder, partial(train, rounds=20, dropout=0.4)).identical


def drops(number: int, round: int) -> bool:
    steps = 0
    client = Client(phones(dropout=0.4), number, round, 0, lambda: steps)
    for _ in client:
        steps += 1
    assert (steps < 5) <= client.dropped
    return client.dropped


def test_when_an_epoch_was_opened() -> None:
    leases = DataLeases(workers=2, stealing=True)
    first = leases.take(0, 0, 2, 1, now_s=50.0)
    assert leases.begun_s(first) == 0.0
    leases.take(1, 1, 2, 1, now_s=80.0)
    later = leases.take(1, 1, 2, 1, now_s=95.0)
    assert (later, leases.begun_s(later)) == (((1, 1),), 30.0)
    leases.left(0)
    assert leases.begun_s(leases.take(1, 1, 2, 1, now_s=99.0)) == 0.0, "it is of the first epoch"
    again = DataLeases.restore(leases.state(()), workers=2, stealing=True)
    assert again.begun_s([(1, 0)]) == 30.0
    again.take(0, 2, 2, 4, now_s=1000.0)
    assert again.begun_s([(2, 0)]) == 30.0, "a resumed run goes on from the last one"
