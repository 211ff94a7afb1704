"""Counts what a run costs while it runs: where time goes, how stale contributions are, what was discarded.

The times of a worker's exchange, and what they are counted as:

    granted ---- ready ---- arrived, done ---- released ---- granted
       | compute  | exchange      | wait (held)    | exchange   |

A worker that goes on while its answer travels computes from one `ready` to the next, but for the time in which it waited for an
answer or for data: of that, waiting is what went by while it was held. When an answer came that it took without waiting makes no
difference.

A step ends in one of three ways. It counts; or its contribution arrived and was discarded (counted as a step, in
vain); or it was cancelled (not counted as a step; only its time is known).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, dropwhile

import msgspec

from plesio.core.events import Member
from plesio.observe.standing import ALL, EACH_MAX, WorkerNow
from plesio.observe.summary import SENT, Span
from plesio.observe.totals import Staleness, Totals, WorkerSummary

SPANS_MAX = 20_000  # spans kept per worker for the timeline; totals go on after that
LATELY_MAX = 500  # spans a worker from which a forecast is made
LATELY_ALL = 2_000  # and of all workers together
LATELY_LEAST = 8  # so many of each, however long ago they were: steps may be long

AHEAD = 5
"""Upper bound on a worker's spans that are dated after now, in a simulation: an answer, a step to its data, the data, a cancelled
step, and its cancellation."""


@dataclass(slots=True, eq=False)
class WorkerMeter:
    """One worker's totals and timeline; times on the monotonic clock."""

    worker: int
    spans_max: int = SPANS_MAX
    steps: int = 0
    samples: int = 0
    folded: int = 0
    discarded: int = 0
    in_vain: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0
    called_off_s: float = 0.0
    away: bool = False
    went_on: int = 0
    granted_s: float = 0.0
    ready_s: float = 0.0
    held_since_s: float = 0.0
    came: bool = False
    left: str | None = None
    left_s: float | None = None  # when it left last, by the server's clock
    nominal: float = 0.0
    stale: int = 0  # staleness of the last folded contribution
    staleness: Counter[int] = field(default_factory=Counter)
    spans: list[tuple[str, float, float, int]] = field(default_factory=list)
    # The last spans, kept or not.
    recent: deque[tuple[str, float, float, int]] = field(init=False)
    ahead: bool = False  # whether the worker went on after its last contribution,
    released_s: float | None = None  # and when the event came that released it, if it was held
    _latest: int = 0  # steps of the last contribution
    _called_off: int = 0  # number of the last cancelled contribution,
    _began_s: float = 0.0  # and when its worker began it
    _crossed: int = 0  # number of a contribution counted before its arrival,
    _went_on_after: int = 0  # and of one whose time is
    _finished: int = 0  # steps whose time is known,
    _finished_s: float = 0.0  # and that time

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=max(AHEAD, min(LATELY_MAX, self.spans_max)))

    def pushed(self, ready_s: float, steps: int, samples: int, number: int = 0) -> None:
        """Contribution `number` arrived; its worker finished it at `ready_s`."""
        if number and number == self._crossed:
            self._crossed = 0
            return
        self.steps += steps
        self.samples += samples
        self.ready_s = ready_s
        self._latest = steps
        if number and number == self._called_off:  # it crossed its cancellation, which counted its time
            self.void()
        elif number and number == self._went_on_after:
            self._went_on_after = 0
        elif ready_s >= self.granted_s:  # else its worker died since, which counted its time
            self._compute(ready_s, steps)

    def sent(self, ready_s: float, steps: int, number: int) -> None:
        """Contribution `number` is under way, and its worker goes on: its time is counted by now."""
        self._compute(ready_s, steps)
        self.granted_s, self._went_on_after = ready_s, number

    def goes_on(self, at_once: bool, waited_s: float) -> None:
        """Before it sent its last contribution the worker waited for `waited_s`; it goes on `at_once`, or when it is granted."""
        if waited_s:
            self._waited(self.ready_s, self.ready_s + waited_s, self.released_s)
            self.ready_s += waited_s
        self.ahead, self.released_s = at_once, None
        if at_once:
            self.went_on += 1
            self.granted_s = max(self.granted_s, self.ready_s)  # virtual time may know what it waited for since

    def crossed(self, ready_s: float, steps: int, samples: int, number: int, heard_s: float) -> None:
        """Contribution `number` is under way, and its worker hears its cancellation at `heard_s`: it is in vain."""
        self.pushed(ready_s, steps, samples)
        self.void()
        self.granted(heard_s, None)
        self._crossed = number

    def cancelled(self, now_s: float, number: int = 0) -> None:
        """Contribution `number`, still being computed, was cancelled; its time counts."""
        self._called_off = number
        self._began_s = self.granted_s
        self._in_vain(now_s)

    def heard(self, worked_s: float) -> None:
        """The worker heard the cancellation after `worked_s` of work; until then it computed in vain."""
        if (heard_s := self._began_s + worked_s) > self.granted_s:
            self._in_vain(heard_s)

    def _in_vain(self, end_s: float) -> None:
        self.compute_s += end_s - self.granted_s
        self.called_off_s = max(self.called_off_s, end_s - self._began_s)
        self._span("compute", self.granted_s, end_s)
        self.granted_s = end_s

    def void(self) -> None:
        """The last contribution does not count. Calling it again changes nothing."""
        self.in_vain += self._latest
        self._latest = 0

    def granted(self, now_s: float, released_s: float | None) -> None:
        """The worker goes on; `released_s`: when the event came that released it, if it was held."""
        if self.ahead:
            self.released_s = released_s
        elif released_s is None:
            self._exchange(self.ready_s, now_s)
            self.granted_s = now_s
        else:
            self._waited(self.ready_s, now_s, released_s)

    def fetched(self, asked_s: float, has_it_s: float, released_s: float | None = None) -> None:
        """The worker, which had computed until `asked_s`, waited for data, which is exchange, or for an answer, as `granted`."""
        if has_it_s > asked_s:
            if asked_s > self.granted_s:
                self._compute(asked_s, 0)
            self._waited(asked_s, has_it_s, released_s)

    def _waited(self, asked_s: float, has_it_s: float, released_s: float | None) -> None:
        """It stood still for an exchange, in which it was held from the arrival of its contribution until `released_s`."""
        held_s = max(asked_s, self.held_since_s)
        if released_s is not None and (until_s := min(released_s, has_it_s)) > held_s:
            self._exchange(asked_s, held_s)
            self.wait_s += until_s - held_s
            self._span("wait", held_s, until_s)
            self._exchange(until_s, has_it_s)
        else:
            self._exchange(asked_s, has_it_s)
        self.granted_s = has_it_s

    # If the run ends within an exchange, its time counts until then. No span is kept of an unfinished step or message:
    # a measurement from spans would take it for a whole one.

    def cut(self, now_s: float) -> None:
        """The run, or this worker's part in it, ends at `now_s`: remove what virtual time counted beyond."""
        while self.recent and self.recent[-1][2] > now_s:
            span = self.recent.pop()
            kind, start_s, end_s, _ = span
            beyond_s = end_s - max(start_s, now_s)
            if kind == "compute":
                self.compute_s -= beyond_s
            else:  # waits are never counted ahead
                self.exchange_s -= beyond_s
            if self.spans and self.spans[-1] is span:
                self.spans.pop()
        self.granted_s = min(self.granted_s, now_s)

    def ended_held(self, now_s: float) -> None:
        """The run ends while the worker is held."""
        self.exchange_s += self.held_since_s - self.ready_s
        self.wait_s += now_s - self.held_since_s
        if now_s > self.held_since_s:
            self._span("wait", self.held_since_s, now_s)

    def ended_amid(self, now_s: float, ready_s: float) -> None:
        """The run, or the worker, ends within a step, which does not count: computing until `ready_s`, then being sent."""
        done_s = min(ready_s, now_s)
        self.compute_s += max(0.0, done_s - self.granted_s)  # 0 if the answer is still under way
        self.exchange_s += now_s - done_s
        self.granted_s = now_s  # if the run goes on, the step may come, and its time is counted

    def reported(self, ready_s: float, steps: int, samples: int, wait_s: float, exchange_s: float = 0.0) -> None:
        """Steps that the workers folded themselves, until `ready_s`.

        The time since the last report has `wait_s` of waiting for others and `exchange_s` of folding; the timeline
        shows them one after the other.
        """
        self.steps += steps
        self.samples += samples
        self._latest = 1  # only the last of several reported steps can be discarded
        came_s = max(self.granted_s, ready_s - exchange_s)
        held_s = max(self.granted_s, came_s - wait_s)
        self._compute(held_s, steps)
        if wait_s:
            self.wait_s += came_s - held_s
            self._span("wait", held_s, came_s)
        if exchange_s:
            self._exchange(came_s, ready_s)
        self.granted_s = ready_s

    def _compute(self, end_s: float, steps: int) -> None:
        self.compute_s += end_s - self.granted_s
        self._finished += steps
        self._finished_s += end_s - self.granted_s
        self._span("compute", self.granted_s, end_s, steps)

    def _exchange(self, start_s: float, end_s: float) -> None:
        self.exchange_s += end_s - start_s
        self._span("exchange", start_s, end_s)

    def _span(self, kind: str, start_s: float, end_s: float, steps: int = 0) -> None:
        span = kind, start_s, end_s, steps
        self.recent.append(span)
        if len(self.spans) < self.spans_max:
            self.spans.append(span)

    @property
    def speed(self) -> float:
        """Local steps a second while computing steps it finished."""
        return self._finished / self._finished_s if self._finished_s > 0 else 0.0

    def now(self, now_s: float, zero_s: float, held: bool) -> WorkerNow:
        """What it is at, `held` or computing, and its totals with that; `zero_s`: when training began."""
        since_s = self.held_since_s if held else self.granted_s
        if self.left and self.left_s is not None:
            since_s = self.left_s
        lasts_s = max(0.0, now_s - since_s) if not self.left else 0.0
        return WorkerNow(
            self.worker,
            self.left or ("wait" if held else "compute"),
            max(0.0, since_s - zero_s),
            self.steps,
            self.compute_s + (0.0 if held else lasts_s),
            self.wait_s + (lasts_s if held else 0.0),
            self.exchange_s,
            self.stale,
        )

    def lately(self, from_s: float, until_s: float, most: int) -> Iterator[tuple[str, float, float, int]]:
        """The last spans, at most so many; they begin with a step that was finished."""
        own = [span for span in self.recent if span[2] <= until_s][-most:]
        kept = (span for place, span in enumerate(own, -len(own)) if span[1] >= from_s or place >= -LATELY_LEAST)
        return dropwhile(lambda span: not span[3], kept)

    def summary(self) -> WorkerSummary:
        return msgspec.convert(self, WorkerSummary, from_attributes=True)


