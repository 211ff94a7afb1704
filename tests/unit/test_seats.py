"""Who is given a seat in a run, and who is told why not."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import plesio as ps
from conformance.table import strategies
from plesio import __version__
from plesio.config import RunConfig
from plesio.launch.job import Job
from plesio.launch.local.seats import Seats
from plesio.protocol import launcher, remote
from plesio.protocol.coding import encode
from plesio.strategy import Strategy


def seats_of(said: list[Any], train: Any = None, **config: Any) -> Seats:
    """`said`: what the server is told, and the fellows."""
    processes: Any = SimpleNamespace(
        tell_server=newcomer(said).channel.send, workers=[], island=lambda worker: [], worker=lambda *_: []
    )
    job = Job(config=RunConfig(workers=2, timeout_s=60.0, **config), train=train, evaluate=None)
    return Seats(job, processes, lambda process: None)


def newcomer(said: list[Any]) -> Any:
    channel = SimpleNamespace(send=lambda message, descriptors=(): said.append(message))
    return SimpleNamespace(channel=channel, worker=None, title="", gone=False, ours=True, replaced=False, ties={})


def answer_to(
    strategy: str | Strategy | None = None,
    plesio: str = __version__,
    run: str | Strategy = "async_sgd",
    workers_max: int | None = None,
    **told: Any,
) -> Any:
    """What a worker that knocks at a run of async_sgd with two workers and timeout_s=60 is answered; `seated` and `finished`:
    who has a seat by then, and who of these is done."""
    answers: list[Any] = []
    seats = seats_of(answers, strategy=run, workers_max=workers_max)
    data = None
    if strategy is not None:
        other = RunConfig(strategy=strategy, workers=2).strategy
        data = {"name": other.name, **other.as_data()}
    for worker in told.pop("seated", ()):
        seats.knocked(held := newcomer(answers), remote.Knock("node6:41", plesio, rank=worker))
        held.gone = worker in told.get("gone", ())
    told.pop("gone", None)
    seats.finished = set(told.pop("finished", ()))
    rank, protocol = told.pop("rank", -1), told.pop("protocol", remote.PROTOCOL)
    knock = remote.Knock("node7:42", plesio, protocol, rank, data, told)
    seats.knocked(newcomer(answers), msgspec.msgpack.decode(encode(knock), type=remote.Knock))
    return answers[-1]


def test_a_worker_that_was_told_what_the_run_is_like_gets_a_seat() -> None:
    assert answer_to("async_sgd", timeout_s=60.0, rank=1).seated.worker == 1
    assert answer_to().seated.worker == 0


@pytest.mark.parametrize("strategy", strategies(clients=True), ids=lambda one: one.name)
def test_a_worker_that_was_told_the_strategy_gets_a_seat(strategy: Strategy) -> None:
    assert answer_to(strategy, run=strategy).seated.worker == 0


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"strategy": "sync_sgd"}, "strategy='sync_sgd', not 'async_sgd'"),
        ({"timeout_s": 30.0, "seed": 0}, "other settings than the run has: timeout_s=30.0, not 60.0"),
        ({"workers": 3}, "workers=3, not 2"),
        ({"until": {"accuracy": 0.9}}, "until={'accuracy': 0.9}, not None"),
        ({"plesio": "0.0.1"}, f"has plesio 0.0.1 (protocol {remote.PROTOCOL}), the run's head has {__version__}"),
        ({"protocol": 99}, "(protocol 99)"),
        ({"rank": 2}, "the run has 2 workers, 0 to 1"),
    ],
)
def test_another_run_than_a_worker_was_told_of_refuses_it_with_the_difference(told: Any, why: str) -> None:
    answer = answer_to(**told)
    assert isinstance(answer, remote.SeatRefused)
    assert why in answer.why


@pytest.mark.parametrize(
    ("told", "for_now"),
    [
        ({"rank": 1}, True),
        ({}, True),
        ({"rank": 1, "finished": [1]}, False),
        ({"rank": 1, "finished": [1], "gone": [1]}, False),
        ({"finished": [0, 1]}, False),
        ({"rank": 2}, False),
        ({"strategy": "sync_sgd"}, False),
    ],
)
def test_a_seat_that_is_taken_may_be_free_again_when_the_head_notices_a_cut(told: Any, for_now: bool) -> None:
    assert answer_to(seated=[0, 1], **told).for_now is for_now


def test_a_run_is_scaled_for_those_that_join_up_to_its_workers_max() -> None:
    assert answer_to(seated=[0, 1], workers_max=3).seated.worker == 2
    assert answer_to(seated=[0, 1], workers_max=5, rank=3).seated.worker == 3
    assert answer_to(seated=[0, 1, 2], workers_max=3).why.startswith("all 3 seats are taken or have finished")
    assert answer_to("sync_sgd", seated=[0, 1], workers_max=3).why.startswith("node7:42 was told other settings")


def test_another_setting_of_the_same_strategy_is_named() -> None:
    config = RunConfig(strategy=ps.async_sgd(), workers=2)
    mine = config.strategy.as_data()
    from plesio.launch.local.seats import _answers

    told = {"name": "async_sgd", **mine, "adopt": {"is": "Replace"}}
    differing = {name: both for name, both in _answers(told, config.strategy).items() if both[0] != both[1]}
    assert differing == {"strategy's adopt": ({"is": "Replace"}, mine["adopt"])}


@pytest.mark.parametrize(
    ("ranks", "told", "why"),
    [
        (4, {"ranks": 2}, "is a worker of 2 processes; each of the run is to have ranks=4"),
        (1, {"ranks": 1000}, "is a worker of 1000 processes; each of the run may have up to 240"),
        (1, {"ranks": 2, "place": 1, "leader": bytes(16)}, "its rank 0 is not here any more"),
    ],
)
def test_ranks_that_the_run_does_not_have_are_refused(ranks: int, told: dict[str, Any], why: str) -> None:
    answers: list[Any] = []
    seats = seats_of(answers, strategy="local_sgd", ranks=ranks)
    seats.knocked(newcomer(answers), remote.Knock("node7:42", __version__, **told))
    assert why in answers[0].why


def test_a_rank_takes_its_tie_along() -> None:
    """Here it is closed, or the launcher would run out of descriptors."""
    answers: list[Any] = []
    seats, leader = seats_of(answers, strategy="local_sgd", ranks=2), newcomer(answers)
    seats.knocked(leader, remote.Knock("node7:42", __version__, ranks=2))
    tie = leader.ties[1]
    os.fstat(tie)
    ticket = answers[-1].seated.ticket
    seats.knocked(newcomer(answers), remote.Knock("node7:43", __version__, ranks=2, place=1, leader=ticket))
    assert answers[-1].seated.worker == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(tie)


def test_a_seat_whose_work_was_done_is_free_again_once_the_run_is_scaled_up() -> None:
    answers: list[Any] = []
    seats = seats_of(answers, workers_max=2)
    seats.finished = {0, 1}
    for workers in (1, 2):
        seats.scale(workers)
    seats.knocked(newcomer(answers), remote.Knock("node7:42", __version__))
    assert answers[-1].seated.worker == 1


def test_an_island_begins_anew_until_it_was_in_vain_three_times() -> None:
    said: list[Any] = []
    seats = seats_of(said, train=len, strategy=ps.allreduce().as_island)
    for version, begins in ((3, True), (3, True), (4, True), (4, True), (4, True), (4, False)):
        assert seats.begin_anew(0, version) is begins
        seats.fill()
    assert said[-1] == launcher.Stop()
