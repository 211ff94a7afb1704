"""The one total order, a state machine: which contribution is folded, with what weight, into which version, and who goes on.

Theory. The sequencer is told events, in the order they came, and answers with effects, in the order they are to be
done. It holds no tensor and asks for nothing: the same object runs under real processes, under virtual time and under a
recorded schedule. The six questions are asked in turn of every contribution:

    Pushed -> the next of its sender?       no: DUPLICATE or FENCED: Discard, no answer (it had one)
           -> finite?                       no: Discard, counts as having come (if it is of this round)
           -> any work in it?               no: it came, and that is all
           -> admit: fresh enough?          no: Discard, the worker starts again from the current version
           -> rows of tables                FoldRows, where they step at once
           -> weigh, gather: pending        Hold it, if its worker goes on before the fold
           -> gather: enough together?      yes: Fold; Cancel or answer the members; version + 1
              (under a grace: or begin it. It ends when all have come, or with the first Ticked at `grace_until_s`)
           -> release: who may go on?       Grant

| state of a worker | Pushed              | its fold                   | others' fold                    | Left    |
| ----------------- | ------------------- | -------------------------- | ------------------------------- | ------- |
| computing         | waiting or granted  | -                          | called off, if it is to be      | gone    |
| called off        | computing, see 6    | -                          | called off                      | gone    |
| waiting           | (duplicate)         | granted (AfterFold)        | granted if the rule allows now  | gone    |

Promises, asserted here and checked from outside by the tests:
1. every key (worker, incarnation, number) is answered once and is in at most one fold;
2. versions are dense from 0; the staleness reported for a contribution is the true one;
3. under Within(s) no worker is granted a clock more than s ahead of the slowest live worker;
4. if every live worker waits, something is foldable or somebody is released: it cannot deadlock, whoever dies. There are
   two exceptions. Somebody looks at a round: all wait from `RoundEnded` to `RoundBegins`. A version takes a least number of
   workers, and fewer are there: they wait for `silence_s` at most (`Short`);
5. pending contributions are bounded: by the workers ever seated in this round, and by k - 1 under Buffer(k);
6. a worker is called off once, until it is known to have heard of that (`plesio.core.cancelling`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self

import msgspec

from plesio.core import events
from plesio.core.cancelling import call_off
from plesio.core.events import Effect, Event, Pushed, Verdict
from plesio.core.folds import Folds, Pending
from plesio.core.leases import Batch, DataLeases, LeasesState
from plesio.core.membership import Membership, MembershipState, Seat
from plesio.core.row_requests import RowRequests
from plesio.core.switching import Switching
from plesio.strategy import Strategy
from plesio.strategy.questions import Arrival

NEVER_S = float("inf")
LEAVE_S = 1.0
"""How long a worker that was told to leave may be silent while others want its data."""
_TAKEN = Verdict.TAKEN  # to look a member up in its enum costs as much as to build an effect

_DECIDE: Mapping[type, str] = {
    events.Joined: "_joined",
    events.Left: "_gone",
    events.Scaled: "_scaled",
    events.Switched: "_switched",
    events.RoundBegins: "_round_begins",
    events.GivenUp: "_given_up",
    events.Ticked: "_ticked",
}
"""What of the sequencer decides each kind of event that is not of a member."""


class SequencerState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps of the order. After a restore nobody is a member: no key of before is admitted again."""

    version: int
    members: MembershipState
    leases: LeasesState
    phase: int = 0


