"""A worker reads one version until it releases it, cancelled or not; the ring has enough buffers for that."""

from __future__ import annotations

import random
from collections import deque

import pytest

from plesio.core.events import Abandoned, Cancel, Effect, Event, Fold, Grant, Joined, Pushed
from plesio.core.sequencer import Sequencer
from plesio.memory.blocks import most_read
from plesio.memory.publish import Versions
from plesio.strategy import recipes


def test_a_cancelled_worker_pins_its_old_and_new_buffer() -> None:
    ring = Versions(["a", "b", "c", "d"])
    ring.pin(0, 0)
    ring.pin(0, 1, unasked=True)
    assert ring.spare() == 2
    ring.pin(0, 2, unasked=True)  # it was heard: it reads the second
    assert ring.spare() == 3
    ring.current = 3
    assert ring.spare() == 0
    ring.pin(0, 3)
    assert ring.spare() == 0
    ring.release(0)
    assert ring.spare() == 0


class Worker:
    """Reads one buffer until it looks at its answers, at any time."""

    def __init__(self) -> None:
        self.number, self.waits = 0, True
        self.reads = (0, 0)  # the buffer, and what is to be in it
        self.answers: deque[tuple[bool, int, tuple[int, int]]] = deque()
        self.says: deque[Event] = deque()

    def look(self, worker: int) -> None:
        if self.answers:
            cancel, number, self.reads = self.answers.popleft()
            assert number == self.number
            if not self.waits:
                assert cancel
                self.says.append(Abandoned(worker, 1, 0))
            self.number, self.waits = number + 1, False

    def push(self, worker: int) -> None:
        if not self.waits:
            self.says.append(Pushed(worker, 1, self.number, 1, 1, 0))
            self.waits = True


class Course:
    """A round of the first m of n, with a ring as large as the assembly makes it, and no more."""

    def __init__(self, first: int, workers: int) -> None:
        strategy = recipes.first_of(first)
        self.content = [0] * (most_read(strategy, workers) + 2)
        self.ring = Versions(self.content)  # type: ignore[arg-type]
        self.sequencer = Sequencer(strategy, workers)
        self.workers = [Worker() for _ in range(workers)]
        for worker in range(workers):
            self.tell(Joined(worker, 1))

    def tell(self, event: Event) -> None:
        for effect in self.sequencer.receive(event, 0.0):
            self.do(effect)
        for one in self.workers:
            buffer, version = one.reads
            assert one.waits or self.content[buffer] == version, "written while it was read"
            assert len(one.answers) <= 2

    def do(self, effect: Effect) -> None:
        ring = self.ring
        if isinstance(effect, Fold):
            ring.current = ring.spare()
            self.content[ring.current] = effect.version
        elif isinstance(effect, (Grant, Cancel)):
            ring.pin(effect.worker, ring.current, unasked=isinstance(effect, Cancel))
            told = ring.current, effect.version
            self.workers[effect.worker].answers.append((isinstance(effect, Cancel), effect.number, told))


@pytest.mark.few(3)
@pytest.mark.parametrize(("first", "workers"), [(1, 2), (1, 5), (2, 3), (2, 6), (5, 6), (4, 4)])
def test_no_pinned_buffer_is_written(first: int, workers: int) -> None:
    course, rng = Course(first, workers), random.Random(workers)
    seats = [*range(workers), *range(first)] * 2 + [workers - 1]  # the first are fast
    for _ in range(50_000):
        worker = rng.choice(seats)
        one = course.workers[worker]
        act = rng.randrange(3)
        if act == 0:
            one.look(worker)
        elif act == 1:
            one.push(worker)
        elif one.says:
            course.tell(one.says.popleft())
    assert course.sequencer.version > 100
