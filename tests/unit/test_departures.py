"""What is known of the folds of a worker that died."""

from __future__ import annotations

import pytest

from plesio.host.memory import SharedBlock
from plesio.protocol.worker import WorkDone
from plesio.server.departures import Departures
from plesio.tensors.arena import PAGE
from plesio.transport.board import Board


def departures(in_rounds: bool) -> tuple[Board, Departures]:
    """Worker 0 folded 4 steps of 2 batches, 16 samples; it reported 3 of them."""
    board = Board(SharedBlock.create(PAGE, "a test"), workers=3)
    for number in range(1, 5):
        board.folding(0, number, 2 * number, 16 * number)
        for worker in range(3 if in_rounds else 1):
            board.folded(worker, number)
    account = Departures(board, 3, in_rounds, now_s=5.0)
    account.report(0, WorkDone(steps=2, batches=4, samples=32, lasted_s=2.5))
    account.report(0, WorkDone(steps=1, batches=2, samples=16))
    return board, account


def found(account: Departures, concluded: bool = False) -> tuple[int, int, int, int]:
    ((worker, work, uncertain),) = account.settled(concluded)
    assert (worker, work.lasted_s) == (0, 1.5)
    assert account.settled(concluded) == [], "told once"
    return work.steps, work.batches, work.samples, uncertain


def test_shared_memory_records_all_but_the_step_under_way() -> None:
    _, account = departures(in_rounds=False)
    account.leave(0, now_s=9.0)
    assert found(account) == (1, 2, 16, 0)
    board, account = departures(in_rounds=False)
    board.folding(0, 5, 11, 88)
    account.leave(0, now_s=9.0)
    assert found(account) == (1, 2, 16, 3)


def test_a_non_finite_step_is_no_fold() -> None:
    _, account = departures(in_rounds=False)
    account.report(0, WorkDone(steps=2, batches=4, samples=32, finite=False))
    account.leave(0, now_s=9.0)
    assert found(account) == (0, 0, 0, 0)


@pytest.mark.parametrize("completed", [True, False])
def test_survivors_decide_on_a_round(completed: bool) -> None:
    board, account = departures(in_rounds=True)
    board.folding(0, 5, 11, 88)
    board.folded(0, 5)  # whatever the dead itself says of it
    account.leave(0, now_s=9.0)
    assert account.settled(concluded=False) == []
    if completed:
        board.folded(2, 5)
    assert found(account, concluded=not completed) == ((2, 5, 40, 0) if completed else (1, 2, 16, 0))


def test_a_worker_that_reported_everything_has_nothing_to_settle() -> None:
    for in_rounds in (True, False):
        _, account = departures(in_rounds)
        account.report(0, WorkDone(steps=1, batches=2, samples=16))
        account.leave(0, now_s=9.0)
        assert found(account) == (0, 0, 0, 0)


def test_a_reported_round_that_no_survivor_completed_is_uncertain() -> None:
    board, account = departures(in_rounds=True)
    board.folding(0, 5, 11, 88)
    board.folded(0, 5)
    account.report(0, WorkDone(steps=2, batches=5, samples=40))
    account.leave(0, now_s=9.0)
    assert account.settled(concluded=False) == []
    assert found(account, concluded=True) == (0, 0, 0, 3)
