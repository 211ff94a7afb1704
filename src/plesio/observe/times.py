"""The measured times of a run's workers and server: enough to simulate it under another strategy.

A compute span that finished h steps gives h equal step times. A cancelled step gives none; if a worker finished no
step, its longest cancelled one is a lower bound.

One server folds for all. Its service time is the time with at least one exchange under way, divided by the number of
exchanges; this is an upper bound if the server was idle meanwhile. What a quick exchange takes beyond it is latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError
from plesio.observe.summary import GONE, SENT, Span, Summary, WorkerSummary

QUICK = 0.1
"""An exchange is quick if at most this share of them were quicker: it met no queue."""
EARLY = 0.1
"""A worker that finishes with this share of all steps left had its own stopping rule."""


class CalledOff(msgspec.Struct, frozen=True):
    """A step that was called off after so many seconds; its worker had finished `after` steps before."""

    after: int
    seconds: float


class StepTimes(msgspec.Struct, frozen=True):
    """One worker's step times in order, in seconds of computing; `at_least`: a lower bound, as it finished no step.

    `died_s`: how long it took part, if it died; `last`: how many steps it made, if it returned before the others.
    `called_off`: none where it finished no step, or where steps go several at a time: one of how many was it?
    """

    worker: int
    seconds: tuple[float, ...]
    at_least: bool = False
    died_s: float | None = None
    last: int | None = None
    called_off: tuple[CalledOff, ...] = ()

    @property
    def mean_s(self) -> float:
        """The mean."""
        return sum(self.seconds) / len(self.seconds)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `steps`: of all workers, without those whose contribution was discarded.

    Of one exchange, `service_s` is the server's time, and `latency_s` and `nbytes` are the latency and the bytes in each
    direction; `plain_nbytes`: what these would have been without a codec.
    """

    workers: tuple[StepTimes, ...]
    steps: float
    service_s: float = 0.0
    latency_s: float = 0.0
    nbytes: int = 0
    plain_nbytes: int = 0


def measured(summary: Summary) -> Measured:
    """The step and exchange times of a run.

    Raises:
        ConfigurationError: it has no finished step.
    """
    if not any(span.steps for span in summary.timeline):
        raise ConfigurationError(
            f"the run of {summary.strategy} has no measured step times: no step was finished; run it longer"
        )
    died = {one.worker: one.there_s for one in summary.workers if one.left in GONE}  # the timeline may end earlier
    last = {one.worker: one.steps for one in summary.workers if _went_early(one, summary)}
    single = all(span.steps <= 1 for span in summary.timeline)
    spans = sorted(summary.spans_by_worker.items())
    workers = [_steps(worker, own, died.get(worker), last.get(worker), single) for worker, own in spans]
    useful = useful_share(summary.folded, summary.discarded)
    contributions = summary.folded / useful if useful else 0.0
    called_off = summary.discarded.get(Verdict.CANCELLED.words, 0)  # these cost only the parameters sent back
    payloads = 2 * contributions + called_off
    service_s, latency_s = _exchange(summary.timeline, contributions / summary.steps)
    return Measured(
        workers=tuple(one for one in workers if one.seconds),
        steps=summary.steps * useful,
        service_s=service_s,
        latency_s=latency_s,
        nbytes=round(summary.bytes / payloads) if payloads else 0,
        plain_nbytes=summary.plain_bytes,
    )


def useful_share(folded: int, discarded: Mapping[str, int]) -> float:
    """Share of the sent contributions that counted; cancelled steps sent none.

    >>> useful_share(30, {"stale": 10, "cancelled": 5})
    0.75
    """
    lost = sum(discarded.get(reason, 0) for reason in SENT)
    return folded / (folded + lost) if lost else 1.0


def _went_early(one: WorkerSummary, summary: Summary) -> bool:
    """Whether it returned while work was left, as after its own early stopping."""
    if one.left != "finished" or not one.steps:
        return False
    left_over = sum(max(0.0, other.there_s - one.there_s) * other.speed for other in summary.workers)
    return left_over > EARLY * summary.steps


def _steps(worker: int, spans: Sequence[Span], died_s: float | None, last: int | None, single: bool) -> StepTimes:
    computed = [one for one in spans if one.kind == "compute" and one.end_s > one.start_s]
    seconds = tuple(s for one in computed for s in [(one.end_s - one.start_s) / max(1, one.steps)] * one.steps)
    if seconds or not computed:
        finished = accumulate(one.steps for one in computed)
        lost = [
            CalledOff(n, one.end_s - one.start_s) for n, one in zip(finished, computed, strict=True) if not one.steps
        ]
        return StepTimes(worker, seconds, died_s=died_s, last=last, called_off=tuple(lost) if single else ())
    return StepTimes(worker, (max(one.end_s - one.start_s for one in computed),), at_least=True, died_s=died_s)


def _exchange(timeline: Sequence[Span], a_step: float) -> tuple[float, float]:
    """Service time and latency (one way) of an exchange; there are `a_step` exchanges a step."""
    exchanges = [one for one in timeline if one.kind == "exchange"]
    number = a_step * sum(one.steps for one in timeline)
    if not exchanges or not number:
        return 0.0, 0.0
    service_s = _covered_s((one.start_s, one.end_s) for one in exchanges) / number
    lasting = sorted(_lasting(timeline))
    return service_s, max(0.0, lasting[int(QUICK * len(lasting))] - service_s) / 2


def _lasting(timeline: Sequence[Span]) -> list[float]:
    """How long each exchange lasted; one within which the worker was held has two spans."""
    lasting: list[float] = []
    computing: dict[int, bool] = {}
    for span in sorted(timeline, key=lambda one: (one.worker, one.start_s)):
        if span.kind == "exchange" and computing.get(span.worker, True):
            lasting.append(0.0)
        if span.kind == "exchange":
            lasting[-1] += span.end_s - span.start_s
        if span.kind != "wait":
            computing[span.worker] = span.kind == "compute"
    return lasting


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one span was under way.

    >>> _covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    covered_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
