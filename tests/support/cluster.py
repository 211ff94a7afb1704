"""Honest workers behind a network that delays, repeats and crosses messages, and processes that die, come back or fall silent.

All of it is driven step by step, by the actions a test draws.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence

from plesio.core.events import (
    Abandoned,
    Cancel,
    Effect,
    Event,
    Evict,
    Grant,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    RowsWanted,
    Serve,
    Switched,
    Ticked,
)
from plesio.core.leases import Batch, DataLeases
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy
from support.referee import EPOCH_BATCHES, SILENCE_S, Referee

COMMON = ("work", "read", "push", "deliver", "lease", "rows")
RARE = ("repeat", "wait", "tick", "haunt", "leave", "join", "run_ahead")
ACTIONS = COMMON * 4 + RARE


class Process:
    """One incarnation of a worker: pushes its next number only after the answer to the one before."""

    def __init__(self, worker: int, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.number = 0
        self.waits = True
        self.asks = False
        self.wants = {False: False, True: False}  # rows of tables, ahead or not
        self.held: deque[Batch] = deque()
        self.inbox: deque[Effect] = deque()
        self.outbox: deque[tuple[Event, list[Batch]]] = deque()

    def use(self, most: int) -> list[Batch]:
        return [self.held.popleft() for _ in range(min(most, len(self.held)))]

    def read(self) -> None:
        message = self.inbox.popleft()
        if isinstance(message, Leased):
            self.held.extend(message.batches)
            self.asks = False
            return
        assert isinstance(message, (Grant, Cancel))
        assert message.number == self.number, "an answer to something else"
        assert self.waits or isinstance(message, Cancel)
        if not self.waits:
            batches = self.use(1)
            self.outbox.append((Abandoned(self.worker, self.incarnation, len(batches)), batches))
        self.number, self.waits = self.number + 1, False

    def push(self, dial: int) -> None:
        if not self.waits:
            batches = self.use(dial % 3)
            finite, samples = dial % 8 != 7, dial * 3
            event = Pushed(
                self.worker, self.incarnation, self.number, dial + 1, samples, len(batches), finite, rows=dial % 2 == 1
            )
            self.outbox.append((event, batches))
            self.waits = True


class Cluster:
    """Drives a sequencer with the actions it is told; every method takes a worker and a dial of 0 to 15."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        leases = DataLeases(workers, stealing=not all(one.in_lock_step for one in strategy.phases))
        self.workers = workers
        self.sequencer = Sequencer(strategy, workers, leases, SILENCE_S)
        self.referee = Referee(strategy, self.sequencer)
        self.live: dict[int, Process] = {}
        self.ghosts: list[Process] = []
        self.delivered: deque[tuple[Event, list[Batch]]] = deque(maxlen=12)
        self.incarnations: Counter[int] = Counter()
        self.now_s = 0.0

    def deliver_event(self, event: Event, batches: list[Batch] | None = None) -> None:
        effects = self.sequencer.receive(event, self.now_s)
        self.referee.judge(event, self.now_s, batches or [], effects)
        for effect in effects:
            if isinstance(effect, (Grant, Cancel, Leased)):
                self.live[effect.worker].inbox.append(effect)
            elif isinstance(effect, Serve):
                self.live[effect.worker].wants[effect.ahead] = False
            elif isinstance(effect, Evict):
                self.ghosts.append(self.live.pop(effect.worker))

    def join(self, worker: int, dial: int = 0) -> None:
        """A new process takes the seat; if one is there, it is fenced."""
        if worker in self.live:
            self.ghosts.append(self.live.pop(worker))
        self.incarnations[worker] += 1 + dial % 2
        self.live[worker] = Process(worker, self.incarnations[worker])
        self.deliver_event(Joined(worker, self.incarnations[worker]))

    def leave(self, worker: int, dial: int) -> None:
        """Its process ends; its messages may still be under way."""
        if worker in self.live:
            gone = self.live.pop(worker)
            self.ghosts.append(gone)
            self.deliver_event(Left(worker, gone.incarnation, died=dial % 2 == 0))

    def read(self, worker: int, dial: int) -> None:
        if worker in self.live and self.live[worker].inbox:
            self.live[worker].read()

    def push(self, worker: int, dial: int) -> None:
        """It sends a push, whether or not it read its messages; nothing arrives yet."""
        if worker in self.live:
            self.live[worker].push(dial)

    def deliver(self, worker: int, dial: int) -> None:
        process = self.live.get(worker)
        if process and process.outbox:
            message = process.outbox.popleft()
            self.delivered.append(message)
            self.deliver_event(*message)

    def work(self, worker: int, dial: int) -> None:
        """A whole exchange of a worker without delays."""
        if worker not in self.live:
            self.join(worker, dial)
        process = self.live[worker]
        while process.inbox:
            process.read()
        process.push(dial)
        while process.outbox:
            self.deliver(worker, dial)

    def lease(self, worker: int, dial: int) -> None:
        """It asks for data, one request at a time; sometimes it returns the rest of a loop left early."""
        process = self.live.get(worker)
        if process is None or process.asks:
            return
        process.asks = True
        rest = [process.held.pop() for _ in range(len(process.held) if dial == 15 else 0)]
        epoch = max(0, len(self.referee.books.place) // EPOCH_BATCHES - dial % 2)
        event = LeaseWanted(worker, process.incarnation, epoch, EPOCH_BATCHES, 1 + dial % 3, len(rest))
        process.outbox.append((event, rest))

    def rows(self, worker: int, dial: int) -> None:
        """It wants rows of tables, one request of each kind at a time: for what it computes, for the next, or only to read."""
        process, ahead = self.live.get(worker), dial % 4 == 1
        if process is not None and not process.wants[ahead]:
            process.wants[ahead] = True
            number = process.number + ahead if dial % 4 else 0
            process.outbox.append((RowsWanted(worker, process.incarnation, number, ahead), []))

    def repeat(self, worker: int, dial: int) -> None:
        """A delivered push arrives again."""
        pushes = [event for event, _ in self.delivered if isinstance(event, Pushed)]
        if pushes:
            self.deliver_event(pushes[dial % len(pushes)])

    def haunt(self, worker: int, dial: int) -> None:
        """A late or repeated message of an earlier incarnation arrives."""
        if self.ghosts:
            ghost = self.ghosts[dial % len(self.ghosts)]
            if ghost.outbox:
                self.deliver_event(ghost.outbox.popleft()[0])
            else:
                event = Joined if dial % 2 else Left
                self.deliver_event(event(ghost.worker, ghost.incarnation, *(() if dial % 2 else (True,))))

    def run_ahead(self, worker: int, dial: int) -> None:
        """A push with a number no honest worker could have reached."""
        if worker in self.live:
            ahead = self.referee.chairs[worker].number + 2 + dial
            event = Pushed(worker, self.live[worker].incarnation, ahead, 1, 1, 0)
            self.deliver_event(event)

    def tick(self, worker: int, dial: int) -> None:
        self.now_s += dial * 0.5
        self.deliver_event(Ticked())

    def switch(self, worker: int, dial: int) -> None:
        self.deliver_event(Switched(dial % len(self.sequencer.switching.whole.phases)))

    def wait(self, worker: int, dial: int) -> None:
        self.now_s += dial * 0.5

    # The end of a run

    def check_progress(self) -> None:
        """Whatever happened before, all living workers make progress if driven on."""
        if not self.live:
            self.join(0)
        version, numbers = self.sequencer.version, {worker: one.number for worker, one in self.live.items()}
        for _ in range(12):
            for worker in sorted(self.live):
                self.work(worker, dial=1)
        assert self.sequencer.version > version
        assert all(self.live[worker].number >= number + 4 for worker, number in numbers.items())

    def check_nothing_lost(self) -> None:
        """Living workers can lease every batch that is not done, skipped, held or pending."""
        for worker in set(range(self.workers)) - set(self.live):
            self.deliver_event(Left(worker, self.incarnations[worker] + 1, died=True))
        last = max((epoch for epoch, _ in self.referee.books.place), default=0)
        for _ in range(EPOCH_BATCHES):  # one lease has an equal share of what is open to all
            for worker, process in self.live.items():
                self.deliver_event(LeaseWanted(worker, process.incarnation, last, EPOCH_BATCHES, 10**6))
        assert self.referee.books.tally["available"] == 0


def play(strategy: Strategy, workers: int, actions: list[tuple[str, int, int]]) -> Cluster:
    """A run of those actions; the referee raises at the first broken promise."""
    cluster = Cluster(strategy, workers)
    for name, worker, dial in actions:
        getattr(cluster, name)(worker % workers, dial)
    cluster.check_progress()
    cluster.check_nothing_lost()
    return cluster


def random_actions(seed: int, workers: int, count: int, actions: Sequence[str] = ACTIONS) -> list[tuple[str, int, int]]:
    """Long and cheap, where hypothesis is short and shrinks; worker 0 is slow, so that others wait and overtake."""
    rng = random.Random(seed)
    seats = [0] + [worker for worker in range(workers) for _ in range(6)]
    return [(rng.choice(actions), rng.choice(seats), rng.randrange(16)) for _ in range(count)]
