"""What one run cost: the figures behind every table, report and file.

Times are seconds since the start of training (all workers prepared), staleness is in versions, bytes are bytes.
The classes are msgspec structs: a summary is written to JSON and read back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plesio.core.events import Verdict
from plesio.observe.clients import ClientSummary

UNUSED = "a loop that ends early leaves the rest of its epoch, and so may a worker that dies at the end"
"""Why batches stay unused."""
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


class Staleness(msgspec.Struct, frozen=True):
    """Staleness (versions folded in between) of the folded contributions; `by_worker[w][tau]` counts them."""

    mean: float = 0.0
    p50: int = 0
    p99: int = 0
    max: int = 0
    by_worker: dict[int, dict[int, int]] = {}


class RowsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One table. A step of a row is stale if others stepped that row after it was served. Its staleness is how often rows
    stepped, one contribution or round after the other, until the last of these.

    Attributes:
        rows: how many there are.
        served, stepped, born: how often a row was laid out for a worker, stepped, was born by its step.
        stale, staleness_sum: how many of these steps were stale, and by how much in all.
        pulled_bytes, pushed_bytes: keys and values; gradients.
        memory_bytes: what rows and index take.
        refused: gradients for keys that have no row yet (`plesio.Seen`).
        evicted: rows that had died (`plesio.Unused`), and gave their memory back or were born anew.
        hot: the keys that most contributions pulled, and the share of these that did, 0.1 to 1: an estimate from about 1 of 32.
    """

    rows: int
    served: int = 0
    stepped: int = 0
    born: int = 0
    stale: int = 0
    staleness_sum: int = 0
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    memory_bytes: int = 0
    refused: int = 0
    evicted: int = 0
    hot: tuple[tuple[int, float], ...] = ()

    @property
    def stale_share(self) -> float:
        """Share of the steps of rows that were stale, 0 to 1."""
        return self.stale / self.stepped if self.stepped else 0.0

    @property
    def mean_staleness(self) -> float:
        """The mean over all steps of rows."""
        return self.staleness_sum / self.stepped if self.stepped else 0.0


class RowServer(msgspec.Struct, frozen=True, kw_only=True):
    """One of several servers that hold rows. `busy_s`: CPU time; `waited_s`: how long all `pulls` waited for it, from when
    each was decided until its rows were there."""

    rows: int = 0
    pulls: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """How long a pull waited."""
        return self.waited_s / self.pulls if self.pulls else 0.0


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


TOLD = "told to"  # how workers leave when the run is scaled down

GONE = ("died", "evicted", "raised", TOLD)  # how workers leave before their work is done, while others go on

DIVERGED = "the model diverged"  # how the incident begins that tells of weights with a NaN or an infinity
SPOILT = 0.01  # a run in which a larger share of contributions was not finite did not do what it was to do

UNLIKE = 1.25  # a smaller ratio of batch sizes comes of the last batches of epochs

SENT = (Verdict.STALE.words, Verdict.NOT_FINITE.words)  # reasons to discard a contribution that its worker sent


class WorkerSummary(msgspec.Struct, frozen=True):
    """One worker's part. `speed`: local steps a second while computing steps it finished; 0 if it finished none. `nominal`: those
    that it would make at its pace alone; 0 where no pace says how long a step lasts.

    `left` says how it left: "finished", "stopped" (at the end, before its work was done) or one of `GONE`; None if it was
    still there when a simulated run ended. `in_vain`: steps whose contribution was discarded; `steps` includes these, but
    not cancelled ones. `called_off_s`: the longest time it computed on a cancelled step. `away`: on another host than the
    server; `went_on`: contributions after which it trained on while the answer travelled.
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
    nominal: float = 0.0
    away: bool = False
    went_on: int = 0

    @property
    def waiting_share(self) -> float:
        """Share of the worker's time spent held by others, 0 to 1."""
        return self.wait_s / self.there_s if self.there_s > 0 else 0.0

    @property
    def there_s(self) -> float:
        """Seconds it took part, as far as known."""
        return self.compute_s + self.wait_s + self.exchange_s

    def lasted_s(self, wall_s: float) -> float:
        """How long a run of `wall_s` lasted for it: longer if it finished a step after the stop."""
        return max(wall_s, self.there_s)

    def ideal_steps(self, wall_s: float) -> float:
        """Local steps it could have made in a run of `wall_s`, had it always computed, with no step in vain.

        This is its speed times the time it took part. A stopped worker took part until the end, though its last step
        is not measured. A worker counts as fast as its pace says: what each step costs on top of that is lost. Without a pace,
        one that never finished a step counts as fast as its longest cancelled one.
        """
        speed = self.nominal or self.speed or (1 / self.called_off_s if self.called_off_s > 0 else 0.0)
        return speed * (self.lasted_s(wall_s) if self.left == "stopped" else self.there_s)


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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run under one strategy. Figures of a resumed run begin at the resume, except `version` and `history`."""

    strategy: str
    recipe: str
    workers: tuple[WorkerSummary, ...]
    wall_s: float
    start_up_s: float = 0.0
    """Seconds from the call or the command to the start of training; 0 where time is virtual. The wait for workers that somebody
    else starts is part of it; on Ray it counts from the start of the head."""
    version: int
    steps: int
    samples: int
    folded: int
    discarded: dict[str, int]
    missing_gradients: int = 0
    batches_unvisited: int = 0
    unshared: bool = False
    """Whether workers took data of their own, and counted nothing together."""
    bytes: int
    shared_bytes: int = 0
    plain_bytes: int = 0
    served_s: float = 0.0
    """What the server computed for all contributions, from their arrival to the answers; 0 where time is virtual."""
    staleness: Staleness
    rows: dict[str, RowsSummary] = {}
    """Of the rows of each table (`plesio.Table`), by its name in the model."""
    row_servers: tuple[RowServer, ...] = ()
    """Those that hold the rows of tables, where there are several."""
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
    def unlike(self) -> str:
        """Batches of other sizes on other workers, which count alike: the mean gradient is not that of all their samples."""
        sizes = sorted(one.samples / one.steps for one in self.workers if one.steps and one.samples)
        if self.recipe != "allreduce" or not sizes or sizes[-1] < UNLIKE * sizes[0]:
            return ""
        step = f"a step has {sizes[0]:,.0f} samples on one worker and {sizes[-1]:,.0f} on another"
        return f"{step}; allreduce counts both alike, as DDP does, and sync_sgd weighs by samples"

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
