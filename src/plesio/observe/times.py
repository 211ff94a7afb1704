"""The measured times of a run's workers and server: enough to simulate it under another strategy.

A compute span that finished h steps gives h equal step times. A cancelled step gives none; if a worker finished no
step, its longest cancelled one is a lower bound.

One server folds for all; `plesio.observe.links` tells its time for an exchange from each worker's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError
from plesio.observe.links import TimedExchange, links
from plesio.observe.summary import GONE, SENT, Span, Summary
from plesio.observe.totals import WorkerSummary

EARLY = 0.1  # a worker that finishes with this share of all steps left had its own stopping rule


class CalledOff(msgspec.Struct, frozen=True):
    """A step that was called off after so many seconds; its worker had finished `after` steps before."""

    after: int
    seconds: float


class StepTimes(msgspec.Struct, frozen=True):
    """One worker's step times in order, in seconds of computing."""

    worker: int
    seconds: tuple[float, ...]
    at_least: bool = False  # a lower bound, as it finished no step
    died_s: float | None = None  # how long it took part, if it died
    last: int | None = None  # how many steps it made, if it returned before the others
    # None where it finished no step, or where steps go several at a time: one of how many was it?
    called_off: tuple[CalledOff, ...] = ()
    latency_s: float = 0.0  # of its own link, one way
    away: bool = False  # on another host than the server

    @property
    def mean_s(self) -> float:
        return sum(self.seconds) / len(self.seconds)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    workers: tuple[StepTimes, ...]
    steps: float  # of all workers, without those whose contribution was discarded
    service_s: float = 0.0  # of the server for one exchange, in each direction
    nbytes: int = 0  # of one exchange, in each direction
    plain_nbytes: int = 0  # the same without a codec
    # How far a typical exchange is from what the links say, as a share of the time from one to the next.
    unexplained: float = 0.0


def measured(summary: Summary) -> Measured:
    """The step and exchange times of a run."""
    if not any(span.steps for span in summary.timeline):
        raise ConfigurationError(
            f"the run of {summary.strategy} has no measured step times: no step was finished; run it longer"
        )
    if late := [one.worker for one in summary.workers if one.went_on]:
        raise ConfigurationError(
            f"the run of {summary.strategy} does not show what its links take, for worker {late[0]} trained on while its answers "
            "travelled: measure a run in which they wait (overlap=False, ahead=0), which may be short, or simulate the machines"
        )
    away = {one.worker for one in summary.workers if one.away}
    died = {one.worker: one.there_s for one in summary.workers if one.left in GONE}  # the timeline may end earlier
    last = {one.worker: one.steps for one in summary.workers if _went_early(one, summary)}
    single = all(span.steps <= 1 for span in summary.timeline)
    spans = {worker: _with_fetching(own, single) for worker, own in sorted(summary.spans_by_worker.items())}
    contributions = summary.folded + sum(summary.discarded.get(reason, 0) for reason in SENT)
    called_off = summary.discarded.get(Verdict.CANCELLED.words, 0)  # these cost only the parameters sent back
    payloads = 2 * contributions + called_off
    a_step = contributions / summary.steps
    exchanges = [one for worker, own in spans.items() for one in _exchanges(worker, own, a_step)]
    link = links(exchanges, summary.served_s / contributions if contributions else 0.0)
    workers = [
        _steps(worker, own, died.get(worker), last.get(worker), single, link.latency_s.get(worker, 0.0))
        for worker, own in spans.items()
    ]
    return Measured(
        workers=tuple(msgspec.structs.replace(one, away=one.worker in away) for one in workers if one.seconds),
        steps=summary.steps - sum(one.in_vain for one in summary.workers),
        service_s=link.service_s,
        nbytes=round(summary.bytes / payloads) if payloads else 0,
        plain_nbytes=summary.plain_bytes,
        unexplained=link.unexplained,
    )


def _went_early(one: WorkerSummary, summary: Summary) -> bool:
    """Whether it returned while work was left, as after its own early stopping. In lock step some have a batch an epoch more than
    others, so up to twice as many, and are done later."""
    if one.left != "finished" or not one.steps or 2 * one.steps > max(other.steps for other in summary.workers):
        return False
    left_over = sum(max(0.0, other.there_s - one.there_s) * other.speed for other in summary.workers)
    return left_over > EARLY * summary.steps


def _with_fetching(spans: Sequence[Span], single: bool) -> list[Span]:
    """One worker's spans, in order; to fetch data, which is an exchange without a contribution, is part of the step after it."""
    found: list[Span] = []
    extra_s, sent = 0.0, False
    for span, after in zip(spans, [*spans[1:], None], strict=True):
        then = after.kind if after else ""
        if span.kind != "compute" and sent:
            found.append(span)
            sent = span.kind == "wait" or then == "wait"
        elif span.kind != "compute" or not (span.steps or single or then == "compute"):
            extra_s += span.end_s - span.start_s
        elif span.steps:
            found.append(msgspec.structs.replace(span, start_s=span.start_s - extra_s))
            extra_s, sent = 0.0, True
        else:
            found.append(span)  # called off
    return found


def _exchanges(worker: int, spans: Sequence[Span], a_step: float) -> Iterator[TimedExchange]:
    """Those that ended; there are `a_step` a step. Where one span stands for several, it is cut down to one."""
    steps, parts = 0, list[Span]()
    for span in [*spans, Span(worker, "compute", 0.0, 0.0)]:
        if span.kind != "compute":
            parts.append(span)
            continue
        if parts and parts[-1].kind == "exchange":
            held = next((one for one in parts if one.kind == "wait"), None)
            number = max(1, round(a_step * steps))
            lasted_s = sum(one.end_s - one.start_s for one in parts if one.kind == "exchange")
            if number > 1 or held is None:
                yield TimedExchange(worker, parts[-1].end_s - lasted_s / number, None, None, parts[-1].end_s)
            else:
                yield TimedExchange(worker, parts[0].start_s, held.start_s, held.end_s, parts[-1].end_s)
        steps, parts = span.steps, []


def _steps(
    worker: int, spans: Sequence[Span], died_s: float | None, last: int | None, single: bool, latency_s: float
) -> StepTimes:
    computed = [one for one in spans if one.kind == "compute" and one.end_s > one.start_s]
    seconds = tuple(s for one in computed for s in [(one.end_s - one.start_s) / max(1, one.steps)] * one.steps)
    if computed and not seconds:
        longest_s = max(one.end_s - one.start_s for one in computed)
        return StepTimes(worker, (longest_s,), at_least=True, died_s=died_s, latency_s=latency_s)
    finished = accumulate(one.steps for one in computed)
    lost = [CalledOff(n, one.end_s - one.start_s) for n, one in zip(finished, computed, strict=True) if not one.steps]
    return StepTimes(
        worker,
        seconds,
        died_s=died_s,
        last=last,
        called_off=tuple(lost) if single else (),
        latency_s=latency_s,
    )
