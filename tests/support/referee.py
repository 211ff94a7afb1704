"""Checks a sequencer from outside: hears every event and every effect, keeps its own books, knows only the promises.

The promises are those at the head of `plesio.core.sequencer`; `judge` raises AssertionError at the first that is broken.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass, field

import pytest

from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Event,
    Evict,
    Fold,
    FoldRows,
    Grant,
    Hold,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    RowsWanted,
    Serve,
    Show,
    Switch,
    Switched,
    Ticked,
    Verdict,
)
from plesio.core.leases import Batch
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy
from plesio.strategy.answers import (
    AfterFold,
    Average,
    Buffer,
    BySamples,
    Each,
    Fresh,
    Outer,
    Round,
    UserOptimizer,
    Within,
)
from plesio.strategy.questions import Arrival
from support.sequencing import decided

SILENCE_S = 10.0
EPOCH_BATCHES = 7
Key = tuple[int, int, int]


@dataclass
class Chair:
    """A live worker: `number` is being computed or, if `waits`, has arrived and is not answered.

    `told`: the number before it was called off, and nothing it sent since has come.
    """

    incarnation: int
    clock: int
    computed_from: int
    heard_s: float
    number: int = 1
    waits: bool = False
    arrived: int = 0
    told: bool = False
    samples: int = 0
    rows_wanted: int = 0
    came_s: float = 0.0
    freed_s: float = 0.0
    took_s: float = 0.0
    weight: float = 0.0


@dataclass
class Came:
    """A contribution that counted as new."""

    event: Pushed
    computed_from: int
    staleness: int
    batches: list[Batch]
    arrival: Arrival
    came_s: float = 0.0
    fate: Verdict | None = None
    folded: bool = False
    answered: bool = False


@dataclass
class Books:
    """The place of every batch, by the referee's own account."""

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
        self.whole = strategy
        self.phase = 0
        self.following: int | None = None  # the phase that members are drained for
        self.sequencer = sequencer
        self.version = 0
        self.chairs: dict[int, Chair] = {}
        self.finished_s: dict[int, float] = {}  # who finished: when
        self.left_over: set[int] = set()  # who was silent too long after others finished, at the last tick
        self.known: dict[Key, Came] = {}
        self.pending: list[Came] = []
        self.weight_held: dict[Key, float] = {}
        self.cancelled: set[Key] = set()
        self.books = Books()
        self.leased: dict[int, list[Batch]] = {}
        self.seated_this_round: set[tuple[int, int]] = set()
        self.seen: Counter[str] = Counter()
        self.grace_until_s = math.inf  # of the round under way, once it has its quota
        self.under(strategy.phases[0])

    def under(self, strategy: Strategy) -> None:
        """What is promised under `strategy`."""
        self.strategy = strategy
        self.after_fold = isinstance(strategy.release, AfterFold)
        self.rows_with_fold = self.after_fold and not strategy.rows.at_once
        self.holds = isinstance(strategy.gather, Buffer) and strategy.gather.k > 1 and not self.after_fold
        self.stalest = strategy.admit.within if isinstance(strategy.admit, Fresh) else math.inf
        self.lead = strategy.release.clocks if isinstance(strategy.release, Within) else math.inf
        self.quota = {Each: lambda g: 1, Buffer: lambda g: g.k, Round: lambda g: g.first or math.inf}[
            type(strategy.gather)
        ](strategy.gather)
        self.grace_s, self.slack = strategy.gather.grace_s, strategy.gather.slack
        self.lenient = (self.grace_s, self.slack) != (None, None)

    def judge(self, event: Event, now_s: float, batches: list[Batch], effects: list[Effect]) -> None:
        self.check_shown(effects)
        effects = decided(effects)
        self.event, self.now_s, self.effects = event, now_s, effects
        getattr(self, f"hear_{type(event).__name__.lower()}")(event, batches)
        self.close_empty_round()
        for effect in effects:
            self.seen[type(effect).__name__] += 1
            getattr(self, f"see_{type(effect).__name__.lower()}")(effect)
        if isinstance(event, Joined) and not effects:
            self.wait_for_beginning(event)
        self.check_calm()

    def check_shown(self, effects: list[Effect]) -> None:
        """Whoever goes on is shown the version that it is told, just before."""
        shown = [(one, then) for one, then in itertools.pairwise(effects) if isinstance(one, Show)]
        assert len(shown) == sum(isinstance(one, (Grant, Cancel)) for one in effects)
        for show, then in shown:
            assert isinstance(then, (Grant, Cancel))
            assert show == Show(then.worker, then.version, unasked=isinstance(then, Cancel))

    # Phases

    def hear_switched(self, event: Switched, batches: list[Batch]) -> None:
        self.ask(event.phase)

    def ask(self, phase: int) -> None:
        if self.following is not None or phase != self.phase:
            self.following = phase

    def all_wait(self) -> bool:
        return all(chair.waits for chair in self.chairs.values())

    def wait_for_beginning(self, event: Joined) -> None:
        """A process that came while the run is drained begins with the next phase."""
        assert self.following is not None, "it waits for nothing"
        self.sit_down(event.worker, event.incarnation)
        self.chairs[event.worker].number, self.chairs[event.worker].waits = 0, True
        self.seen["joined a drained run"] += 1

    def sit_down(self, worker: int, incarnation: int) -> None:
        slowest = min((chair.clock for chair in self.chairs.values()), default=self.sequencer.members.slowest)
        self.chairs[worker] = Chair(incarnation, slowest, self.version, self.now_s, freed_s=self.now_s)
        self.finished_s.pop(worker, None)

    def see_switch(self, effect: Switch) -> None:
        assert effect.phase == self.following != self.phase
        self.seen["switched while some worked on"] += effect.waited_s > 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """The run is drained: nothing is pending, and all wait."""
        assert self.all_wait()
        assert not self.pending
        self.phase, self.following = self.following, None
        self.under(self.whole.phases[self.phase])
        for chair in self.chairs.values():
            chair.clock, chair.told, chair.samples, chair.took_s, chair.weight = 0, False, 0, 0.0, 0.0

    # What came

    def seated(self, event: Joined | Left | Pushed | Abandoned | LeaseWanted | RowsWanted) -> Chair | None:
        chair = self.chairs.get(event.worker)
        return chair if chair and chair.incarnation == event.incarnation else None

    def gone(self, worker: int) -> None:
        del self.chairs[worker]
        if isinstance(self.event, Left) and not self.event.died:
            self.finished_s[worker] = self.now_s
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
        again = False
        if chair := self.seated(event):
            self.seen["abandoned"] += bool(batches)
            chair.heard_s = self.now_s
            self.release_lease(event.worker, batches, "available")
            again = self.knows(chair)
        assert [type(one) for one in self.effects if not isinstance(one, Serve)] == [Discard, Cancel] * again

    def knows(self, chair: Chair) -> bool:
        """The worker heard its cancellation; returns whether it is behind again."""
        told, chair.told = chair.told, False
        again = told and chair.computed_from < self.version and self.following is None
        self.seen["called off again"] += again
        return again

    def hear_leasewanted(self, event: LeaseWanted, batches: list[Batch]) -> None:
        assert len(self.effects) == (self.seated(event) is not None)
        if chair := self.seated(event):
            chair.heard_s = self.now_s
            self.release_lease(event.worker, batches, "available")
            self.books.open(event.epoch)

    def hear_rowswanted(self, event: RowsWanted, batches: list[Batch]) -> None:
        """A member is served once, at once: from what was folded before; others never. What it wants for the contribution after
        one whose rows step with the fold comes when that is decided."""
        chair = self.seated(event)
        later = chair and event.ahead and self.rows_with_fold and event.number == chair.number + 1
        assert self.effects == ([Serve(event.worker, event.number, event.ahead)] if chair and not later else [])
        if chair:
            chair.heard_s = self.now_s
            chair.rows_wanted = event.number if later else chair.rows_wanted

    def hear_ticked(self, event: Ticked, batches: list[Batch]) -> None:
        since_s = max(self.finished_s.values(), default=self.now_s)
        last_s = max([since_s, *(one.heard_s for one in self.chairs.values())])
        waits = any(one.waits for one in self.chairs.values())
        self.left_over = set() if waits or self.now_s - last_s <= SILENCE_S else set(self.chairs)

    def hear_pushed(self, event: Pushed, batches: list[Batch]) -> None:
        chair, key = self.seated(event), (event.worker, event.incarnation, event.number)
        if chair is None or chair.waits or event.number != chair.number:
            verdict, again = Verdict.DUPLICATE if chair else Verdict.FENCED, False
            if chair and chair.arrived < event.number and key in self.cancelled:
                self.seen["crossed"] += 1
                chair.arrived, chair.heard_s = event.number, self.now_s
                self.release_lease(event.worker, batches, "available")
                again = self.knows(chair)
            assert self.effects[0] == Discard(*key, verdict, 0)
            assert [type(one) for one in self.effects[1:] if not isinstance(one, Serve)] == [Discard, Cancel] * again
            return
        assert key not in self.known
        assert not chair.told, "it did not hear of a number it skips"
        chair.clock, chair.waits, chair.arrived, chair.heard_s = chair.clock + 1, True, event.number, self.now_s
        own_clock = event.adopted_at and not self.strategy.every.answered
        chair.took_s, chair.came_s = self.now_s - (chair.came_s if own_clock else chair.freed_s), self.now_s
        staleness, epochs = self.version - chair.computed_from, self.books.tally["done"] / EPOCH_BATCHES
        chair.samples = (event.samples if event.finite and staleness <= self.stalest else 0) or chair.samples
        arrival = Arrival(staleness, self.sequencer.workers, chair.samples or event.steps, self.version, epochs)
        came = Came(event, chair.computed_from, staleness, batches, arrival, self.now_s)
        came.fate = Verdict.TAKEN
        if not event.finite:
            came.fate = Verdict.NOT_FINITE
        elif came.staleness > self.stalest:
            came.fate = Verdict.STALE
        place = {Verdict.TAKEN: "pending", Verdict.NOT_FINITE: "skipped", Verdict.STALE: "available"}[came.fate]
        self.release_lease(event.worker, batches, place)
        self.known[key] = came
        of_this_round = self.after_fold and came.staleness <= self.stalest
        if came.fate is Verdict.TAKEN or (came.fate is Verdict.NOT_FINITE and of_this_round):
            self.pending.append(came)
            if came.fate is Verdict.TAKEN:
                chair.weight = self.strategy.weigh.weight(arrival)
            if len(self.pending) == self.quota:
                self.grace_until_s = self.now_s + self.grace()
            self.seated_this_round.add(key[:2])
        told = [one for one in self.effects if isinstance(one, Discard) and one.verdict is not Verdict.CANCELLED]
        expected = Discard(*key, came.fate, came.staleness, event.samples)
        assert told == ([] if came.fate is Verdict.TAKEN else [expected])
        assert sum(isinstance(one, Hold) for one in self.effects) == (self.holds and came.fate is Verdict.TAKEN)
        steps = event.rows and self.strategy.rows.at_once and came.fate is Verdict.TAKEN
        rows = [one for one in self.effects if isinstance(one, FoldRows)]
        assert rows == [FoldRows(event.worker, event.number)] * steps, "rows step once, if the contribution counts"

    def grace(self) -> float:
        """By what is left until the first of the round is due again."""
        usual_s = statistics.median_high([one.took_s for one in self.chairs.values() if one.took_s] or [0.0])
        return self.grace_s or (self.slack or 0.0) * max(0.0, usual_s - (self.now_s - self.pending[0].came_s))

    def release_lease(self, worker: int, batches: list[Batch], place: str) -> None:
        for batch in batches:
            self.leased[worker].remove(batch)
        self.books.move(batches, "leased", place)

    # What is to be done

    def all_came(self) -> bool:
        if not self.chairs or ((self.after_fold or self.following is not None) and self.all_wait()):
            return True
        in_vain = all(came.fate is Verdict.NOT_FINITE for came in self.pending)
        if not self.lenient or in_vain:
            return len(self.pending) == self.quota
        ended = isinstance(self.event, Ticked) and self.now_s >= self.grace_until_s
        self.seen["grace"] += ended
        return ended

    def see_hold(self, effect: Hold) -> None:
        event = self.event
        assert isinstance(event, Pushed)
        assert (effect.worker, effect.number) == (event.worker, event.number)
        self.weight_held[event.worker, event.incarnation, event.number] = effect.weight

    def see_serve(self, effect: Serve) -> None:
        if isinstance(self.event, RowsWanted):
            return
        chair = self.chairs[effect.worker]
        assert effect == Serve(effect.worker, chair.rows_wanted, ahead=True), "it was served, or did not ask"
        before = (effect.worker, chair.incarnation, effect.number - 1)
        came = self.known.get(before)
        over = came and (came.folded or came.fate is not Verdict.TAKEN)
        assert before in self.cancelled or over or effect.number == 1, "before the fold"
        chair.rows_wanted = 0
        self.seen["served late"] += 1

    def see_foldrows(self, effect: FoldRows) -> None:
        assert isinstance(self.event, Pushed)

    def see_fold(self, fold: Fold) -> None:
        assert self.all_came(), "folded before its time"
        counting = [came for came in self.pending if came.fate is Verdict.TAKEN]
        weights = {
            (came.event.worker, came.event.incarnation, came.event.number): self.strategy.weigh.weight(came.arrival)
            for came in counting
        }
        total = sum(weights.values())
        assert fold.version == self.version + 1
        assert fold.held == (pytest.approx(total) if self.holds else None)
        came = {one.event.worker for one in counting}
        missing = sum(chair.weight for worker, chair in self.chairs.items() if worker not in came)
        assert fold.scale == pytest.approx(self.scale(len(counting), total, missing))
        assert sum(member.share for member in fold.members) == pytest.approx(1.0)
        assert sorted((m.worker, m.incarnation, m.number) for m in fold.members) == sorted(weights)
        if not self.holds:
            assert [m.worker for m in fold.members] == sorted(m.worker for m in fold.members)
        for member in fold.members:
            key = (member.worker, member.incarnation, member.number)
            one = self.known[key]
            assert not one.folded, "in two folds"
            one.folded = True
            assert member.staleness == self.version - one.computed_from
            assert (member.steps, member.samples) == (one.event.steps, one.event.samples)
            assert member.share == pytest.approx(weights[key] / total)
            assert not self.holds or self.weight_held.pop(key) == pytest.approx(weights[key])
            self.books.move(one.batches, "pending", "done")
        self.close_round()
        self.version += 1
        for phase, (begins, _) in enumerate(self.whole.plan):
            if begins == self.version:
                self.ask(phase)

    def scale(self, folded: int, total: float, missing: float) -> float:
        outer = self.strategy.outer
        shared = isinstance(outer, (UserOptimizer, Outer)) and outer.lr_scale == "share"
        mean_weight = 1.0 if isinstance(self.strategy.weigh, BySamples) else total / folded
        rate = outer.rate if isinstance(outer, Average) else 1.0
        rate = total / (total + missing) if isinstance(outer, Outer) and outer.lr_scale == "work" else rate
        rate = float(folded) if isinstance(outer, Outer) and outer.lr_scale == "sum" else rate
        return (min(1.0, folded / self.sequencer.workers) if shared else rate) * mean_weight

    def close_empty_round(self) -> None:
        """A round without finite contributions makes no fold, and holds nobody."""
        if self.pending and self.all_came() and all(came.fate is Verdict.NOT_FINITE for came in self.pending):
            self.close_round()

    def close_round(self) -> None:
        self.pending.clear()
        self.grace_until_s = math.inf
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
        assert not chair.told, "called off twice before it was heard"
        chair.told = True
        assert (effect.number, effect.version) == (chair.number, self.version)
        chair.number, chair.computed_from = chair.number + 1, self.version

    def see_grant(self, grant: Grant) -> None:
        assert grant.version == self.version
        if self.following == self.phase:  # another phase was asked for, and then this one
            self.begin_anew()
        assert self.following is None, "granted while the run is drained"
        if grant.number == 0:
            chair = self.chairs.get(grant.worker)
            if chair is None or not chair.waits:
                assert isinstance(self.event, Joined)
                self.sit_down(grant.worker, self.event.incarnation)
                return
            assert chair.number == 0
            chair.waits, chair.number, chair.computed_from = False, 1, self.version
            chair.heard_s = chair.freed_s = self.now_s
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
        chair.computed_from, chair.heard_s, chair.freed_s = self.version, self.now_s, self.now_s

    def see_evict(self, effect: Evict) -> None:
        chair = self.chairs[effect.worker]
        assert isinstance(self.event, Ticked)
        assert chair.incarnation == effect.incarnation
        assert effect.silent_s == self.now_s - chair.heard_s > SILENCE_S
        assert self.holds_up(chair) or effect.worker in self.left_over, "nobody waits for it"
        self.gone(effect.worker)
        self.close_empty_round()

    def holds_up(self, chair: Chair) -> bool:
        waiting = [one for one in self.chairs.values() if one.waits]
        for_all = self.after_fold or self.following is not None
        return not chair.waits and any(for_all or one.clock - chair.clock > self.lead for one in waiting)

    def see_leased(self, effect: Leased) -> None:
        event = self.event
        assert isinstance(event, LeaseWanted)
        assert len(effect.batches) <= event.most
        assert all(epoch <= event.epoch for epoch, _ in effect.batches)
        self.books.move(list(effect.batches), "available", "leased")
        self.leased.setdefault(effect.worker, []).extend(effect.batches)

    # When all is done

    def check_calm(self) -> None:
        """Every possible fold and grant was made."""
        chairs = self.chairs.values()
        assert self.sequencer.version == self.version
        assert len(self.sequencer._pending) == len(self.pending)
        assert len(self.pending) < self.quota or (self.lenient and self.pending), "a fold is overdue"
        assert not isinstance(self.event, Ticked) or self.now_s < self.grace_until_s, "a grace is overdue"
        assert self.sequencer.grace_until_s == self.grace_until_s
        assert len(self.pending) <= (len(self.seated_this_round) if self.after_fold else self.quota)
        assert not chairs or not all(chair.waits for chair in chairs), "everybody waits"
        assert chairs or not self.pending, "a fold nobody can complete"
        for worker, chair in self.chairs.items():
            assert chair.rows_wanted in (0, chair.number + 1), "rows are overdue"
            if self.following is not None:  # then it may be held without another reason
                continue
            if chair.waits and self.after_fold:
                came = self.known[worker, chair.incarnation, chair.number]
                assert any(came is one for one in self.pending), "held after its fold"
            elif chair.waits:
                assert chair.clock - min(one.clock for one in chairs) > self.lead, "held without a reason"
        if self.strategy.release == AfterFold(cancel_late=True) and self.following is None:
            late = [one for one in chairs if not one.waits and one.computed_from < self.version]
            assert all(chair.told for chair in late), "late work not cancelled"
        if isinstance(self.event, Ticked):
            silent = [one for one in chairs if self.now_s - one.heard_s > SILENCE_S]
            assert not any(self.holds_up(chair) for chair in silent), "a wait without end"
            assert not self.left_over & self.chairs.keys(), "a run without end"
        leases, tally = self.sequencer.leases, self.books.tally
        assert (leases.done, leases.skipped, leases.opened) == (tally["done"], tally["skipped"], tally.total())
