"""Delivery over a lossy connection, and what a checkpoint of the core keeps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Event,
    Fold,
    Grant,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Member,
    Pushed,
    Scaled,
    Verdict,
)
from plesio.core.leases import Batch, DataLeases
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.strategy import Strategy, recipes
from support.long_forms import examples
from support.sequencing import decided
from torture.sessions.envelopes import Answer, Beat, Fenced, FromServer, FromWorker, Level, Received, Request
from torture.sessions.service import Service, ServiceState
from torture.sessions.session import Lost, Phase, Welcome, WentBack, WorkerSession

RETRY_S, HEARTBEAT_S, SILENCE_S = 1.0, 2.0, 10.0


def worker_session(incarnation: int = 1, worker: int = 0) -> WorkerSession:
    return WorkerSession(worker, incarnation, RETRY_S, HEARTBEAT_S)


def service(workers: int = 1, epoch: int = 1, level: Level = Level.APPLIED) -> Service:
    return Service(workers, epoch, SILENCE_S, level, now_s=0.0)


def taken(worker: int, incarnation: int, number: int, version: int) -> list[Any]:
    """What the sequencer answers a contribution with that makes a version of its own."""
    member = Member(worker, incarnation, number, version - 1, 0, 1.0, 1, 1)
    return [Fold(version, (member,), 1.0, False, 1.0), Grant(worker, number, version, Verdict.TAKEN, 0)]


@dataclass
class Pair:
    """One worker and one server that answers at once; what either says is handed over by the test, or lost."""

    worker: WorkerSession = field(default_factory=worker_session)
    server: Service = field(default_factory=service)
    version: int = 0
    now_s: float = 0.0
    told: list[Event] = field(default_factory=list)
    news: list[Any] = field(default_factory=list)

    def to_server(self, letter: FromWorker | None) -> list[FromServer]:
        """Hand a letter over; what the server says to that."""
        assert letter is not None
        for event in self.server.receive(letter, self.now_s):
            self.told.append(event)
            if isinstance(event, Joined):
                self.server.granted(Grant(event.worker, 0, self.version, Verdict.TAKEN, 0))
            elif isinstance(event, Pushed):
                self.version += 1
                for effect in taken(event.worker, event.incarnation, event.number, self.version):
                    self.server.folded(effect) if isinstance(effect, Fold) else self.server.granted(effect)
            elif isinstance(event, LeaseWanted):
                self.server.leased(Leased(event.worker, ((event.epoch, len(self.told)),)))
        said, self.server.outbox = self.server.outbox, []
        return said

    def to_worker(self, letters: list[FromServer]) -> None:
        for letter in letters:
            news = self.worker.receive(letter)
            if news is not None:
                self.news.append(news)

    def join(self) -> None:
        self.to_worker(self.to_server(self.worker.join(self.now_s)))

    def push(self) -> Request:
        return self.worker.push(1, 32, 1, True, self.now_s)

    def later(self, seconds: float) -> FromWorker | None:
        self.now_s += seconds
        return self.worker.tick(self.now_s)


def joined(**parts: Any) -> Pair:
    pair = Pair(**parts)
    pair.join()
    assert pair.worker.phase is Phase.FREE
    return pair


# One exchange


def test_a_lost_answer_is_repeated_and_the_contribution_counts_once() -> None:
    pair = joined()
    lost = pair.to_server(pair.push())
    again = pair.later(RETRY_S)
    assert again == pair.worker.outstanding
    assert pair.to_server(again) == lost
    pair.to_worker(lost)
    assert pair.told == [Joined(0, 1), Pushed(0, 1, 1, 1, 32, 1)]
    assert pair.news[-1] == Grant(0, 1, 1, Verdict.TAKEN, 0)
    assert (pair.worker.number, pair.worker.version, pair.worker.applied) == (2, 1, 1)


def test_a_request_is_resent_until_received_is_acknowledged() -> None:
    pair = joined()
    request = pair.push()
    assert pair.server.receive(request, 0.0) == (request.event,)
    assert pair.server.outbox == []
    said = pair.to_server(pair.later(RETRY_S))
    assert said == [Received(0, 1, 1, 1)]
    pair.to_worker(said)
    assert pair.later(RETRY_S) is None
    beat = pair.later(HEARTBEAT_S)
    assert beat == Beat(0, 1, 1, serial=1)
    assert pair.to_server(beat) == [Received(0, 1, 1, 1)]
    pair.server.granted(Grant(0, 1, 5, Verdict.TAKEN, 0))
    pair.server.outbox.clear()
    pair.to_worker(pair.to_server(pair.later(HEARTBEAT_S)))
    assert pair.news[-1].version == 5


def test_a_new_connection_resends_the_open_request() -> None:
    pair = joined()
    assert pair.worker.connected(0.1) == Beat(0, 1, 1, serial=-1)
    request = pair.push()
    pair.to_worker([Received(0, 1, 1, 1)])
    assert pair.worker.connected(0.2) == request


def test_answers_to_other_requests_are_ignored() -> None:
    pair = joined()
    pair.to_worker(pair.to_server(pair.push()))
    pair.push()
    grant = Grant(0, 2, 9, Verdict.TAKEN, 0)
    for late in (Answer(0, 1, 1, 1, 9, 9, grant), Answer(0, 0, 1, 2, 9, 9, grant), Answer(0, 1, 0, 2, 9, 9, grant)):
        assert pair.worker.receive(late) is None
    assert pair.worker.phase is Phase.WAITING
    assert pair.worker.receive(Answer(0, 1, 1, 2, 9, 9, grant)) == grant


def test_a_repeated_bye_is_answered_again() -> None:
    pair = joined()
    bye = pair.worker.finish(0.0)
    first, second = pair.to_server(bye), pair.to_server(bye)
    assert first == second == [Received(0, 1, 1, 1)]
    assert pair.told[1:] == [Left(0, 1, died=False)]
    pair.to_worker(second)
    assert pair.worker.phase is Phase.FINISHED
    assert pair.server.tick(100.0) == []


# Work that is called off


def test_cancelled_work_is_reported_with_the_next_request() -> None:
    pair = joined()
    pair.server.called_off(Cancel(0, 1, 7))
    pair.to_worker(pair.server.outbox)
    assert pair.news[-1] == Cancel(0, 1, 7)
    pair.worker.abandon(2)
    request = pair.push()
    assert (request.event.number, request.abandoned, pair.worker.version) == (2, 2, 7)
    pair.to_server(request)
    assert pair.told[1:] == [Abandoned(0, 1, 2), request.event]


def test_a_contribution_crossing_its_cancellation_is_answered_by_it() -> None:
    pair = joined()
    pair.server.called_off(Cancel(0, 1, 7))
    notice, pair.server.outbox = pair.server.outbox, []
    request = pair.push()
    pair.to_worker(notice)
    assert pair.worker.phase is Phase.WAITING
    assert pair.server.receive(request, 0.1) == (request.event,)
    pair.server.repeated(Discard(0, 1, 1, Verdict.DUPLICATE, 0))
    pair.to_worker(pair.server.outbox)
    assert pair.news[-1] == Cancel(0, 1, 7)
    assert (pair.worker.phase, pair.worker.number, pair.worker.version) == (Phase.FREE, 2, 7)


# Who is a member


def test_an_evicted_worker_rejoins_as_the_next_incarnation() -> None:
    pair = joined()
    assert pair.server.tick(SILENCE_S + 1) == [Left(0, 1, died=True)]
    said = pair.to_server(pair.later(SILENCE_S + 1))
    assert said == [Fenced(0, 1, 1, latest=1)]
    pair.to_worker(said)
    assert pair.news[-1] == Lost(superseded=False)
    pair.join()
    assert pair.news[-1] == Welcome(0, None)
    assert pair.told[-1] == Joined(0, 2)


def test_a_superseded_process_is_told_to_end() -> None:
    pair = joined()
    newer = worker_session(incarnation=100)
    assert pair.server.receive(newer.join(0.0), 0.0) == (Joined(0, 100),)
    pair.server.granted(Grant(0, 0, 0, Verdict.TAKEN, 0))
    pair.server.outbox.clear()
    pair.to_worker(pair.to_server(pair.push()))
    assert pair.news[-1] == Lost(superseded=True)
    assert pair.worker.phase is Phase.SUPERSEDED
    assert pair.later(100.0) is None


def test_heartbeats_keep_the_lease() -> None:
    pair = joined()
    for _ in range(20):
        beat = pair.later(HEARTBEAT_S)
        assert isinstance(beat, Beat)
        pair.to_server(beat)
        assert pair.server.tick(pair.now_s) == []


def test_a_broken_connection_is_a_departed_worker() -> None:
    pair = joined()
    assert pair.server.broken(0, incarnation=7) == []
    assert pair.server.broken(0, incarnation=1) == [Left(0, 1, died=True)]
    assert pair.server.broken(0, incarnation=1) == pair.server.tick(100.0) == []


# What an acknowledgement covers


def test_level_received_acknowledges_at_once() -> None:
    pair = joined(server=service(level=Level.RECEIVED))
    said = pair.to_server(pair.push())
    assert [type(one) for one in said] == [Received, Answer]


def test_applied_and_durable_are_counted_apart() -> None:
    pair = joined()
    pair.to_worker(pair.to_server(pair.push()))
    checkpoint = pair.server.begin_checkpoint()
    pair.to_worker(pair.to_server(pair.push()))
    assert (pair.worker.applied, pair.worker.durable) == (2, 0)
    pair.server.written(*checkpoint)
    pair.to_worker(pair.to_server(pair.push()))
    assert (pair.worker.applied, pair.worker.durable) == (3, 1)


def test_level_durable_waits_for_a_checkpoint_begun_after_the_fold() -> None:
    pair = joined(server=service(level=Level.DURABLE))
    early = pair.server.begin_checkpoint()
    assert pair.to_server(pair.push()) == []
    pair.server.written(*early)
    assert pair.server.outbox == []
    assert pair.to_server(pair.later(RETRY_S)) == [Received(0, 1, 1, 1)]
    pair.server.written(*pair.server.begin_checkpoint())
    pair.to_worker(pair.server.outbox)
    assert pair.news[-1].number == 1
    assert (pair.worker.applied, pair.worker.durable) == (1, 1)


@settings(max_examples=examples(17), deadline=None, derandomize=True)
@given(before=st.integers(0, 6), after=st.integers(0, 6), crashes=st.integers(1, 3))
def test_a_restart_loses_exactly_the_work_after_the_checkpoint(before: int, after: int, crashes: int) -> None:
    pair = joined()
    for _ in range(before):
        pair.to_worker(pair.to_server(pair.push()))
    state, version = pair.server.state(), pair.version
    for _ in range(after):
        pair.to_worker(pair.to_server(pair.push()))
    pair.version = version
    for _ in range(crashes):
        epoch = pair.server.epoch + 1
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=ServiceState)
        pair.server = Service(1, epoch, SILENCE_S, state=stored, now_s=0.0)
    pair.to_worker(pair.to_server(pair.push()))
    assert pair.news[-1] == Lost(superseded=False)
    pair.join()
    assert pair.news[-1] == Welcome(version, WentBack(version + after, version, after))
    assert pair.told[-1] == Joined(0, 2)
    pair.to_worker(pair.to_server(pair.push()))
    assert pair.worker.applied == before + 1


def test_a_worker_that_does_not_return_after_a_restart_has_left() -> None:
    server = Service(2, 2, SILENCE_S, state=service(workers=2).state(), now_s=50.0)
    assert server.receive(Request(0, Joined(1, 1)), 51.0) == (Joined(1, 1),)
    server.granted(Grant(1, 0, 0, Verdict.TAKEN, 0))
    assert server.tick(50.0 + SILENCE_S + 0.5) == [Left(0, 0, died=True)]


# Any behaviour of the connection

ACTIONS = st.lists(st.tuples(st.sampled_from(("deliver", "lose", "repeat", "swap", "wait", "work")), st.booleans()))


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(actions=ACTIONS)
def test_requests_are_handled_once_over_lossy_connections(actions: list[tuple[str, bool]]) -> None:
    pair = Pair()
    up: deque[FromWorker] = deque([pair.worker.join(0.0)])
    down: deque[FromServer] = deque()
    asked = 0

    def work() -> None:
        nonlocal asked
        if pair.worker.phase is Phase.FREE:
            asked += 1
            data = asked % 3 == 0
            up.append(pair.worker.ask(asked, 9, 1, 0, pair.now_s) if data else pair.push())

    def deliver(upwards: bool) -> None:
        if upwards and up:
            down.extend(pair.to_server(up.popleft()))
        elif not upwards and down:
            pair.to_worker([down.popleft()])

    def check() -> None:
        answers = [one for one in pair.news if isinstance(one, (Grant, Leased))]
        events = [one for one in pair.told if isinstance(one, (Pushed, LeaseWanted))]
        assert asked >= len(events) >= len(answers) >= asked - 1
        for event, answer in zip(events, answers, strict=False):
            if isinstance(answer, Grant):
                assert isinstance(event, Pushed)
                assert event.number == answer.number
            else:
                assert isinstance(event, LeaseWanted)
                assert answer.batches[0][0] == event.epoch
        assert pair.told.count(Joined(0, 1)) <= 1

    for name, upwards in actions:
        way: deque[Any] = up if upwards else down
        if name == "deliver":
            deliver(upwards)
        elif name == "lose" and way:
            way.popleft()
        elif name == "repeat" and way:
            way.append(way[0])
        elif name == "swap":
            way.rotate(1)
        elif name == "work":
            work()
        elif (letter := pair.later(RETRY_S / 2)) is not None:
            up.append(letter)
        check()
    for _ in range(8):  # a connection that works, at last
        while up or down:
            deliver(bool(up))
        work()
        letter = pair.later(RETRY_S)
        up.extend([letter] if letter else [])
    check()
    assert pair.worker.version == pair.version > 0
    assert pair.worker.applied == len([one for one in pair.told if isinstance(one, Pushed)])


LETTERS: list[FromWorker | FromServer] = [
    Request(0, Joined(0, 1)),
    Request(1, Pushed(0, 1, 2, 3, 4, 5, False), 6, 7),
    Request(1, LeaseWanted(0, 1, 2, 3, 4, 5), 2, 1),
    Request(1, Left(0, 1, died=False), 3, 0),
    Beat(0, 1, 2, 3),
    Answer(0, 1, 2, 3, 4, 5, Grant(0, 1, 2, Verdict.STALE, 3)),
    Answer(0, 1, 2, 3, 4, 5, Leased(0, ((1, 2), (3, 4)))),
    Answer(0, 1, 2, 3, 4, 5, Cancel(0, 1, 2)),
    Received(0, 1, 2, 3),
    Fenced(0, 1, 2, 3),
]


@pytest.mark.parametrize("letter", LETTERS, ids=lambda one: type(one).__name__)
def test_messages_round_trip_through_msgpack(letter: FromWorker | FromServer) -> None:
    kind: Any = FromWorker if isinstance(letter, FromWorker) else FromServer
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(letter), type=kind) == letter


# What a checkpoint of the sequencer keeps

TOTAL = 7


class Run:
    """A sequencer driven at random; `places` is the test's own account of every batch."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self.strategy = strategy
        self.workers = workers
        self.sequencer = Sequencer(strategy, workers, DataLeases(workers, stealing=not strategy.in_lock_step))
        self.incarnations = dict.fromkeys(range(workers), 0)
        self.waits: dict[int, bool] = {}
        self.numbers: dict[int, int] = {}
        self.held: dict[int, list[Batch]] = {}
        self.pushed: dict[tuple[int, int, int], list[Batch]] = {}
        self.ended: set[Batch] = set()
        self.opened: set[Batch] = set()

    def tell(self, event: Event) -> None:
        for effect in self.sequencer.receive(event, 0.0):
            if isinstance(effect, Fold):
                for member in effect.members:
                    self.ended.update(self.pushed[member.worker, member.incarnation, member.number])
            elif isinstance(effect, Grant):
                self.waits[effect.worker] = False
                self.numbers[effect.worker] = effect.number + 1
            elif isinstance(effect, Cancel):
                self.numbers[effect.worker] = effect.number + 1
            elif isinstance(effect, Leased):
                self.held[effect.worker].extend(effect.batches)

    def act(self, name: str, worker: int, dial: int) -> None:
        if name == "scale":
            self.tell(Scaled(1 + dial % 4))
            return
        incarnation = self.incarnations[worker]
        if name == "join":
            self.incarnations[worker] += 1 + dial % 2
            self.held[worker] = []
            self.tell(Joined(worker, self.incarnations[worker]))
        elif worker not in self.waits:
            return
        elif name == "leave":
            del self.waits[worker]
            self.tell(Left(worker, incarnation, died=True))
        elif self.waits[worker]:
            return
        elif name == "lease":
            epoch = dial % 3
            self.opened.update((one, batch) for one in range(epoch + 1) for batch in range(TOTAL))
            self.tell(LeaseWanted(worker, incarnation, epoch, TOTAL, 1 + dial % 4))
        else:
            batches = [self.held[worker].pop(0) for _ in range(min(dial % 3, len(self.held[worker])))]
            finite = dial != 5
            self.pushed[worker, incarnation, self.numbers[worker]] = batches
            self.ended.update(() if finite else batches)
            self.waits[worker] = True
            self.tell(Pushed(worker, incarnation, self.numbers[worker], 1, 1, len(batches), finite))


