"""The sequencer's five promises, under random events, against a referee that knows only the promises.

`Cluster` plays honest workers behind a network that delays, repeats and crosses messages, and processes that die, come
back or fall silent. `Referee` hears every event and every effect and keeps its own books. Direct examples of single
behaviours are in `test_sequencer_examples.py`.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio import recipes
from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Event,
    Evict,
    Fold,
    Grant,
    Hold,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    Ticked,
    Verdict,
)
from plesio.core.leases import Batch, DataLeases
from plesio.core.sequencer import Sequencer
from plesio.rules import AfterFold, Buffer, BySamples, Each, Fresh, Polynomial, Round, UserOptimizer, Within
from plesio.strategy import Strategy

SILENCE_S = 10.0
EPOCH_BATCHES = 7
Key = tuple[int, int, int]


def strategies() -> list[Strategy]:
    """Every recipe, with settings that bite in a small cluster, and combinations no recipe has."""
    needed = {"first_of": {"m": 2}}
    plain = [make(**needed.get(name, {})) for name, make in recipes.RECIPES.items()]
    tuned = [
        recipes.first_of(1),
        recipes.first_of(3, cancel_late=False),
        recipes.bounded_staleness(0),
        recipes.bounded_staleness(1),
        recipes.buffered(4, weigh="polynomial"),
        recipes.rennala(3),
        recipes.ringmaster(2),
        recipes.ringmaster(1),
        recipes.async_sgd("plain", "inverse", lr_scale="full"),
        recipes.local_sgd(recipes.local.Seconds(0.3)),
    ]
    own = [
        Strategy(name="buffer after fold", gather=Buffer(3), release=AfterFold(), weigh=BySamples()),
        Strategy(name="buffer within", gather=Buffer(3), release=Within(1), weigh=Polynomial(0.5)),
        Strategy(name="fresh within", admit=Fresh(1), gather=Each(), release=Within(2)),
        Strategy(name="late ones count", admit=Fresh(2), gather=Round(2), release=AfterFold()),
    ]
    return plain + tuned + own


# The referee


@dataclass
class Chair:
    """A live worker, as the promises see it: `number` is computed or, if `waits`, came in and is not answered."""

    incarnation: int
    clock: int
    computed_from: int
    heard_s: float
    number: int = 1
    waits: bool = False
    arrived: int = 0


@dataclass
class Came:
    """A contribution that counted as new."""

    event: Pushed
    computed_from: int
    staleness: int
    batches: list[Batch]
    fate: Verdict | None = None
    folded: bool = False
    answered: bool = False


@dataclass
class Books:
    """Where every batch is, by the referee's own account."""

    place: dict[Batch, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)

    def move(self, batches: list[Batch], before: str, after: str) -> None:
        for batch in batches:
            assert self.place[batch] == before, f"{batch} is {self.place[batch]}, not {before}"
            self.place[batch] = after
        self.tally[before] -= len(batches)
        self.tally[after] += len(batches)

    def open(self, epoch: int) -> None:
        for batch in [(one, number) for one in range(epoch + 1) for number in range(EPOCH_BATCHES)]:
            if batch not in self.place:
                self.place[batch] = "available"
                self.tally["available"] += 1


