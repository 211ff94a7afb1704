"""A sequencer with its workers joined, for examples of what it decides."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from plesio.core.events import (
    Abandoned,
    Effect,
    Event,
    Forget,
    Grant,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    Share,
    Show,
    Ticked,
    WakeAt,
)  # fmt: skip
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy

Kind = TypeVar("Kind")


def decided(effects: list[Effect]) -> list[Effect]:
    """What becomes of contributions and workers, without what the memory and the clock do for it."""
    return [one for one in effects if not isinstance(one, (Forget, Share, Show, WakeAt))]


def only(kind: type[Kind], effects: list[Effect]) -> list[Kind]:
    return [one for one in effects if isinstance(one, kind)]


def granted(effects: list[Effect]) -> list[int]:
    return sorted(one.worker for one in only(Grant, effects))


class Run:
    """A sequencer with its workers joined; counts the numbers of their pushes."""

    def __init__(self, strategy: Strategy, workers: int = 3, silence_s: float = 300.0) -> None:
        self.leases = DataLeases(workers, stealing=not strategy.in_lock_step)
        self.sequencer = Sequencer(strategy, workers, self.leases, silence_s)
        self.now_s = 0.0
        self.numbers: Counter[int] = Counter()
        self.incarnations: Counter[int] = Counter()
        for worker in range(workers):
            self.join(worker)

    @property
    def version(self) -> int:
        return self.sequencer.version

    def tell(self, event: Event) -> list[Effect]:
        return decided(self.sequencer.receive(event, self.now_s))

    def join(self, worker: int) -> list[Effect]:
        self.incarnations[worker] += 1
        self.numbers[worker] = 0
        return self.tell(Joined(worker, self.incarnations[worker]))

    def push(self, worker: int, **of_it: int) -> list[Effect]:
        self.numbers[worker] += 1
        return self.push_number(worker, self.numbers[worker], **of_it)

    def push_number(
        self, worker: int, number: int, *, finite: bool = True, samples: int = 32, batches: int = 0, steps: int = 1
    ) -> list[Effect]:
        event = Pushed(worker, self.incarnations[worker], number, steps, samples, batches, finite)
        return self.tell(event)

    def die(self, worker: int) -> list[Effect]:
        return self.tell(Left(worker, self.incarnations[worker], died=True))

    def finish(self, worker: int) -> list[Effect]:
        return self.tell(Left(worker, self.incarnations[worker], died=False))

    def lease(self, worker: int, most: int = 1, epoch: int = 0, total: int = 6) -> tuple[tuple[int, int], ...]:
        event = LeaseWanted(worker, self.incarnations[worker], epoch, total, most)
        return only(Leased, self.tell(event))[0].batches

    def abandon(self, worker: int, batches: int = 0) -> list[Effect]:
        return self.tell(Abandoned(worker, self.incarnations[worker], batches))

    def tick(self, now_s: float) -> list[Effect]:
        self.now_s = now_s
        return self.tell(Ticked())
