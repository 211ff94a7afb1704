"""What one run cost: the figures behind every table, report and file.

Times are seconds since the start of training (all workers prepared), staleness is in versions, bytes are bytes.
The classes are msgspec structs: a summary is written to JSON and read back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec
from msgspec.structs import asdict

from plesio.core.events import Verdict
from plesio.observe.clients import ClientSummary
from plesio.observe.totals import Totals, WorkerSummary

EXTREMES = 8  # of very many workers, this many of the slowest and of the fastest are shown


class Evaluation(msgspec.Struct, frozen=True):
    """One evaluation of a consistent snapshot, taken at `time_s`.

    The last snapshot is taken when the run stops. If a step under way then changes the weights once more, it is taken
    after that, which can be later than `Summary.wall_s`.

    In a resumed run `version` and `samples` continue from the checkpoint; the time starts at 0.
    """

    time_s: float
    version: int
    samples: int
    metrics: dict[str, float]


class Logged(msgspec.Struct, frozen=True):
    """The mean of what a worker passed to `worker.log` over a short span of time."""

    time_s: float
    worker: int
    steps: int
    metrics: dict[str, float]


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stretch of one worker's time; `kind` is "compute", "wait" (held by others) or "exchange" (push, fold, pull).

    `steps`: the steps finished in it; 0 while waiting, or if the step was cancelled.
    """

    worker: int
    kind: str
    start_s: float
    end_s: float
    steps: int = 0


class Incident(msgspec.Struct, frozen=True):
    """A fault that the run survived, such as a worker's death or a non-finite contribution."""

    time_s: float
    worker: int | None
    what: str


LOWER = ("loss", "error", "mse", "mae", "perplexity", "nll")
"""A lower value is better for metrics with one of these in their name, unless it begins with `NEGATED`."""
NEGATED = "neg_"  # scikit-learn's prefix for a loss turned into a score, as in neg_log_loss


