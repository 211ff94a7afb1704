"""What one run cost: the figures every table, report and file of plesio is made from.

Times are seconds since the start of training (all workers prepared), staleness is in versions, bytes are bytes.
The classes are plain msgspec structs, so a summary is written to and read from JSON as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plesio.core.events import Verdict

EXTREMES = 8
"""Where workers are too many to show each, so many of the slowest and of the fastest are."""


class Evaluation(msgspec.Struct, frozen=True):
    """One evaluation of a consistent snapshot; `time_s` is when the snapshot was taken, not when it was judged.

    The last one is taken when the run is stopped, or where a step that was under way then changed the weights once more,
    when it did: that can be later than `Summary.wall_s`, and no version is shown before it was there.

    In a resumed run `version` and `samples` go on from those of the checkpoint; the time begins anew.
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

    `steps` were finished in it: none while waiting, or where the step was called off.
    """

    worker: int
    kind: str
    start_s: float
    end_s: float
    steps: int = 0


class Incident(msgspec.Struct, frozen=True):
    """Something that went wrong and was survived: a worker that died, a contribution that was not finite."""

    time_s: float
    worker: int | None
    what: str


class Staleness(msgspec.Struct, frozen=True):
    """Staleness (versions folded in between) of the folded contributions; `by_worker[w][tau]` counts them."""

    mean: float = 0.0
    p50: int = 0
    p99: int = 0
    max: int = 0
    by_worker: dict[int, dict[int, int]] = {}


LOWER = ("loss", "error", "mse", "mae", "perplexity", "nll")
"""A metric with one of these in its name is the better the lower it is; any other, the higher, and so is one that begins
with `NEGATED`."""
NEGATED = "neg_"
"""scikit-learn's way to turn a loss into a score, as in neg_log_loss."""


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
    """Of a limit or a target: with `:g` 1234567 steps would be 1.23457e+06.

    >>> all_digits(1_234_567), all_digits(30.0), all_digits(0.9512345)
    ('1234567', '30', '0.9512345')
    """
    return f"{value:.15g}"


def limit_reached(name: str, limit: float) -> str:
    """Why a run ended that has come to its limit of seconds, steps or samples.

    >>> limit_reached("steps", 20), limit_reached("seconds", 1.0)
    ('20 steps were up', '1 second was up')
    """
    return f"{all_digits(limit)} {name} were up" if limit != 1 else f"1 {name.removesuffix('s')} was up"


GONE = ("died", "evicted", "raised")
"""How workers leave before their work is done, while others go on."""

SENT = (Verdict.STALE.words, Verdict.NOT_FINITE.words)
"""Why a contribution that its worker sent did not count."""


class WorkerSummary(msgspec.Struct, frozen=True):
    """One worker's part. `speed` is local steps a second in the time of the steps it finished; 0 if it finished none.

    `left` says how it left: "finished", "stopped" (at the end, before its work was done) or one of `GONE`; in virtual time it
    may still be there when the run ends. `in_vain`: how many of its steps were sent and did not count; those called off
    before are not in `steps`. `called_off_s`: the longest it computed on a step that was called off.
    """

    worker: int
    steps: int
    samples: int
    folded: int
    discarded: int
    compute_s: float
    wait_s: float
    exchange_s: float
    speed: float
    left: str | None = None
    in_vain: int = 0
    called_off_s: float = 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the worker's time spent held by others, 0 to 1."""
        return self.wait_s / self.there_s if self.there_s > 0 else 0.0

    @property
    def there_s(self) -> float:
        """Seconds that it took part, as far as they are known."""
        return self.compute_s + self.wait_s + self.exchange_s

    def lasted_s(self, wall_s: float) -> float:
        """How long a run of `wall_s` lasted for it: longer, where it finished steps that the stop found under way."""
        return max(wall_s, self.there_s)

    def ideal_steps(self, wall_s: float) -> float:
        """Local steps it could have made in a run of `wall_s`, had it always computed, and nothing in vain.

        At its own speed, in the time it took part: whoever came late, died, or was done with its own work, could do no more.
        What one that was stopped did last is not measured: it was there to the end. Of one that never finished a step no
        more is known than how long it computed at least: it counts as that fast.
        """
        speed = self.speed or (1 / self.called_off_s if self.called_off_s > 0 else 0.0)
        return speed * (self.lasted_s(wall_s) if self.left == "stopped" else self.there_s)


def telling(workers: Sequence[WorkerSummary]) -> list[WorkerSummary]:
    """Those worth a line each: all, or of very many the `EXTREMES` slowest and as many fastest, by number.

    >>> many = [WorkerSummary(k, 1, 1, 1, 0, 1.0, 0.0, 0.0, speed=k % 50) for k in range(100)]
    >>> [one.worker for one in telling(many)]
    [0, 1, 2, 3, 46, 47, 48, 49, 50, 51, 52, 53, 96, 97, 98, 99]
    """
    if len(workers) <= 2 * EXTREMES:
        return list(workers)
    by_speed = sorted(workers, key=lambda one: one.speed)
    return sorted(by_speed[:EXTREMES] + by_speed[-EXTREMES:], key=lambda one: one.worker)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run under one strategy; of a resumed run the part since then, but for `version` and the `history`."""

    strategy: str
    recipe: str
    workers: tuple[WorkerSummary, ...]
    wall_s: float
    start_up_s: float = 0.0
    version: int
    steps: int
    samples: int
    folded: int
    discarded: dict[str, int]
    missing_gradients: int = 0
    batches_unvisited: int = 0
    bytes: int
    shared_bytes: int = 0
    staleness: Staleness
    history: tuple[Evaluation, ...] = ()
    logged: tuple[Logged, ...] = ()
    timeline: tuple[Span, ...] = ()
    incidents: tuple[Incident, ...] = ()
    ended: str = "finished"
    clock: str = "wall"
    """What every time here was taken from: "wall", or "virtual" for a simulated run."""
    advice: str = ""
    """A line on what another strategy would have cost, if that is much less (`plesio.launch.simulated.whatif.advice`)."""

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
    def ideal_share(self) -> float:
        """Steps that counted, as a share of the ideal: what the workers could have done, had nobody waited.

        Steps in vain, called off or discarded, are as lost as time spent waiting. What was called off would have taken
        longer than what was finished, nobody knows how long: the ideal is then rather too high, and the share too low.
        """
        ideal = sum(worker.ideal_steps(self.wall_s) for worker in self.workers)
        return (self.steps - sum(worker.in_vain for worker in self.workers)) / ideal if ideal > 0 else 0.0

    @property
    def ideal_share_is_least(self) -> bool:
        """Whether `ideal_share` is a lower bound: how fast a worker is that never finished a step, nobody knows."""
        return any(worker.speed == 0 and worker.called_off_s > 0 for worker in self.workers)

    @property
    def waiting_share(self) -> float:
        """Share of all workers' time spent held by others, 0 to 1."""
        total_s = sum(w.there_s for w in self.workers)
        return sum(w.wait_s for w in self.workers) / total_s if total_s > 0 else 0.0

    def time_to(self, metric: str, value: float) -> float | None:
        """Seconds until a snapshot first reached `value` of `metric` (see `LOWER` for which way), or None."""
        for evaluation in self.history:
            got = evaluation.metrics.get(metric)
            if got is not None and is_met(metric, got, value):
                return evaluation.time_s
        return None

    def final(self, metric: str) -> float | None:
        """The last evaluated value of `metric`, or None if it was never evaluated."""
        for evaluation in reversed(self.history):
            if metric in evaluation.metrics:
                return evaluation.metrics[metric]
        return None