class Meter:
    """All workers of a run that was asked to have so many, and may get more up to the number of its `seats`."""

    def __init__(self, workers: int, spans_max: int = SPANS_MAX, seats: int = 0) -> None:
        self.workers = [WorkerMeter(worker, spans_max, came=worker < workers) for worker in range(max(workers, seats))]
        self.totals = Totals(discarded=Counter())
        """What is counted as it happens; `plesio.server.figures` adds what others know."""
        self.exchanges = 0  # contributions received
        self.answers = 0  # parameters sent back, also after a cancellation
        self.zero_s = 0.0
        self.begun = False

    def begin(self, now_s: float) -> None:
        self.zero_s, self.begun = now_s, True
        for one in self.workers:
            one.granted_s = now_s

    def served(self, worker: int, came_s: float, until_s: float, missing: int) -> None:
        """What the server did about a contribution that `came_s` took until now; `missing`: parameters without a gradient."""
        self.workers[worker].held_since_s = until_s
        self.totals.served_s += until_s - came_s
        self.totals.missing_gradients += missing
        self.exchanges += 1

    def granted(self, worker: int, number: int, has_it_s: float, released_s: float | None) -> None:
        """Contribution `number` is answered, or (0) the worker begins, with the version that everybody has."""
        one = self.workers[worker]
        if not number:
            one.granted_s = has_it_s
            return
        self.answers += 1
        one.granted(has_it_s, released_s)

    def cancelled(self, worker: int, number: int, heard_s: float | None) -> None:
        """Its step is called off, which is an answer; `heard_s`: if nobody else counts that."""
        self.answers += 1
        if heard_s is not None:
            self.workers[worker].cancelled(heard_s, number)

    def folded(self, members: Iterable[Member]) -> None:
        for member in members:
            one, staleness = self.workers[member.worker], member.staleness
            one.folded += 1
            # Not `+= 1`: Counter calls a Python function for missing keys, and most are with thousands of workers.
            one.staleness[staleness] = one.staleness.get(staleness, 0) + 1
            one.stale = staleness

    def dropped(self, worker: int, reason: str) -> None:
        one = self.workers[worker]
        one.discarded += 1
        self.totals.discarded[reason] += 1
        if reason in SENT:
            one.void()

    @property
    def seated(self) -> list[WorkerMeter]:
        """Those the run was asked to have, and others that came."""
        return [one for one in self.workers if one.came]

    @property
    def steps(self) -> int:
        return sum(one.steps for one in self.workers)

    @property
    def samples(self) -> int:
        return sum(one.samples for one in self.workers)

    def begin_anew(self) -> None:
        """Under another strategy: what the workers did before says nothing of their exchanges now."""
        for one in self.workers:
            one.recent.clear()

    def ideal_share(self, now_s: float) -> float:
        """Steps that counted until now, as a share of the ideal (`Summary.ideal_share`)."""
        totals = [one.summary() for one in self.seated]
        ideal = sum(one.ideal_steps(max(0.0, now_s - self.zero_s)) for one in totals)
        return sum(one.steps - one.in_vain for one in totals) / ideal if ideal > 0 else 0.0

    def stale(self) -> Mapping[int, Mapping[int, int]]:
        """The staleness of folded contributions: by worker, or of `ALL` where there are many."""
        by_worker = {one.worker: one.staleness for one in self.seated if one.staleness}
        if len(by_worker) <= EACH_MAX:
            return by_worker
        return {ALL: sum(by_worker.values(), Counter())}

    def timeline(self) -> tuple[Span, ...]:
        """Every worker's spans, in seconds since training began."""
        return tuple(span for one in self.workers for span in self._since_begun(one, one.spans))

    def lately(self, now_s: float, window_s: float) -> tuple[Span, ...]:
        """The spans of the last `window_s` of the workers that are there; of many only the last."""
        here = [one for one in self.seated if not one.left]
        most = max(LATELY_LEAST, LATELY_ALL // max(1, len(here)))
        spans = ((one, one.lately(now_s - window_s, now_s, most)) for one in here)
        return tuple(span for each in spans for span in self._since_begun(*each))

    def _since_begun(self, one: WorkerMeter, spans: Iterable[tuple[str, float, float, int]]) -> Iterator[Span]:
        zero_s = self.zero_s
        return (
            Span(one.worker, kind, from_s - zero_s, until_s - zero_s, steps) for kind, from_s, until_s, steps in spans
        )

    def staleness(self) -> Staleness:
        """The distribution of the staleness of folded contributions."""
        by_worker = {one.worker: dict(one.staleness) for one in self.seated}
        total = sum(map(Counter, by_worker.values()), Counter())
        if not total:
            return Staleness(by_worker=by_worker)
        mean = sum(tau * count for tau, count in total.items()) / total.total()
        return Staleness(mean, _quantile(total, 0.5), _quantile(total, 0.99), max(total), by_worker)


def _quantile(counts: Counter[int], share: float) -> int:
    """The smallest value that at least `share` of the counts do not exceed."""
    values = sorted(counts)
    up_to = list(accumulate(counts[value] for value in values))
    return values[bisect_left(up_to, share * up_to[-1])]
