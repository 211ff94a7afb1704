"""Data asked for ahead: whatever happens while a reply travels, no batch is lost or trained twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.leases import Batch, DataLeases
from plesio.protocol.worker import LeaseReply, LeaseRequest
from plesio.worker.data.asking import AHEAD_MAX, Asking
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.data.use import DataUse
from plesio.worker.state import WorkerState
from support.long_forms import examples

TOTAL, EPOCHS = 37, 3
ACTIONS = st.tuples(
    st.sampled_from(["step", "step", "step", "step", "hear", "send", "discard", "break", "look", "die", "rejoin"]),
    st.integers(0, 2),
    st.integers(1, 4),
)


class Line:
    """One worker's, whose requests are heard late. Waiting for a reply takes time."""

    away = True

    def __init__(self, leases: DataLeases, worker: int) -> None:
        self.leases, self.worker = leases, worker
        self.in_parts = not leases.stealing
        self.under_way: LeaseRequest | None = None
        self.replies: deque[LeaseReply] = deque()
        self.asked: list[LeaseRequest] = []
        self.time_s = 0.0
        self.loses: Callable[[], None] | None = None  # called while the worker waits

    @property
    def nothing_outstanding(self) -> bool:
        return self.under_way is None and not self.replies

    def now_s(self) -> float:
        return self.time_s

    def lease(self, request: LeaseRequest) -> LeaseReply:
        if not request.ahead:
            assert self.nothing_outstanding
            return self._heard(request)
        if self.loses:
            self.loses()
        if not self.replies:
            self.time_s += 1.0
            self.hear()
        return self.replies.popleft()

    def ask_ahead(self, request: LeaseRequest, due: bool) -> bool:
        assert self.nothing_outstanding
        self.under_way = request if due else None
        return due

    def hear(self) -> None:
        if self.under_way is not None:
            self.replies.append(self._heard(self.under_way))
            self.under_way = None

    def _heard(self, request: LeaseRequest) -> LeaseReply:
        self.asked.append(request)
        self.leases.unused(self.worker, request.unused)
        epoch = self.leases.progress(self.worker)
        batches = self.leases.take(self.worker, request.epoch, request.total, request.most)
        return LeaseReply(batches, epoch=epoch, through=self.leases.through)