class Referee:
    """Checks every effect of every event against the promises."""

    def __init__(self, strategy: Strategy, sequencer: Sequencer) -> None:
        self.strategy = strategy
        self.sequencer = sequencer
        self.version = 0
        self.chairs: dict[int, Chair] = {}
        self.known: dict[Key, Came] = {}
        self.pending: list[Came] = []
        self.weight_held: dict[Key, float] = {}
        self.cancelled: set[Key] = set()
        self.books = Books()
        self.leased: dict[int, list[Batch]] = {}
        self.seated_this_round: set[tuple[int, int]] = set()
        self.seen: Counter[str] = Counter()
        self.after_fold = isinstance(strategy.release, AfterFold)
        self.holds = isinstance(strategy.gather, Buffer) and strategy.gather.k > 1 and not self.after_fold
        self.stalest = strategy.admit.within if isinstance(strategy.admit, Fresh) else math.inf
        self.lead = strategy.release.clocks if isinstance(strategy.release, Within) else math.inf
        self.quota = {Each: lambda g: 1, Buffer: lambda g: g.k, Round: lambda g: g.first or math.inf}[
            type(strategy.gather)
        ](strategy.gather)

    def judge(self, event: Event, now_s: float, batches: list[Batch], effects: list[Effect]) -> None:
        self.event, self.now_s, self.effects = event, now_s, effects
        getattr(self, f"hear_{type(event).__name__.lower()}")(event, batches)
        self.close_empty_round()
        for effect in effects:
            self.seen[type(effect).__name__] += 1
            getattr(self, f"see_{type(effect).__name__.lower()}")(effect)
        self.check_calm()

    # What came

    def seated(self, event: Joined | Left | Pushed | Abandoned | LeaseWanted) -> Chair | None:
        chair = self.chairs.get(event.worker)
        return chair if chair and chair.incarnation == event.incarnation else None

    def gone(self, worker: int) -> None:
        del self.chairs[worker]
        self.books.move(self.leased.pop(worker, []), "leased", "available")

    def hear_joined(self, event: Joined, batches: list[Batch]) -> None:
        chair = self.chairs.get(event.worker)
        if chair and chair.incarnation < event.incarnation:
            self.gone(event.worker)

    def hear_left(self, event: Left, batches: list[Batch]) -> None:
        if self.seated(event):
            self.gone(event.worker)
        else:
            assert not self.effects

    def hear_abandoned(self, event: Abandoned, batches: list[Batch]) -> None:
        assert not self.effects
        if chair := self.seated(event):
            self.seen["abandoned"] += bool(batches)
            chair.heard_s = self.now_s
            self.release_lease(event.worker, batches, "available")

    def hear_leasewanted(self, event: LeaseWanted, batches: list[Batch]) -> None:
        assert len(self.effects) == (self.seated(event) is not None)
        if chair := self.seated(event):
            chair.heard_s = self.now_s
            self.release_lease(event.worker, batches, "available")
            self.books.open(event.epoch)

    def hear_ticked(self, event: Ticked, batches: list[Batch]) -> None:
        pass

    def hear_pushed(self, event: Pushed, batches: list[Batch]) -> None:
        chair, key = self.seated(event), (event.worker, event.incarnation, event.number)
        if chair is None or chair.waits or event.number != chair.number:
            verdict = Verdict.DUPLICATE if chair else Verdict.FENCED
            assert self.effects == [Discard(*key, verdict, 0)]
            if chair and chair.arrived < event.number and key in self.cancelled:
                self.seen["crossed"] += 1
                self.seen["crossed again"] += chair.number > event.number + 1
                chair.arrived, chair.heard_s = event.number, self.now_s
                self.release_lease(event.worker, batches, "available")
            return
        assert key not in self.known
        chair.clock, chair.waits, chair.arrived, chair.heard_s = chair.clock + 1, True, event.number, self.now_s
        came = Came(event, chair.computed_from, self.version - chair.computed_from, batches)
        came.fate = Verdict.TAKEN
        if not event.finite:
            came.fate = Verdict.NOT_FINITE
        elif came.staleness > self.stalest:
            came.fate = Verdict.STALE
        place = {Verdict.TAKEN: "pending", Verdict.NOT_FINITE: "skipped", Verdict.STALE: "available"}[came.fate]
        self.release_lease(event.worker, batches, place)
        self.known[key] = came
        if came.fate is Verdict.TAKEN or (came.fate is Verdict.NOT_FINITE and self.after_fold):
            self.pending.append(came)
            self.seated_this_round.add(key[:2])
        told = [one for one in self.effects if isinstance(one, Discard) and one.verdict is not Verdict.CANCELLED]
        expected = Discard(*key, came.fate, came.staleness, event.samples)
        assert told == ([] if came.fate is Verdict.TAKEN else [expected])
        assert sum(isinstance(one, Hold) for one in self.effects) == (self.holds and came.fate is Verdict.TAKEN)

    def release_lease(self, worker: int, batches: list[Batch], place: str) -> None:
        for batch in batches:
            self.leased[worker].remove(batch)
        self.books.move(batches, "leased", place)

    # What is to be done

    def all_came(self) -> bool:
        nobody_left = not self.chairs or (self.after_fold and all(chair.waits for chair in self.chairs.values()))
        return len(self.pending) == self.quota or (nobody_left and len(self.pending) < self.quota)

    def see_hold(self, effect: Hold) -> None:
        event = self.event
        assert isinstance(event, Pushed)
        assert (effect.worker, effect.number) == (event.worker, event.number)
        self.weight_held[event.worker, event.incarnation, event.number] = effect.weight

    def see_fold(self, fold: Fold) -> None:
        assert self.all_came(), "folded before its time"
        counting = [came for came in self.pending if came.fate is Verdict.TAKEN]
        weigh = self.strategy.weigh
        weights = {
            (came.event.worker, came.event.incarnation, came.event.number): weigh.weight(
                came.staleness, self.sequencer.workers, came.event.samples
            )
            for came in counting
        }
        total = sum(weights.values())
        assert fold.version == self.version + 1
        assert fold.total_weight == pytest.approx(total)
        assert fold.held == self.holds
        assert fold.scale == pytest.approx(self.scale(len(counting), total))
        assert sum(member.share for member in fold.members) == pytest.approx(1.0)
        assert sorted((m.worker, m.incarnation, m.number) for m in fold.members) == sorted(weights)
        if not self.holds:
            assert [m.worker for m in fold.members] == sorted(m.worker for m in fold.members)
        for member in fold.members:
            key = (member.worker, member.incarnation, member.number)
            came = self.known[key]
            assert not came.folded, "in two folds"
            came.folded = True
            assert (member.computed_from, member.staleness) == (came.computed_from, self.version - came.computed_from)
            assert (member.steps, member.samples) == (came.event.steps, came.event.samples)
            assert member.share == pytest.approx(weights[key] / total)
            assert not self.holds or self.weight_held.pop(key) == pytest.approx(weights[key])
            self.books.move(came.batches, "pending", "done")
        self.close_round()
        self.version += 1

    def scale(self, folded: int, total: float) -> float:
        outer = self.strategy.outer
        shared = isinstance(outer, UserOptimizer) and outer.lr_scale == "share"
        mean_weight = 1.0 if isinstance(self.strategy.weigh, BySamples) else total / folded
        return (min(1.0, folded / self.sequencer.workers) if shared else 1.0) * mean_weight

    def close_empty_round(self) -> None:
        """Everything came, and nothing of it was finite: no fold, but nobody is held for it."""
        if self.pending and self.all_came() and all(came.fate is Verdict.NOT_FINITE for came in self.pending):
            self.close_round()

    def close_round(self) -> None:
        self.pending.clear()
        self.seated_this_round.clear()

    def see_discard(self, effect: Discard) -> None:
        key = (effect.worker, effect.incarnation, effect.number)
        self.seen[effect.verdict.name] += 1
        if effect.verdict is Verdict.CANCELLED:
            chair = self.chairs[effect.worker]
            assert (chair.incarnation, chair.number, chair.waits) == (effect.incarnation, effect.number, False)
            assert effect.staleness == self.version - chair.computed_from > 0
            self.cancelled.add(key)

    def see_cancel(self, effect: Cancel) -> None:
        chair = self.chairs[effect.worker]
        key = (effect.worker, chair.incarnation, effect.number)
        assert self.strategy.release == AfterFold(cancel_late=True)
        assert key in self.cancelled
        assert key not in self.known
        assert (effect.number, effect.version) == (chair.number, self.version)
        chair.number, chair.computed_from = chair.number + 1, self.version

    def see_grant(self, grant: Grant) -> None:
        assert grant.version == self.version
        if grant.number == 0:
            assert isinstance(self.event, Joined)
            slowest = min((chair.clock for chair in self.chairs.values()), default=self.sequencer.members.slowest)
            self.chairs[grant.worker] = Chair(self.event.incarnation, slowest, self.version, self.now_s)
            return
        chair = self.chairs[grant.worker]
        came = self.known[grant.worker, chair.incarnation, grant.number]
        assert chair.waits
        assert grant.number == chair.number
        assert not came.answered, "answered twice"
        came.answered = True
        assert (grant.verdict, grant.staleness) == (came.fate, came.staleness)
        assert grant.freed_by_other == (getattr(self.event, "worker", None) != grant.worker)
        assert chair.clock <= min(one.clock for one in self.chairs.values()) + self.lead
        assert not self.after_fold or all(came is not one for one in self.pending), "released before its fold"
        self.seen["freed by another"] += grant.freed_by_other
        chair.waits, chair.number = False, chair.number + 1
        chair.computed_from, chair.heard_s = self.version, self.now_s

    def see_evict(self, effect: Evict) -> None:
        chair = self.chairs[effect.worker]
        assert isinstance(self.event, Ticked)
        assert chair.incarnation == effect.incarnation
        assert effect.silent_s == self.now_s - chair.heard_s > SILENCE_S
        assert self.holds_up(chair), "nobody waits for it"
        self.gone(effect.worker)
        self.close_empty_round()

    def holds_up(self, chair: Chair) -> bool:
        waiting = [one for one in self.chairs.values() if one.waits]
        return not chair.waits and any(self.after_fold or one.clock - chair.clock > self.lead for one in waiting)

    def see_leased(self, effect: Leased) -> None:
        event = self.event
        assert isinstance(event, LeaseWanted)
        assert len(effect.batches) <= event.most
        assert all(epoch <= event.epoch for epoch, _ in effect.batches)
        self.books.move(list(effect.batches), "available", "leased")
        self.leased.setdefault(effect.worker, []).extend(effect.batches)

    # When all is done

    def check_calm(self) -> None:
        """Nothing that could be done was left undone."""
        chairs = self.chairs.values()
        assert self.sequencer.version == self.version
        assert self.sequencer.pending == len(self.pending)
        assert len(self.pending) < self.quota, "a fold is overdue"
        assert len(self.pending) <= (len(self.seated_this_round) if self.after_fold else self.quota)
        assert not chairs or not all(chair.waits for chair in chairs), "everybody waits"
        assert chairs or not self.after_fold or not self.pending, "folds nobody can complete"
        for worker, chair in self.chairs.items():
            if chair.waits and self.after_fold:
                came = self.known[worker, chair.incarnation, chair.number]
                assert any(came is one for one in self.pending), "held after its fold"
            elif chair.waits:
                assert chair.clock - min(one.clock for one in chairs) > self.lead, "held without a reason"
        if self.strategy.release == AfterFold(cancel_late=True):
            assert all(chair.waits or chair.computed_from == self.version for chair in chairs), (
                "late work not cancelled"
            )
        if isinstance(self.event, Ticked):
            silent = [one for one in chairs if self.now_s - one.heard_s > SILENCE_S]
            assert not any(self.holds_up(chair) for chair in silent), "a wait without end"
        leases, tally = self.sequencer.leases, self.books.tally
        assert (leases.done, leases.skipped, leases.opened) == (tally["done"], tally["skipped"], tally.total())