def is_met(metric: str, got: float, wanted: float) -> bool:
    """Whether `got` is as good as `wanted`, or better.

    >>> is_met("accuracy", 0.96, 0.95), is_met("test_rmse", 5.0, 0.9), is_met("neg_log_loss", -0.2, -0.3)
    (True, False, True)
    """
    return got <= wanted if lower_is_better(metric) else got >= wanted


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of `metric` is better, by its name."""
    name = metric.lower()
    return not name.startswith(NEGATED) and any(word in name for word in LOWER)


def all_digits(value: float) -> str:
    """A limit or target with all its digits; `:g` would show 1234567 steps as 1.23457e+06.

    >>> all_digits(1_234_567), all_digits(30.0), all_digits(0.9512345)
    ('1234567', '30', '0.9512345')
    """
    return f"{value:.15g}"


def limit_reached(name: str, limit: float) -> str:
    """Why a run ended: its limit of seconds, steps or samples was reached.

    >>> limit_reached("steps", 20), limit_reached("seconds", 1.0)
    ('20 steps were up', '1 second was up')
    """
    return f"{all_digits(limit)} {name} were up" if limit != 1 else f"1 {name.removesuffix('s')} was up"


TOLD = "left as told"  # how workers leave in good order: the run is scaled down, or their machine is to be taken away
ALL_LEFT = "all workers were told to leave"
CUT_SHORT = ("interrupted", ALL_LEFT)  # how runs end that did not fail, and are to go on

GONE = ("died", "evicted", "raised", TOLD)  # how workers leave before their work is done, while others go on

DIVERGED = "the model diverged"  # how the incident begins that tells of weights with a NaN or an infinity
SPOILT = 0.01  # a run in which a larger share of contributions was not finite did not do what it was to do

SENT = (Verdict.STALE.words, Verdict.NOT_FINITE.words)  # reasons to discard a contribution that its worker sent


def telling(workers: Sequence[WorkerSummary]) -> list[WorkerSummary]:
    """The workers to show: all, or of very many the `EXTREMES` slowest and fastest, by number.

    >>> many = [WorkerSummary(k, 1, 1, 1, 0, 1.0, 0.0, 0.0, speed=k % 50) for k in range(100)]
    >>> [one.worker for one in telling(many)]
    [0, 1, 2, 3, 46, 47, 48, 49, 50, 51, 52, 53, 96, 97, 98, 99]
    """
    if len(workers) <= 2 * EXTREMES:
        return list(workers)
    by_speed = sorted(workers, key=lambda one: one.speed)
    return sorted(by_speed[:EXTREMES] + by_speed[-EXTREMES:], key=lambda one: one.worker)


class Summary(Totals, frozen=True, kw_only=True):  # type: ignore[misc]  # totals count up, a summary is at rest
    """One run under one strategy. Figures of a resumed run begin at the resume, except `version` and `history`."""

    history: tuple[Evaluation, ...] = ()
    logged: tuple[Logged, ...] = ()
    clients: tuple[ClientSummary, ...] = ()
    timeline: tuple[Span, ...] = ()
    incidents: tuple[Incident, ...] = ()
    ended: str = "finished"
    clock: str = "wall"
    """The clock of all times: "wall", or "virtual" for a simulated run."""
    advice: str = ""
    """A line about a strategy that would have cost much less, if any (`plesio.launch.simulated.whatif.advice`)."""

    @classmethod
    def of(cls, totals: Totals, **more: Any) -> Self:
        """The summary that these totals come to, with what more is known."""
        known = {name: value for name, value in asdict(totals).items() if name in cls.__struct_fields__}
        return cls(**known | more)

    def __repr__(self) -> str:
        """Without the timeline, which has two spans for each step."""
        return super(Summary, msgspec.structs.replace(self, timeline=())).__repr__()

    @property
    def times(self) -> str:
        """How long training took and, where starting took time, how long that was."""
        wall = f"{self.wall_s:.2f} s"
        return f"training {wall}, start {self.start_up_s:.1f} s" if self.start_up_s else wall

    @property
    def spans_by_worker(self) -> dict[int, list[Span]]:
        """The timeline of each worker that has one, by time."""
        spans: dict[int, list[Span]] = {}
        for span in sorted(self.timeline, key=lambda one: one.end_s):
            spans.setdefault(span.worker, []).append(span)
        return spans

    @property
    def steps_per_s(self) -> float:
        """Local optimizer steps a second, all workers together: the sum of their rates."""
        return sum(w.steps / w.lasted_s(self.wall_s) for w in self.workers) if self.wall_s > 0 else 0.0

    @property
    def uncounted(self) -> str:
        """What nobody counts: updates that real workers lost to one another, where they write without a lock."""
        races = self.recipe == "hogwild" and self.clock == "wall" and len(self.workers) > 1
        return "updates that workers lost by writing at the same time, without a lock, are not counted" if races else ""

    @property
    def multiplied(self) -> str:
        """What a loop without a prepared loader comes to, where each of several workers went through all of it."""
        steps = sorted(one.steps for one in self.workers if one.left == "finished")
        if not self.unshared or self.ended != "finished" or len(steps) < 2 or not steps[0]:
            return ""
        each = " to ".join(f"{number:,}" for number in dict.fromkeys((steps[0], steps[-1])))
        return f"{len(steps)} workers took {each} steps each and share no data; `worker.steps` shares them"

    @property
    def ideal_share(self) -> float:
        """Steps that counted, as a share of the ideal: what the workers could have done without waiting.

        Cancelled and discarded steps are lost, as is time spent waiting. Cancelled steps would have taken longer than
        finished ones, by an unknown time: the ideal is then somewhat too high, and the share too low.
        """
        ideal = sum(worker.ideal_steps(self.wall_s) for worker in self.workers)
        return (self.steps - sum(worker.in_vain for worker in self.workers)) / ideal if ideal > 0 else 0.0

    @property
    def ideal_share_is_least(self) -> bool:
        """Whether `ideal_share` is a lower bound: some worker's speed is unknown, as it finished no step."""
        return any(worker.speed == worker.nominal == 0 and worker.called_off_s > 0 for worker in self.workers)

    @property
    def spoilt(self) -> str:
        """What a NaN or an infinity made of the run, where that is more than a few contributions: in words."""
        told = next((one.what for one in self.incidents if one.what.startswith(DIVERGED)), "")
        lost = self.discarded.get(Verdict.NOT_FINITE.words, 0)
        if told or lost <= SPOILT * (lost + self.folded):
            return f"The weights are not usable: {told}." if told else ""
        return (
            f"The run is spoilt: {lost:,} of {lost + self.folded:,} contributions held a NaN or an infinity and are not in the "
            "model; look at the learning rate, the loss and the data, or stop at the first one with on_nonfinite='raise'."
        )

    @property
    def waiting_share(self) -> float:
        """Share of all workers' time spent held by others, 0 to 1."""
        total_s = sum(w.there_s for w in self.workers)
        return sum(w.wait_s for w in self.workers) / total_s if total_s > 0 else 0.0

    def time_to(self, metric: str, value: float) -> float | None:
        """Seconds until a snapshot first reached `value` of `metric` (`LOWER` says which way), or None."""
        evaluated = (one for one in self.history if metric in one.metrics)
        return next((one.time_s for one in evaluated if is_met(metric, one.metrics[metric], value)), None)

    def final(self, metric: str) -> float | None:
        """The last evaluated value of `metric`, or None if it was never evaluated."""
        return next((one.metrics[metric] for one in reversed(self.history) if metric in one.metrics), None)
