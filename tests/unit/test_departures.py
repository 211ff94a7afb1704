"""What is known of the folds of a worker that died, in shared memory."""

from __future__ import annotations

import pytest

from plesio.protocol.worker import WorkDone
from plesio.server.peers import add, unreported
from plesio.system.memory import SharedBlock
from plesio.tensors.arena import PAGE
from plesio.transport.board import Board


@pytest.mark.parametrize(
    ("begun", "said", "found"),
    [
        (False, WorkDone(steps=1, batches=2, samples=16), (1, 2, 16, 0)),
        (True, WorkDone(steps=1, batches=2, samples=16), (1, 2, 16, 3)),
        (False, WorkDone(steps=2, batches=4, samples=32), (0, 0, 0, 0)),
        (False, WorkDone(steps=3, batches=4, samples=32, finite=False), (0, 0, 0, 0)),
    ],
    ids=["between steps", "within a step", "all reported", "a step that was not finite is no fold"],
)
def test_what_a_dead_worker_folded_is_on_the_board(
    begun: bool, said: WorkDone, found: tuple[int, int, int, int]
) -> None:
    """Worker 0 folded 4 steps of 2 batches, 16 samples, and reported 2 and what it `said`; it may have begun a fifth."""
    board, reported = Board(SharedBlock.create(PAGE, "a test"), workers=3), WorkDone(lasted_s=5.0)
    for number in range(1, 5):
        board.folding(0, number, 2 * number, 16 * number)
        board.folded(0, number)
    if begun:
        board.folding(0, 5, 11, 88)
    add(reported, WorkDone(steps=2, batches=4, samples=32, lasted_s=2.5))
    add(reported, said)
    work, uncertain = unreported(board, 0, reported, left_s=9.0)
    assert (work.steps, work.batches, work.samples, uncertain) == found
    assert work.lasted_s == 1.5