# Honest workers and a dishonest network


class Process:
    """One incarnation of a worker: pushes its next number only after the answer to the one before."""

    def __init__(self, worker: int, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.number = 0
        self.waits = True
        self.asks = False
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
            event = Pushed(self.worker, self.incarnation, self.number, dial + 1, samples, len(batches), finite)
            self.outbox.append((event, batches))
            self.waits = True


class Cluster:
    """Drives a sequencer with the actions it is told; every method takes a worker and a dial of 0 to 15."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        leases = DataLeases(workers, stealing=not strategy.in_lock_step)
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
        """It ends; what it had sent may still be on the way."""
        if worker in self.live:
            gone = self.live.pop(worker)
            self.ghosts.append(gone)
            self.deliver_event(Left(worker, gone.incarnation, died=dial % 2 == 0))

    def read(self, worker: int, dial: int) -> None:
        if worker in self.live and self.live[worker].inbox:
            self.live[worker].read()

    def push(self, worker: int, dial: int) -> None:
        """It sends, whether or not it read what came for it; nothing arrives yet."""
        if worker in self.live:
            self.live[worker].push(dial)

    def deliver(self, worker: int, dial: int) -> None:
        process = self.live.get(worker)
        if process and process.outbox:
            message = process.outbox.popleft()
            self.delivered.append(message)
            self.deliver_event(*message)

    def work(self, worker: int, dial: int) -> None:
        """A whole exchange of a worker on a quick line."""
        if worker not in self.live:
            self.join(worker, dial)
        process = self.live[worker]
        while process.inbox:
            process.read()
        process.push(dial)
        while process.outbox:
            self.deliver(worker, dial)

    def lease(self, worker: int, dial: int) -> None:
        """It asks for data, at most once at a time; now and then its loop was left early and it returns the rest."""
        process = self.live.get(worker)
        if process is None or process.asks:
            return
        process.asks = True
        rest = [process.held.pop() for _ in range(len(process.held) if dial == 15 else 0)]
        epoch = max(0, len(self.referee.books.place) // EPOCH_BATCHES - dial % 2)
        event = LeaseWanted(worker, process.incarnation, epoch, EPOCH_BATCHES, 1 + dial % 3, len(rest))
        process.outbox.append((event, rest))

    def repeat(self, worker: int, dial: int) -> None:
        """A push that was delivered comes once more."""
        pushes = [event for event, _ in self.delivered if isinstance(event, Pushed)]
        if pushes:
            self.deliver_event(pushes[dial % len(pushes)])

    def haunt(self, worker: int, dial: int) -> None:
        """Something an earlier incarnation had sent, or says again, arrives at last."""
        if self.ghosts:
            ghost = self.ghosts[dial % len(self.ghosts)]
            if ghost.outbox:
                self.deliver_event(ghost.outbox.popleft()[0])
            else:
                event = Joined if dial % 2 else Left
                self.deliver_event(event(ghost.worker, ghost.incarnation, *(() if dial % 2 else (True,))))

    def run_ahead(self, worker: int, dial: int) -> None:
        """A number no honest worker could have come to."""
        if worker in self.live:
            process = self.live[worker]
            event = Pushed(worker, process.incarnation, process.number + 100 + dial, 1, 1, 0)
            self.deliver_event(event)

    def tick(self, worker: int, dial: int) -> None:
        self.now_s += dial * 0.5
        self.deliver_event(Ticked())

    def wait(self, worker: int, dial: int) -> None:
        self.now_s += dial * 0.5

    # The end of a run

    def check_progress(self) -> None:
        """Whoever lives, and whatever is on the way: go on driving everybody and everybody gets on."""
        if not self.live:
            self.join(0)
        version, numbers = self.sequencer.version, {worker: one.number for worker, one in self.live.items()}
        for _ in range(12):
            for worker in sorted(self.live):
                self.work(worker, dial=1)
        assert self.sequencer.version > version
        assert all(self.live[worker].number >= number + 4 for worker, number in numbers.items())

    def check_nothing_lost(self) -> None:
        """Whoever lives can lease every batch that is neither done, skipped, in somebody's hands nor pending."""
        for worker in set(range(self.workers)) - set(self.live):
            self.deliver_event(Left(worker, self.incarnations[worker] + 1, died=True))
        last = max((epoch for epoch, _ in self.referee.books.place), default=0)
        for worker, process in self.live.items():
            self.deliver_event(LeaseWanted(worker, process.incarnation, last, EPOCH_BATCHES, 10**6))
        assert self.referee.books.tally["available"] == 0


COMMON = ("work", "read", "push", "deliver", "lease")
RARE = ("repeat", "wait", "tick", "haunt", "leave", "join", "run_ahead")
ACTIONS = COMMON * 4 + RARE


def play(strategy: Strategy, workers: int, actions: list[tuple[str, int, int]]) -> Cluster:
    """A run of those actions; the referee raises at the first broken promise."""
    cluster = Cluster(strategy, workers)
    for name, worker, dial in actions:
        getattr(cluster, name)(worker % workers, dial)
    cluster.check_progress()
    cluster.check_nothing_lost()
    return cluster


def random_actions(seed: int, workers: int, count: int) -> list[tuple[str, int, int]]:
    """Long and cheap, where hypothesis is short and shrinks; worker 0 is slow, so that others wait and overtake."""
    rng = random.Random(seed)
    seats = [0] + [worker for worker in range(workers) for _ in range(6)]
    return [(rng.choice(ACTIONS), rng.choice(seats), rng.randrange(16)) for _ in range(count)]


@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: one.name)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    workers=st.integers(1, 6),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 15)), max_size=80),
)
def test_promises_hold(strategy: Strategy, workers: int, actions: list[tuple[str, int, int]]) -> None:
    play(strategy, workers, actions)


@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: one.name)
def test_promises_hold_on_long_runs(strategy: Strategy) -> None:
    for workers in range(1, 7):
        play(strategy, workers, random_actions(seed=workers, workers=workers, count=1500))


def test_long_runs_see_everything() -> None:
    """The promises above were tried by every kind of effect, verdict and crossing."""
    seen: Counter[str] = Counter()
    for strategy in (recipes.first_of(2), recipes.bounded_staleness(1), recipes.rennala(3)):
        seen += play(strategy, 4, random_actions(seed=1, workers=4, count=4000)).referee.seen
    wanted = {kind.__name__ for kind in (Hold, Fold, Discard, Grant, Cancel, Evict, Leased)}
    wanted |= {verdict.name for verdict in Verdict if verdict is not Verdict.TAKEN}
    wanted |= {"crossed", "crossed again", "abandoned", "freed by another"}
    assert {name: seen[name] for name in wanted if seen[name] < 5} == {}