class Trainer:
    """A worker's loop, a step at a time."""

    def __init__(self, leases: DataLeases, worker: int, workers: int) -> None:
        self.leases, self.worker, self.workers = leases, worker, workers
        self.folded: list[int] = []
        self.line = Line(leases, worker)
        self.begin()

    def begin(self) -> None:
        self.used = DataUse()
        self.count = 0
        state = WorkerState(self.worker, 0)
        self.loader = LeasedLoader(
            range(TOTAL), self.line, state, self.workers, self.used, self.begun, lambda: None, False
        )
        self.steps: list[int] = []  # that were not sent yet
        self.going: Iterator[Any] | None = None

    def begun(self) -> Callable[[], bool]:
        before = self.count
        return lambda: self.count > before

    def step(self, trains: bool = True) -> bool:
        """Whether there was a batch in the pass."""
        self.going = self.going or iter(self.loader)
        batch = next(self.going, None)
        if batch is None:
            self.going = None
        elif trains:
            self.steps.append(int(batch))
            self.count += 1
        return batch is not None

    def leave(self) -> None:
        self.going = None

    def send(self, counts: bool) -> None:
        batches = self.leases.consume(self.worker, len(self.steps))
        assert [number for _, number in batches] == self.steps, "the server knows what it trained on"
        self.used()
        self.steps = []
        if counts:
            self.leases.folded(batches)
            self.folded += [number for _, number in batches]
        else:
            self.leases.give_back(batches)

    def lose(self, comes_back: bool) -> None:
        """Its seat, and what it was told; `comes_back`: it goes on in the middle of its pass."""
        self.leases.left(self.worker)
        self.leases.joined(self.worker)
        self.line.under_way = None
        self.line.replies.clear()
        self.steps = []
        if comes_back:
            self.used.lose()
        else:
            self.begin()


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(workers=st.integers(2, 3), stealing=st.booleans(), actions=st.lists(ACTIONS, max_size=80))
def test_no_batch_that_was_asked_for_ahead_is_lost_or_trained_twice(
    workers: int, stealing: bool, actions: list[tuple[str, int, int]]
) -> None:
    leases = DataLeases(workers, stealing)
    trainers = [Trainer(leases, worker, workers) for worker in range(workers)]
    for name, number, dial in actions:
        one = trainers[number % workers]
        if name == "hear":
            one.line.hear()
        elif name in ("send", "discard"):
            one.send(counts=name == "send")
        elif name in ("die", "rejoin"):
            one.lose(comes_back=name == "rejoin")
        elif name == "break" and one.steps:
            one.leave()
        elif name == "look" and one.going is None:
            one.step(trains=False)
            one.leave()
        elif name == "step":
            for _ in range(dial):
                if one.loader.epochs < EPOCHS or one.going is not None:
                    one.step()
    for one in trainers:
        while one.loader.epochs < EPOCHS or one.going is not None:
            one.step()
        one.send(counts=True)
    folded = Counter(number for one in trainers for number in one.folded)
    folded.update(number for _, number in what_is_left(leases, workers))
    assert folded == Counter(dict.fromkeys(range(TOTAL), leases.opened // TOTAL))


def test_a_batch_that_came_back_after_an_empty_reply_is_asked_for_again() -> None:
    trainer = Trainer(DataLeases(1, stealing=True), 0, 1)
    for _ in range(TOTAL - 1):
        assert trainer.step()
        trainer.send(counts=True)
    assert trainer.step()
    trainer.line.hear()
    trainer.send(counts=False)
    assert trainer.step()
    trainer.send(counts=True)
    assert not trainer.step()
    assert sorted(trainer.folded) == [*range(TOTAL)]


@pytest.mark.parametrize(("stealing", "loses", "asked"), [(True, False, 2), (True, True, 1), (False, False, 1)])
def test_a_worker_asks_again_only_where_a_batch_may_have_come_back(stealing: bool, loses: bool, asked: int) -> None:
    """One that `loses` its seat while it waits for a reply has asked anew by then."""
    line, used = Line(DataLeases(1, stealing), 0), DataUse()
    line.leases.take(0, epoch=0, total=4, most=4)
    asking = Asking(line, 4, 1, used)
    asking.ahead(0, 1)
    line.loses = used.lose if loses else None
    assert not asking.more(0, 0, 0).batches
    assert len(line.asked) == asked


def what_is_left(leases: DataLeases, workers: int) -> list[Batch]:
    """What others would do of it: of one that left last nobody takes over."""
    for worker in range(workers):
        leases.left(worker)
    left: list[Batch] = []
    while got := leases.take(0, leases.opened // TOTAL - 1, TOTAL, most=TOTAL):
        left += got
    return left


def test_a_worker_that_stands_still_asks_for_more_until_it_no_longer_does() -> None:
    """Of all data at most half of a share; and of its own part no more than that is."""
    for total, stealing, most in ((160, True, 20), (10_000, True, AHEAD_MAX), (160, False, 40), (4, True, 1)):
        line = Line(DataLeases(4, stealing), 0)
        asking = Asking(line, total, 4, DataUse())
        asking.more(0, 0, 0)
        for _ in range(10):
            asking.ahead(0, 1)
            asking.more(0, 0, 0)
        sizes = [one.most for one in line.asked]
        assert sizes == sorted(sizes)
        assert sizes[-1] == most
        asking.ahead(0, 1)
        line.hear()
        asking.more(0, 0, 0)
        asking.ahead(0, most)
        assert line.under_way == LeaseRequest(0, total, most, 0, 0, ahead=True), "it came in time"


def test_a_worker_beside_its_server_asks_for_nothing_ahead() -> None:
    trainer = Trainer(DataLeases(1, stealing=True), 0, 1)
    trainer.line.away = False
    while trainer.step():
        assert trainer.line.under_way is None
    assert not any(one.ahead for one in trainer.line.asked)


def test_an_epoch_of_a_workers_own_part_moves_with_each_batch() -> None:
    trainer = Trainer(DataLeases(2, stealing=False), 1, 2)
    seen = []
    while trainer.step():
        seen.append(trainer.loader.progress)
    own = TOTAL // 2
    assert seen == pytest.approx([number / own for number in range(own)])
    assert trainer.loader.progress == pytest.approx(1.0)