STRATEGIES = (recipes.sync_sgd(), recipes.first_of(1), recipes.async_sgd(), recipes.buffered(3), recipes.rennala(2))
STEPS = st.lists(
    st.tuples(st.sampled_from(("join", "lease", "push", "push", "push", "lease", "leave", "scale")), st.integers(0, 9)),
    max_size=60,
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(workers=st.integers(1, 4), later_workers=st.integers(1, 4), steps=STEPS, dials=st.data())
def test_a_restored_sequencer_continues_from_its_checkpoint(
    strategy: Strategy, workers: int, later_workers: int, steps: list[tuple[str, int]], dials: st.DataObject
) -> None:
    run = Run(strategy, workers)
    for worker in range(workers):
        run.act("join", worker, 0)
    for name, dial in steps:
        run.act(name, dials.draw(st.integers(0, workers - 1)), dial)
    before = run.sequencer
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(before.state()), type=SequencerState)
    after = Sequencer.restore(strategy, later_workers, state, stealing=not strategy.in_lock_step)

    assert after.version == before.version
    assert (after._pending, after.members.seats) == ([], {})
    assert (after.leases.done, after.leases.skipped) == (before.leases.done, before.leases.skipped)
    assert after.leases.opened == before.leases.opened == len(run.opened)
    if later_workers == before.workers:
        assert after.state() == state
    for worker in range(min(workers, later_workers)):
        old = Joined(worker, run.incarnations[worker])
        assert [type(one) for one in after.receive(old, 1.0)] == [Discard]
    for worker in range(1, later_workers):
        after.receive(Left(worker, 0, died=True), 1.0)
    (grant,) = decided(after.receive(Joined(0, 10**6), 2.0))
    assert isinstance(grant, Grant)
    assert grant.version == before.version
    if run.opened:
        last = max(epoch for epoch, _ in run.opened)
        (leased,) = after.receive(LeaseWanted(0, 10**6, last, TOTAL, 10**6), 3.0)
        assert isinstance(leased, Leased)
        assert sorted(leased.batches) == sorted(run.opened - run.ended)
