"""What a run measured of its workers and its server: enough to replay it under another strategy.

From the timeline: a compute span that finished h steps gives h times its h-th part. A step that was called off has no
time; of a worker that finished none, the longest it computed in vain is what a step takes at least.

One server folds for all, so the time that at least one exchange was under way, shared among the exchanges, is what the
server takes for one: exactly if it was never idle in that time, and at most otherwise. What a quick exchange takes
beyond that is on the way, where many can be at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError
from plesio.observe.summary import GONE, SENT, Span, Summary, WorkerSummary

QUICK = 0.1
"""An exchange is quick if no more than this share of them took less: it met no queue."""
EARLY = 0.1
"""Whoever is done while the others have this share of all the steps before them did not run out of common work."""


class StepTimes(msgspec.Struct, frozen=True):
    """One worker's steps in order, in seconds of computing; `at_least`: it finished none, and this is a lower bound.

    `died_s`: how long it was there, if it died; `last`: after how many steps its training function returned, if the others
    went on.
    """

    worker: int
    seconds: tuple[float, ...]
    at_least: bool = False
    died_s: float | None = None
    last: int | None = None

    @property
    def mean_s(self) -> float:
        """The mean."""
        return sum(self.seconds) / len(self.seconds)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `steps`: of all workers, without those whose contribution was discarded.

    `service_s`: what the server takes for one exchange; `latency_s`: what it is on the way, there and back each;
    `nbytes`: what it carries, in each direction.
    """

    workers: tuple[StepTimes, ...]
    steps: float
    service_s: float = 0.0
    latency_s: float = 0.0
    nbytes: int = 0


def measured(summary: Summary) -> Measured:
    """The step and exchange times of a run.

    Raises:
        ConfigurationError: it holds none.
    """
    by_worker: dict[int, list[Span]] = {one.worker: [] for one in summary.workers}
    for span in summary.timeline:
        by_worker.setdefault(span.worker, []).append(span)
    if not any(span.steps for span in summary.timeline):
        raise ConfigurationError(
            f"the run of {summary.strategy} has no measured step times: no step was finished; run it longer"
        )
    died = {one.worker: one.there_s for one in summary.workers if one.left in GONE}  # the timeline may end before
    last = {one.worker: one.steps for one in summary.workers if _went_early(one, summary)}
    workers = [_steps(worker, spans, died.get(worker), last.get(worker)) for worker, spans in by_worker.items()]
    useful = useful_share(summary.folded, summary.discarded)
    contributions = summary.folded / useful if useful else 0.0
    called_off = summary.discarded.get(Verdict.CANCELLED.words, 0)  # of these only the parameters were sent
    payloads = 2 * contributions + called_off
    service_s, latency_s = _exchange(summary.timeline, contributions / summary.steps)
    return Measured(
        workers=tuple(one for one in workers if one.seconds),
        steps=summary.steps * useful,
        service_s=service_s,
        latency_s=latency_s,
        nbytes=round(summary.bytes / payloads) if payloads else 0,
    )


def useful_share(folded: int, discarded: Mapping[str, int]) -> float:
    """Share of the contributions that counted; what was called off before it was sent was none.

    >>> useful_share(30, {"stale": 10, "cancelled": 5})
    0.75
    """
    lost = sum(discarded.get(reason, 0) for reason in SENT)
    return folded / (folded + lost) if lost else 1.0


def _went_early(one: WorkerSummary, summary: Summary) -> bool:
    """Whether it returned though there was work left, as after a stop of its own: the others did it without its help."""
    if one.left != "finished" or not one.steps:
        return False
    left_over = sum(max(0.0, other.there_s - one.there_s) * other.speed for other in summary.workers)
    return left_over > EARLY * summary.steps


def _steps(worker: int, spans: Sequence[Span], died_s: float | None, last: int | None) -> StepTimes:
    computed = [one for one in spans if one.kind == "compute" and one.end_s > one.start_s]
    seconds = tuple(s for one in computed for s in [(one.end_s - one.start_s) / max(1, one.steps)] * one.steps)
    if seconds or not computed:
        return StepTimes(worker, seconds, died_s=died_s, last=last)
    return StepTimes(worker, (max(one.end_s - one.start_s for one in computed),), at_least=True, died_s=died_s)


def _exchange(timeline: Sequence[Span], a_step: float) -> tuple[float, float]:
    """The server's time for an exchange, and the time on the way, in one direction; there are `a_step` of them a step."""
    exchanges = [one for one in timeline if one.kind == "exchange"]
    number = a_step * sum(one.steps for one in timeline)
    if not exchanges or not number:
        return 0.0, 0.0
    service_s = _covered_s((one.start_s, one.end_s) for one in exchanges) / number
    lasting = sorted(_lasting(timeline))
    return service_s, max(0.0, lasting[int(QUICK * len(lasting))] - service_s) / 2


def _lasting(timeline: Sequence[Span]) -> list[float]:
    """How long each exchange lasted: where a worker was held in the middle of one, it is in two parts."""
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
    """How long at least one was under way.

    >>> _covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    covered_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