class Sequencer:
    """Decides for one run of `workers` workers under `strategy`.

    Args:
        workers: how many the run was asked to have; learning rates are shared among that many, until it is `Scaled`.
        leases: the data to give out; None if the workers bring their own.
        silence_s: how long a worker may be silent while others wait for it.
    """

    # Rarely set, and so of the class: with 30 of its own or more an object's attributes are found more slowly.
    _looked_at = False  # whether a round ends with a look at its version
    _ends = False  # whether the run ends while workers are missing
    draining = False
    """Whether other rules are to hold once every member waits: nobody goes on before."""

    def __init__(
        self, strategy: Strategy, workers: int, leases: DataLeases | None = None, silence_s: float = 300.0
    ) -> None:
        self.workers = workers
        self.version = 0
        self.members = Membership(silence_s)
        self.leases = leases or DataLeases(workers, stealing=False)
        self.stealing = self.leases.stealing
        """Whether fast workers take more of the data, by rules that are not in lock step."""
        self.switching = Switching(strategy)
        self._sender = -1  # whose event is being dealt with
        self._now_s = 0.0  # when it came
        self.held: list[Seat] | None = None
        """Between two rounds that are looked at: those that go on with the next one."""
        self._effects: list[Effect] = []
        self._begin()

    def _begin(self) -> None:
        """Decide by these rules from now on; nothing is pending."""
        strategy = self.strategy
        self.leases.stealing = self.stealing and not strategy.in_lock_step
        self._admit = strategy.admit
        self._weigh = strategy.weigh
        self._gather = strategy.gather
        self._release = strategy.release
        self._after_fold = strategy.release.after_fold
        self._rows = RowRequests(strategy)
        self._may_be_empty = strategy.send.stepped  # a gradient may be of a later pass of the same step
        self._cancels = strategy.release.cancel_late
        self._holds = not self._after_fold and strategy.gather.size(None) > 1
        self._folds = Folds(strategy, self.workers, self._holds)
        self._pending: list[Pending] = []
        self._orphans = 0  # pending contributions whose worker is gone
        self._has_grace = strategy.gather.has_grace
        self._by_work = strategy.outer.by_work
        self._from_answer = strategy.every.answered
        self.grace_until_s = NEVER_S
        """When what has come is to be folded, whoever is missing; where that is not enough, how long the others wait."""
        self._overdue = False  # the deadline of this round is over
        self._in_grace = False  # enough have come for this round
        self._short = False  # all have waited in this round for workers that are missing
        self._released_at = -1  # the slowest clock at the last look through the waiting workers
        self._count_anew()

    def state(self) -> SequencerState:
        """What a checkpoint keeps, together with the parameters at `version`; to be asked between two events."""
        unfolded = [batch for one in self._pending for batch in one.batches]
        return SequencerState(self.version, self.members.state(), self.leases.state(unfolded), self.switching.now)

    @classmethod
    def restore(
        cls, strategy: Strategy, workers: int, state: SequencerState, stealing: bool = False, silence_s: float = 300.0
    ) -> Self:
        """Continue from a checkpoint: versions and data as they were, without members.

        What had come and was not folded is forgotten, and what was leased is leased again: all workers join anew, as
        later incarnations than any before. Of one that will not, `Left` is to be told, or its data waits for it.

        >>> from plesio.strategy.recipes import async_sgd
        >>> before = Sequencer(async_sgd(), workers=1)
        >>> _ = before.receive(events.Joined(0, 1), 0.0), before.receive(Pushed(0, 1, 1, 1, 32, 0), 0.1)
        >>> after = Sequencer.restore(async_sgd(), 1, before.state())
        >>> [effect.verdict.name for effect in after.receive(events.Joined(0, 1), 9.0)]
        ['FENCED']
        >>> [effect.version for effect in after.receive(events.Joined(0, 2), 9.1)]
        [1, 1]
        """
        leases = DataLeases.restore(state.leases, workers, stealing)
        leases.may_change = strategy.every.by_client
        sequencer = cls(strategy, workers, leases, silence_s)
        sequencer.version = state.version
        sequencer.members = Membership.restore(state.members, silence_s)
        sequencer.switching = Switching(strategy, state.phase, state.version)
        sequencer._begin()
        return sequencer

    def gone_back(self, state: SequencerState) -> Self:
        """One that continues in its place from a checkpoint."""
        silence_s, workers = self.members.silence_s, state.leases.workers
        sequencer = self.restore(self.switching.whole, workers, state, self.stealing, silence_s)
        sequencer.leases.lone = self.leases.lone
        return sequencer

    @property
    def strategy(self) -> Strategy:
        """The one whose rules hold."""
        return self.switching.strategy

    @property
    def unfolded(self) -> list[Pushed]:
        """What came, is to count and is not folded, answered or not: after a restore it is computed again."""
        return [one.event for one in self._pending if one.counts]

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be folded."""
        return not self._pending

    def holds_slot_of(self, worker: int) -> bool:
        """Whether a contribution that came from this seat still lies where its next one would."""
        return self._after_fold and any(one.event.worker == worker for one in self._pending)

    def receive(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event at time `now_s` (any monotonic clock); the effects, in the order they are to be done."""
        self._effects = []
        self._now_s = now_s
        until_s = self.grace_until_s
        if isinstance(event, Pushed):  # as most are
            self._sender = event.worker
            self._pushed(event)
        else:
            self._sender = getattr(event, "worker", -1)
            getattr(self, _DECIDE.get(type(event), "_of_member"))(event)
        if self.grace_until_s != until_s:
            self._effects.append(events.WakeAt(self.grace_until_s))
        return self._effects

    # Membership

    def _joined(self, event: events.Joined) -> None:
        older = self.members.seats.get(event.worker)
        if older is not None and older.incarnation < event.incarnation:
            self._left(event.worker, older.incarnation)
        seat = self.members.join(event.worker, event.incarnation, self.version, self._now_s)
        if seat is None:
            self._discard(event.worker, event.incarnation, 0, Verdict.FENCED)
            return
        self.leases.joined(event.worker)
        self._count_anew()
        self.members.waits(seat)
        self._grant(seat)

    def _gone(self, event: events.Left) -> None:
        finished = not event.died and event.worker < self.workers  # others were told to leave
        self._left(event.worker, event.incarnation, finished)

    def _left(self, worker: int, incarnation: int, finished: bool = False) -> None:
        """A contribution that already came still counts, though its worker is gone; unfinished work does not."""
        seat = self.members.leave(worker, incarnation, self._now_s if finished else None)
        if worker not in self.members.seats:  # also a worker that never joined: its part of the data goes to the others
            self.leases.left(worker)
        if seat is None:
            return
        self._effects.append(events.Forget(worker))
        if seat.waiting is not None and self._after_fold and not (self.held and seat in self.held):
            self._orphans += 1
        self._count_anew()
        self._settle()

    def _scaled(self, event: events.Scaled) -> None:
        """Rounds need no word of it: they are of those who are members."""
        workers = self.workers = event.workers
        self._folds.share_among(workers)
        self.leases.share_out(workers)
        self._effects.append(events.Share(workers))

    def _given_up(self, _: events.GivenUp) -> None:
        self._ends = True
        self._settle()

    def _ticked(self, _: events.Ticked) -> None:
        left_over = self.members.left_over(self._now_s)
        for seat in left_over or self.members.silent(self._now_s):
            if left_over or self._waited_for(seat):
                self._evict(seat)
        if self._now_s >= self.grace_until_s:
            self.grace_until_s, self._overdue = NEVER_S, True
            self._wait_for_others()

    def _evict(self, seat: Seat) -> None:
        self._effects.append(events.Evict(seat.worker, seat.incarnation, self._now_s - seat.heard_s))
        self._left(seat.worker, seat.incarnation)

    @property
    def waited_for(self) -> list[int]:
        """The workers that others are held for; nobody, where nobody waits."""
        seats = self.members.seats.values() if self.members.waiting else ()
        return [seat.worker for seat in seats if seat.waiting is None and self._waited_for(seat)]

    def _waited_for(self, seat: Seat) -> bool:
        """Whether others are held until `seat` pushes: a fold and other rules wait for everybody, a clock bound only for the
        slowest."""
        holds = self._after_fold or seat.clock == self.members.slowest or self.draining
        return holds and self.members.waiting > 0

    # Data

    def _of_member(self, event: events.WorkerEvent) -> None:
        seat = self.members.seat(event.worker, event.incarnation)
        if seat is None:
            return
        seat.heard_s = self._now_s
        if isinstance(event, events.LeaseWanted):
            self._lease(event)
        elif isinstance(event, events.RowsWanted):
            self._effects += self._rows.wanted(event, seat)
        elif isinstance(event, events.Reported):
            self.version += event.versions
            self.leases.folded(self.leases.consume(event.worker, event.batches))
        elif isinstance(event, events.Abandoned):
            self._dropped(seat, event.batches)

    def _lease(self, event: events.LeaseWanted) -> None:
        self.leases.unused(event.worker, event.unused)
        epoch = self.leases.progress(event.worker)
        batches = self.leases.take(event.worker, event.epoch, event.total, event.most, self._now_s)
        if not batches and event.most and event.worker < self.workers and self._take_from_leaving():
            batches = self.leases.take(event.worker, event.epoch, event.total, event.most)
        begun_s = self.leases.begun_s(batches)
        self._effects.append(events.Leased(event.worker, batches, epoch, self.leases.through, begun_s))

    def _take_from_leaving(self) -> bool:
        """Nothing else is left: do not wait for those who were told to leave and are silent; whether there are any with data."""
        seats = [seat for seat in self.members.silent(self._now_s, LEAVE_S) if seat.worker >= self.workers]
        held = [seat for seat in seats if self.leases.holds(seat.worker)]
        for seat in held:
            self._evict(seat)
        return bool(held)

    def _dropped(self, seat: Seat, batches: int) -> None:
        """`seat` knows of its last cancellation, and others get the data. If its version is old again, cancel again."""
        self.leases.give_back(self.leases.consume(seat.worker, batches))
        if seat.called_off:
            seat.called_off = False
            self._call_off((seat,))

    def _call_off(self, seats: Collection[Seat]) -> None:
        if not self.draining:  # they would begin another step, and others wait for them
            self._effects += call_off(seats, self.version)

    # Contributions

    def _pushed(self, event: Pushed) -> None:
        members = self.members
        seat = members.seat(event.worker, event.incarnation)
        if seat is None or event.number != seat.next_number:
            self._refuse(event, seat)
            return
        assert seat.waiting is None, "a worker waits for one answer at a time"
        goes_by_itself = event.adopted_at and not self._from_answer  # and did not wait for its answer
        members.pushed(seat, event.number, self._now_s, seat.came_s if goes_by_itself else seat.answered_s)
        seat.staleness = self.version - (seat.before if event.adopted_at else seat.computing)
        assert seat.staleness >= 0, "nothing is computed from a version to come"
        batches = self.leases.consume(event.worker, event.batches) if event.batches else ()
        if not event.finite:
            self.leases.skip(batches)
            self._turn_down(event, seat, Verdict.NOT_FINITE)
        elif self._may_be_empty and not (event.steps or event.earlier):
            self._empty(event, seat, batches)
        elif not (self._admit.unconditional or self._admit.admits(self.version - seat.computing)):  # of its round
            self.leases.give_back(batches)
            self._turn_down(event, seat, Verdict.STALE)
        else:
            self._take(event, seat, batches)
        self._settle()

    def _refuse(self, event: Pushed, seat: Seat | None) -> None:
        """Its key was answered already (the data of one that crossed its own cancellation goes to others), or it has no seat."""
        verdict = Verdict.FENCED if seat is None else Verdict.DUPLICATE
        self._discard(event.worker, event.incarnation, event.number, verdict)
        if seat is not None and seat.arrived < event.number < seat.next_number:
            seat.arrived, seat.heard_s = event.number, self._now_s
            self._dropped(seat, event.batches)

    def _turn_down(self, event: Pushed, seat: Seat, verdict: Verdict) -> None:
        """It does not count. A round that it is of waits for its worker no longer. Of an earlier one, no fold will release its
        worker: that starts again from the current version now."""
        seat.verdict = verdict
        self._discard(event.worker, event.incarnation, event.number, verdict, seat.staleness, event.samples)
        if self._after_fold and self._admit.admits(self.version - seat.computing):
            self._pending.append(Pending(event, seat.computing, 0.0, (), False, self._now_s))
        elif self._after_fold:
            self._grant(seat)

    def _empty(self, event: Pushed, seat: Seat, batches: tuple[Batch, ...]) -> None:
        """There is no work in it: its round does not wait for it any longer, and that is all."""
        seat.verdict = _TAKEN
        self.leases.folded(batches)
        if self._after_fold:
            self._pending.append(Pending(event, seat.computing, 0.0, (), False, self._now_s))

    def _take(self, event: Pushed, seat: Seat, batches: tuple[Batch, ...]) -> None:
        seat.verdict = _TAKEN
        weight = 1.0
        if not self._weigh.unconditional:
            seat.samples = event.samples or seat.samples
            work = seat.samples or event.steps or 1
            arrival = Arrival(seat.staleness, self.workers, work, self.version, self.leases.epochs_done)
            weight = self._weigh.weight(arrival)
        seat.weight = weight
        self._pending.append(Pending(event, self.version - seat.staleness, weight, batches, True, self._now_s))
        self._effects += self._rows.stepped_at_once(event) if event.rows else ()
        if self._holds:
            self._effects.append(events.Hold(event.worker, event.number, weight))

    # Folds and grants

    def _settle(self) -> None:
        if self._pending and self.held is None:
            due = len(self._pending) >= self._wanted and (not self._has_grace or self._all_came())
            if due and (self._gather.least is None or self._enough):
                self._fold()
            elif self._gather.deadline_s is not None or self._gather.least is not None:
                self._wait_for_others()
        if not self._after_fold and self.members.waiting:
            self._release_by_clock()
        if self.draining and self.members.waiting == len(self.members.seats):
            self._switch()
        assert self.members.waiting < len(self.members.seats) or not self.members.seats or self._may_wait, (
            "promise 4: every live worker waits for another"
        )

    @property
    def _may_wait(self) -> bool:
        """Whether all may wait: for the next round, for a deadline, or for workers that are missing."""
        return self.held is not None or self.grace_until_s < NEVER_S or not self._enough

    @property
    def _enough(self) -> bool:
        """Whether what has come may make a version. If none of it counts there is none to make."""
        if self._gather.least is None:
            return True
        counting = sum(one.counts for one in self._pending)
        return len(self._pending) >= self._gather.least and not 0 < counting < self._gather.least

    def _wait_for_others(self) -> None:
        """What has come is no version yet, before its deadline is over. Where all wait, and a version takes more workers, others
        may come for so long as a worker may be silent."""
        if self._overdue and self._enough:
            self._fold()
            return
        if self._gather.deadline_s is not None and not (self._overdue or self._short):
            self.grace_until_s = min(self.grace_until_s, self._now_s + self._gather.deadline_s)
        if self._enough or self.members.waiting < len(self.members.seats):
            return
        if self._ends or self.draining:
            self._drop_pending()
            return
        first, self._short = not self._short, True
        if first:  # the deadline is over by the time that another comes
            self.grace_until_s = self._now_s + self.members.silence_s
            self._overdue = self._gather.deadline_s is not None
        least, over = self._gather.least or 0, self.grace_until_s == NEVER_S
        hopeless = self.workers - self.members.finished < least
        if first or over or hopeless:
            came = sum(one.counts for one in self._pending) or len(self._pending)
            self._effects.append(events.Short(came, least, over, hopeless))

    def _drop_pending(self) -> None:
        """The round makes no version, and whoever waits for it goes on."""
        came, self._pending, self._orphans = self._pending, [], 0
        self.grace_until_s, self._in_grace = NEVER_S, False
        self._count_anew()
        for one in came:
            event = one.event
            self.leases.give_back(one.batches)
            self._discard(event.worker, event.incarnation, event.number, Verdict.STALE, samples=event.samples)
            if (seat := self.members.seat(event.worker, event.incarnation)) is not None:
                seat.verdict = Verdict.STALE
                self._grant(seat)

    def _round_begins(self, event: events.RoundBegins) -> None:
        """The last version was looked at: those who wait go on."""
        self.leases.choose(event.chosen)
        self._looked_at = True
        held, self.held = self.held or (), None
        for seat in held:
            if self.members.seats.get(seat.worker) is seat:
                self._grant(seat)
        self._settle()

    def _all_came(self) -> bool:
        """Whether all have come, or nothing has that counts; else the round is in its grace, from the first time on."""
        missing = self.members.waiting < len(self.members.seats) and any(one.counts for one in self._pending)
        if missing and self._has_grace and not self._in_grace:
            self._in_grace = True
            grace_s = self._gather.grace(self._now_s - self._pending[0].came_s, self.members.period_s)
            self.grace_until_s = min(self.grace_until_s, self._now_s + grace_s)
        return not missing

    def _count_anew(self) -> None:
        self._wanted = self._gather.size(self._reachable())

    def _reachable(self) -> int | None:
        """How many contributions can come together for the next fold; None: any number. While workers wait for the fold: one of
        each that lives, or sent one before it went."""
        if self._after_fold:
            return len(self.members.seats) + self._orphans
        return None if self.members.seats else len(self._pending)

    def _fold(self) -> None:
        came, self._pending = self._pending, []
        self.grace_until_s, self._overdue, self._short, self._in_grace = NEVER_S, False, False, False
        if self._orphans:
            self._orphans = 0
            self._count_anew()
        counting = [one for one in came if one.counts]
        if counting:
            self.version += 1
            missing = self._missing_weight(counting) if self._by_work else 0.0
            self._effects.append(self._folds.of(self.version, counting, missing))
            if self.version >= self.switching.due_at and self.switching.due(self.version, self._now_s):
                self.draining = True
            for one in counting:
                if one.batches:
                    self.leases.folded(one.batches)
            if self._looked_at:
                self._end_round()
        if self._after_fold:
            for one in came:
                seat = self.members.seat(one.event.worker, one.event.incarnation)
                if seat is not None:
                    self._grant(seat)
        if self._cancels and counting:
            self._call_off(self.members.seats.values())

    def _missing_weight(self, counting: list[Pending]) -> float:
        """What those who are there and not among these weighed the last time."""
        came = {one.event.worker for one in counting}
        return sum([seat.weight for seat in self.members.seats.values() if seat.worker not in came])

    def _end_round(self) -> None:
        """The version is made, and somebody looks at it before anybody goes on."""
        made = self._effects[-1]
        assert isinstance(made, events.Fold), "it was made just now"
        self.held = []
        self._effects.append(events.RoundEnded(made.version, made.members, self.leases.per_epoch))

    def _release_by_clock(self) -> None:
        """Release waiting workers by the release rule: all of them if the slowest clock moved, else only the sender."""
        members, slowest = self.members, self.members.slowest
        sender = members.seats.get(self._sender)
        moved, self._released_at = slowest != self._released_at, slowest
        for seat in members.seats.values() if moved else (sender,):
            if seat is None or seat.waiting is None:
                continue
            if self._release.unconditional or self._release.may_go(seat.clock, slowest):
                self._grant(seat)

    def _switched(self, event: events.Switched) -> None:
        self.draining = self.switching.ask(event.phase, self._now_s)
        self._settle()

    def _switch(self) -> None:
        """Every member waits: fold what is pending as it is, and have all go on by other rules."""
        if self._pending:
            self._fold()
        assert not self._pending and self.members.waiting == len(self.members.seats), "the run is drained"
        self._effects += self.switching.begin(self._now_s)
        self.draining = False
        self._begin()
        self.members.begin_anew(self.version)
        for seat in self.members.seats.values():
            self._grant(seat)

    def _grant(self, seat: Seat) -> None:
        if self.draining:
            return
        if self.held is not None:  # with the next round
            self.held.append(seat)
            return
        assert seat.waiting is not None, "promise 1: a contribution is answered once"
        if seat.owed:
            self._effects += seat.take_owed()
        by_other = seat.worker != self._sender
        self._effects += (
            events.Show(seat.worker, self.version),
            events.Grant(seat.worker, seat.waiting, self.version, seat.verdict, seat.staleness, by_other),
        )
        self.members.answered(seat, self._now_s)
        seat.before, seat.computing = seat.computing, self.version

    def _discard(
        self, worker: int, incarnation: int, number: int, verdict: Verdict, staleness: int = 0, samples: int = 0
    ) -> None:
        self._effects.append(events.Discard(worker, incarnation, number, verdict, staleness, samples))
