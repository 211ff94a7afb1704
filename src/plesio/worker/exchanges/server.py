"""Through the server: a step of the worker's optimizer sends a contribution and waits for the answer.

Where the strategy has it so (`adopt=Rebase()`), the worker does not wait. It goes on from where it is, and takes the answer at
the end of the first step by which it has come. One contribution is in flight at most: the worker waits if it is to send again
before that.

    sends 1         takes answer 1        sends 2         takes answer 2
    |-- step -- step --|-- step -- ... --|-- step -- step --|
     answer 1 travels                      answer 2 travels
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, ServerLostError, StopRun
from plesio.protocol.worker import Aside, Attached, Beginning, Contribution, DroppedStep, Farewell, GoOn
from plesio.tensors.arena import ALL_PARTS, Kind
from plesio.tensors.finite import are_finite
from plesio.tensors.optimizer_spec import packed, settings_of
from plesio.tensors.several import parts_of
from plesio.tensors.tensor_set import bits
from plesio.worker.exchanges.following import FollowingExchange
from plesio.worker.warn import warn, warn_at_end, warn_not_finite

TOO_LATE = Verdict.STALE, Verdict.CANCELLED
"""A contribution does not count, though there is nothing wrong with it."""


class SeatLostError(ServerLostError):
    """A worker of another host was away for so long that its seat was given up; `rejoin` makes it take part again."""

    def __init__(self, rejoin: Callable[[], Beginning]) -> None:
        super().__init__("the seat was given up")
        super().__init__(
            "the connection with the run's head was lost for so long that this worker was given up; where workers fold among "
            "themselves none comes back"
        )
        self.rejoin = rejoin


@dataclass(eq=False)
class ServerExchange(FollowingExchange):
    """Send a contribution, take the answer, go on from the version it names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number = 0
        self._steps = self._granted = 0
        self.taken = True  # whether the last contribution counted
        self._says_samples = False
        self._finite = True  # the gradients of the contribution under way
        self.in_flight = False  # the last contribution, while the worker goes on
        self._adopted_at = 0  # as in `plesio.core.events.Pushed`
        self._exchanged_s = self._sent_s = 0.0
        self._paced = self.pacer.paces
        self._follow(self.phases[0])

    def begin(self, lost: SeatLostError | None = None) -> None:
        """Go on from the version that the server gives: at the start and, any number of times, when the seat was `lost`."""
        try:
            beginning = self.doorbell.answer(Beginning, self.timeout_s, 0, 0) if lost is None else lost.rejoin()
        except SeatLostError as again:
            beginning = again.rejoin()
        if lost is not None:
            self._drop()
        self.state.resumed(beginning)
        self.replica.part = ALL_PARTS
        self._number, self.in_flight = 0, False
        self._parts_sent: dict[int, int] = {}  # by part: the number of the contribution that was of it last
        self._next()
        self._go_on(beginning, self._begins_anew(beginning))
        self.pacer.begin()

    def _drop(self) -> None:
        """With the seat the step under way is lost, the data, and what an optimizer here holds."""
        self.used.lose()
        self.replica.drop_gradients()
        self.replica.lose_left_out()
        if self.rows is not None:
            self.rows.lose()
        if self.local:
            self._forget_optimizer()
        self._sent = None
        self.state.attachments.lost()
        self.taken = False
        self.state.discarded += 1

    @property
    def steps_alone(self) -> int:
        """How many steps were taken since the last exchange."""
        return self._steps

    def step(self) -> None:
        if self.state.stopped:
            raise StopRun("the run is over")
        if self.local:
            self._step_here()
        else:
            self.replica.writes.refuse(self.strategy.name, self.lets_writes_go)
        self.state.steps += 1
        self._steps += 1
        if self.rows is not None:
            self._finite = self.rows.stepped() and self._finite
        if self._paced:
            self.pacer.rest(self.doorbell.waiting if self.cancels else time.sleep)
        if self.in_flight and self.doorbell.waiting() and not self._take():
            pass  # the seat is lost, or the run over: there is nothing to send
        elif self.cancels and self._called_off():
            self.abandon()
        elif self._each_step or self._is_due():
            self._push()
        self.state.stepped = self.used.batches
        if self._paced:
            self.pacer.begin()

    def _is_due(self) -> bool:
        since_s = self.pacer.now_s() - self._exchanged_s
        if self.by_client or (self._every.answered and self.in_flight):
            return False
        early = max(0, self._adopted_at - 1) if self._every.answered else 0
        return self._every.due(self._steps - early, since_s, self.state.version, self._granted)

    def contribute(self, samples: int | None = None) -> None:
        if not self.local:
            super().contribute()
        if self.state.stopped:
            raise StopRun("the run is over")
        if samples is not None:
            if samples and not self._steps:
                warn(
                    f"worker.contribute(samples={samples}) without an optimizer.step() since the last: it counts for nothing"
                )
            self.used.samples, self.used.said, self._says_samples = samples, 0, True
            self._steps = self._steps if samples else 0  # no samples are no work
        version = self.state.version
        self._push(waits=samples == 0)
        self.pacer.begin()
        if samples == 0 and self.in_rounds and self.taken and not self.state.stopped and self.state.version == version:
            raise ConfigurationError(
                "worker.contribute(samples=0): nobody in this round trained on any sample, and nothing counts; let the loop end "
                "where there are no data left"
            )

    def make_way(self) -> bool:
        if self.state.stopped or (self.used.batches and not self.local):
            return False
        self._push()  # what was trained since the last one, or nothing
        self.pacer.begin()
        return True

    def _step_here(self) -> None:
        """Step, but not by a NaN, which would stay in the optimizer's state: then this contribution will not count. (On a device,
        which is not waited for, the step is by zeros.)"""
        if self._closure is not None:
            if self._proximal:
                raise ConfigurationError(
                    "a proximal term is added to gradients, and step(closure) computes its own: take them before"
                )
            self.move()
            self.replica.note_gradients()
        elif self.replica.check_gradients(later=True):
            if self._proximal:
                self._stepped.pull_back(self._proximal)
            self.move()
        else:
            self._finite = False

    def cancelled(self) -> bool:
        if not self.cancels:
            return False
        self.used.checks += 1
        if self.doorbell.waiting():
            self.used.cancelled_at = self.used.cancelled_at or self.used.checks
        return self.used.cancelled_at > 0

    def _called_off(self) -> bool:
        """Whether the step was called off by the time it is done. (A replay knows this check by its number, 0.)"""
        self.used.checks = 0
        return self.doorbell.waiting()

    def abandon(self) -> None:
        """Drop the step that was called off, with its gradients, and go on from the newer version."""
        cancelled_at = self.used.cancelled_at
        batches, _ = self.used()
        if cancelled_at:  # during the step; after it, the loop deals with its gradients as always
            self.replica.drop_gradients()
        if self.replica.settle is not None:
            self.replica.settle()
        try:
            answer = self.doorbell.answer(GoOn, self.timeout_s, self._number, self.state.version)
        except SeatLostError as lost:
            self.begin(lost)
            return
        self._keep_own()
        self.doorbell.send(DroppedStep(batches, cancelled_at, worked_s=self._worked_s()))
        self._next()
        self._go_on(answer)
        self.pacer.begin()

    def _push(self, waits: bool = False, whole: bool = False) -> None:
        """Send what was done since the last time, and take the answer; `waits`: before the worker goes on, in any case; `whole`:
        of all parts of the model at once."""
        if self.in_flight and not self._take(wanted=True):
            return
        aside = None if self._is_usual else self._said_aside(waits, whole)
        finite = self._finite and self._fill_slot()  # else nothing of it is to be remembered
        if self.replica.settle is not None:
            self.replica.settle()
        batches, samples = self.used()
        self._keep_own()
        self.doorbell.send(
            Contribution(
                number=self._number,
                steps=self._steps,
                samples=samples,
                batches=batches,
                finite=finite,
                missing=self.replica.missing,
                absent=bits(self.replica.absent) if self.replica.absent else b"",
                rows=self.replica.rows,
                optimizer=self._place_of_part(),
                settings=self._changed_groups(),
                worked_s=self._worked_s(),
                loss=self.state.loss,
                aside=aside,
                attachments=self._attachments(),
            )
        )
        if aside is not None and aside.goes_on:  # from where the worker is, while the answer travels
            self.in_flight = True
            self.replica.sent()
            self._next()
            self._begin_anew(self._sent_s)
            return
        try:
            answer = self.doorbell.answer(GoOn, self.timeout_s, self._number, self.state.version, self._next)
        except SeatLostError as lost:
            self.begin(lost)
            return
        if self._own is not None:
            self._own.answered(self._number - 1)
        self._go_on(answer, self._begins_anew(answer))

    def _attachments(self) -> Attached:
        return self.state.attachments.take(self)

    def _said_aside(self, waits: bool, whole: bool) -> Aside:
        """What only a worker that goes on, exchanges parts, or has tables says of its contribution."""
        part = ALL_PARTS
        if self._fragments > 1 and not whole:
            part = self._next_part()
        self.replica.part = part
        waits = waits or self.state.version < self.strategy.every.after
        goes_on = self.goes_on is not None and not waits and self.goes_on()
        earlier = (whole or not self._steps) and self.replica.has_work(part)
        rows = self.rows is not None and self.rows.any
        return Aside(self._adopted_at, goes_on, self.used.waited_s, part, earlier, rows)

    def _next_part(self) -> int:
        """In a round all have the same version, and it says which. Where a worker is in every other round only, that might leave
        some parts out for good: one that had no turn for as long as two of all take comes first. Who is answered alone takes
        turns."""
        last, count = self._parts_sent, self._fragments
        part = (self.state.version if self.in_rounds else self.replica.part + 1) % count
        longest = min(range(count), key=lambda one: last.get(one, 0))
        if self._number - last.get(longest, 0) > 2 * count:
            part = longest
        last[part] = self._number
        return part

    def _take(self, wanted: bool = False) -> bool:
        """Take the answer to the last contribution, which came or is `wanted` now, and put what was done since on top; whether
        that is to be sent: not if the seat is lost or the run over."""
        asked_s = self.pacer.now_s()
        try:
            answer = self.doorbell.answer(GoOn, self.timeout_s, self._number - 1, self.state.version)
        except SeatLostError as lost:
            self.begin(lost)
            return False
        self.used.waited_s += self.pacer.now_s() - asked_s
        self.in_flight, self._adopted_at = False, self._steps and self._steps + wanted
        if self.replica.awaits_answer:
            self.replica.answered(answer.verdict in TOO_LATE)
        shown = self.doorbell.shown(self.replica.ring)
        trained = self.replica.arena.of_kind(Kind.TRAINED)
        if answer.verdict is Verdict.NOT_FINITE and not are_finite(trained):  # nor is what was done since
            self.replica.adopt(shown, anew=True)
            self._finite, self.replica.finite = True, None
        else:
            self.replica.rebase(shown)
        self._hear(answer)
        return not self.state.stopped

    def _fill_slot(self) -> bool:
        return not (self._steps or self.replica.has_work(self.replica.part)) or self.replica.fill_slot()

    def _keep_own(self) -> None:
        """Leave what this worker holds of its own, for checkpoints."""
        if self._own is not None and self._leaves:
            self._own.sends(self._number, self.pacer.now_s() - (self._sent_s or self._exchanged_s))

    def _place_of_part(self) -> int:
        return parts_of(self.optimizer).index(self._part) if self._part is not None else 0

    def _worked_s(self) -> float:
        """The time since the last contribution or its answer until now, when this one is sent, but for what went by waiting."""
        self._sent_s = self.pacer.now_s()
        return max(0.0, self._sent_s - self._exchanged_s - self.used.waited_s)

    def _next(self) -> None:
        """The next contribution begins. It is seeded while the answer is on its way, for that takes a while."""
        self._number += 1
        self.state.begin(self._number)
        if self.rows is not None:
            self.rows.begin(self._number)

    def _changed_groups(self) -> bytes:
        """The hyper-parameters, if the user or a scheduler changed them since they were last sent."""
        if self.local or self.optimizer.param_groups == self._sent:
            return b""
        self._sent = settings_of(self.optimizer)
        return packed(self.optimizer)

    def _go_on(self, answer: Beginning | GoOn, anew: bool = False) -> None:
        if self.replica.awaits_answer:
            self.replica.answered(isinstance(answer, GoOn) and answer.verdict in TOO_LATE)
        self._hear(answer)
        self._begin_anew(self.pacer.now_s())
        self.replica.adopt(self.doorbell.shown(self.replica.ring), anew)

    def _begin_anew(self, now_s: float) -> None:
        """Nothing was done since the last contribution, or the answer to it."""
        self._exchanged_s, self.used.waited_s = now_s, 0.0
        self._steps = self._adopted_at = 0
        self._finite, self.replica.finite = True, None

    def _begins_anew(self, answer: Beginning | GoOn) -> bool:
        """Whether what this worker has of its own begins anew with this answer."""
        if turned := answer.phase != self.phase:
            self._turn_to(answer.phase)
        if not (turned or isinstance(answer, Beginning)):
            return answer.verdict is Verdict.NOT_FINITE  # so may be what else the worker has
        return not self._takes_up(self._number - 1)

    def _hear(self, answer: Beginning | GoOn) -> None:
        """The run is at this version, and so much became of the contribution that this answers."""
        state = self.state
        state.version = answer.version
        if answer.attachments:
            state.attachments.hear(answer.attachments)
        state.stopped = state.stopped or answer.stop
        self._granted = answer.steps_granted
        if isinstance(answer, Beginning):
            return
        state.staleness, self.taken = answer.staleness, answer.verdict is Verdict.TAKEN
        if self.taken:
            return
        state.discarded += 1
        if answer.verdict is Verdict.CANCELLED:
            self._sent = None  # what was sent with it may be lost
            state.attachments.lost()
        elif answer.verdict is Verdict.NOT_FINITE:
            warn_not_finite(state.worker)

    def end(self) -> None:
        """The training function returned: send the local steps that were not sent yet."""
        if self.in_flight:
            self._take(wanted=True)
        if self.local and (self._steps or self.replica.has_work()) and not self.state.stopped:
            if self._steps and (self._says_samples or (self.by_client and self._number == 1)):
                warn_at_end(
                    f"worker {self.state.worker} did not contribute its last {self._steps} steps before it ended: under "
                    f"{self.strategy.name} a loop over its own data calls worker.contribute(samples=...) once a round; or give "
                    "prepare ps.Clients(...)"
                )
            if not (self._steps and self._says_samples):  # else nobody says what they weigh
                self._push(waits=True, whole=True)
        if self._own is not None and not self._steps:
            self._own.answered(self._number - 1, ends=True)
        if self.state.worker == 0:  # before the farewell: from then on that version may be overwritten
            self.replica.writes.warn(self.state.stopped)
        self.replica.close()
        self.doorbell.send(Farewell(0 if self._steps or self.by_client else self.used.left_over, self.state.early))

    def let_go(self) -> None:
        """The worker is over and its process goes on: whoever still holds its model must not hold the run's memory."""
        self.state.stopped = True
        self.replica.drop_gradients()
        self.replica.close()
        self.replicate = None
        del self.replica
