"""What another strategy would have cost: the step times of a finished run, replayed in virtual time.

Every worker takes the steps that were measured of it, in that order, and from then on steps drawn from them. A step that was
cancelled would have taken longer: one drawn from the longer steps takes its place (without, the prediction is biased: it is
the slowest steps that are cancelled). The real sequencer decides who waits for whom. Each worker's link has the latency that was
measured of it, and the server's carries a message in the time the server takes for one (`plesio.observe.links`). Where these do
not explain the exchanges, or the replay of what ran takes another time, nothing is recommended. From a run whose workers trained
on while answers travelled nothing is forecast: it does not show what their links take. A worker that died dies again after as
long; one whose training function returned while the others had much left to do is done after as many steps.

What is not modelled: another strategy may need another number of samples for the same accuracy, and workers that share cores
disturb each other differently when fewer of them wait. No data is asked for here: a worker that goes on does so once an epoch,
behind its contributions, and takes longer than forecast where epochs are short and links slow. Work is assumed to be shared
out, so that fast workers do more of it; where each has a number of its own, the slowest takes as long under every strategy.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from statistics import median

import msgspec

from plesio.cluster import Cluster, Constant, Crash, Group, Link, Timetable
from plesio.errors import ConfigurationError, StrategyError
from plesio.observe.amounts import duration, percent
from plesio.observe.summary import Summary
from plesio.observe.times import Measured, StepTimes, measured
from plesio.protocol.launcher import Final
from plesio.strategy import Strategy
from plesio.strategy.recipes import RECIPES, async_sgd, local_sgd, sync_sgd
from plesio.tensors.codecs import share_of

STEPS_MAX = 50_000  # steps simulated a strategy; from there on the time is extrapolated
ADVICE_STEPS, ADVICE_WORKERS = 2_000, 64
ADVICE_S = 1.0  # a run shorter than that shows how it began rather than how it went
MUCH = 1.5  # times faster: worth a line
CLOSE = 1.1
"""Strategies that take up to so many times the shortest time are as good: the tightest of them is recommended."""
UNEVEN = 1.5  # times as long as the others: a worker to be named as the reason
FITS, EXPLAINS = 1.2, 0.2
"""How many times too long or too short the replay of what ran may be, and how much of a cycle its exchanges may differ from what
the model says, for a recommendation."""

EVERYBODY = -1


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy costs: `time_s` to as many samples that count; `left_out`: whose work is mostly in vain.

    `at_least`: it may take longer, for it needs a worker that never finished a step in the run that was measured.
    `one_host`: links were assumed, and it crosses none, for it works in the memory of one host.
    """

    strategy: str
    time_s: float
    steps_per_s: float
    waiting_share: float
    staleness: float
    left_out: tuple[int, ...] = ()
    at_least: bool = False
    one_host: bool = False


def what_if(
    run: Measured,
    strategies: Sequence[Strategy],
    workers: int | None = None,
    bytes_per_s: float | None = None,
    seed: int = 0,
    steps_max: int = STEPS_MAX,
) -> list[Prediction]:
    """Replay the measured times under other strategies: the time each takes to the same number of samples.

    Other `workers` are the first of those that there were, or all and more like them, drawn at random. `bytes_per_s` is what
    the links of workers and server carry in each direction; None: as it was.
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ConfigurationError(f"workers={workers!r}: a whole number of at least 1")
    if bytes_per_s is not None and not 0 < bytes_per_s < float("inf"):
        raise ConfigurationError(f"bytes_per_s={bytes_per_s!r}: a number of bytes a second above 0")
    if run.steps <= 0:
        raise ConfigurationError("no step of the run counted: all of its contributions were discarded")
    there = len(run.workers)
    number = there if workers is None else workers
    rng = random.Random(f"workers {seed}")
    crew = [*run.workers[:number], *(rng.choice(run.workers) for _ in range(number - there))]
    lengths = _Lengths(run.workers)

    def steps() -> list[Iterator[float]]:
        return [
            lengths.replay(one.worker, place < there, random.Random(f"steps {seed} {place}"))
            for place, one in enumerate(crew)
        ]

    return [_predict(run, one, crew, steps(), bytes_per_s, steps_max) for one in strategies]


def _in_order(one: StepTimes) -> list[tuple[float, bool]]:
    """How long a worker's steps took, as they came, and whether they were finished; the others were called off."""
    steps = [(seconds, True) for seconds in one.seconds]
    for lost in reversed(one.called_off):
        steps.insert(lost.after, (lost.seconds, False))
    return steps


class _Lengths:
    """How long steps are, from all there were of each worker."""

    def __init__(self, workers: Sequence[StepTimes]) -> None:
        self._steps = {one.worker: _in_order(one) for one in workers}
        everybody = list(chain.from_iterable(self._steps.values()))
        self._ranked = {who: sorted(own) for who, own in {**self._steps, EVERYBODY: everybody}.items()}

    def replay(self, worker: int, measured: bool, rng: random.Random) -> Iterator[float]:
        """The steps of a worker that was `measured`, then steps drawn from them; of any further worker only the first.

        The first step is taken once and never drawn: whatever is made ready in it is made ready once.
        """
        own = self._steps[worker]
        drawn = own[1:] or own
        for step in own if measured else own[:1]:
            yield self._length(worker, step, rng)
        while True:
            yield self._length(worker, rng.choice(drawn), rng)

    def _length(self, worker: int, step: tuple[float, bool], rng: random.Random) -> float:
        """One that was called off is as long as one of the longer ones: the worker's own if there is one, or anybody's.

        This draws from Kaplan and Meier's estimate of the distribution: redistribution to the right, Efron 1967.
        """
        seconds, finished = step
        while not finished:
            for who in (worker, EVERYBODY):
                ranked = self._ranked[who]
                shorter = bisect_right(ranked, (seconds, True))
                if shorter < len(ranked):
                    seconds, finished = ranked[rng.randrange(shorter, len(ranked))]
                    break
            else:
                return seconds  # nobody took longer: so long at least
        return seconds


def _predict(
    run: Measured,
    strategy: Strategy,
    crew: Sequence[StepTimes],
    steps: Sequence[Iterator[float]],
    bytes_per_s: float | None,
    steps_max: int,
) -> Prediction:
    from plesio.launch.simulated.virtual import VirtualRun  # many modules, and most advice is given without
    from plesio.launch.simulated.workers import TimedWorker

    if strategy.every.by_client:
        raise ConfigurationError(
            f"{strategy.name}: it exchanges when a client ends, and the run had none; simulate it instead"
        )
    nbytes, plain = max(1, run.nbytes), run.plain_nbytes or run.nbytes
    of_part = plain / strategy.send.fragments
    push, answer = (max(1, round(of_part * share_of(one.codec))) for one in (strategy.send, strategy.adopt))
    ring = strategy.via.by_collective
    part = min(1.0, steps_max / run.steps)
    far = bytes_per_s is not None
    virtual = VirtualRun(
        strategy,
        _cluster(run, crew, ring, nbytes, bytes_per_s, part),
        [
            TimedWorker(Timetable(own.__next__), strategy, last, strategy.goes_on(one.away or far))
            for one, own, last in zip(crew, steps, _lasts(crew, part), strict=True)
        ],
        push_nbytes=push,
        answer_nbytes=answer,
        limits={"steps": min(run.steps, steps_max)},
        timeline=False,
    )
    final = virtual.run()
    useful = final.steps - sum(one.in_vain for one in final.workers)
    if useful <= 0 or not final.folded:
        raise ConfigurationError(
            f"{strategy.name}: nothing it does would count, of {run.steps:.0f} steps; run for longer"
        )
    total_s = sum(one.there_s for one in final.workers)
    left_out = _left_out(strategy, final, crew, useful)
    return Prediction(
        strategy=strategy.name,
        time_s=final.wall_s * run.steps / useful + _end_s(strategy, crew),
        steps_per_s=final.steps / final.wall_s,
        waiting_share=sum(one.wait_s for one in final.workers) / total_s if total_s else 0.0,
        staleness=final.staleness.mean,
        left_out=left_out,
        at_least=any(one.at_least for place, one in enumerate(crew) if place not in left_out),
        one_host=bytes_per_s is not None and strategy.via.in_shared_memory,
    )


def _left_out(strategy: Strategy, final: Final, crew: Sequence[StepTimes], useful: float) -> tuple[int, ...]:
    """Workers that computed more than twice as long as what counted of it takes."""
    cancels = strategy.release.cancel_late
    if not final.folded or not (final.discarded or cancels):
        return ()  # nothing was lost
    steps = useful / final.folded  # in a contribution
    return tuple(k for k, one in enumerate(final.workers) if one.compute_s > 2 * one.folded * steps * crew[k].mean_s)


def _end_s(strategy: Strategy, crew: Sequence[StepTimes]) -> float:
    """How long the one farthest away still takes when the others are done: it is answered."""
    return 2 * max(one.latency_s for one in crew) if strategy.via.at_server else 0.0


def _lasts(crew: Sequence[StepTimes], part: float) -> list[float]:
    """How many steps each takes at most; as many as it likes where nobody would be left to go on."""
    if all(one.last is not None or one.died_s is not None for one in crew):
        return [inf] * len(crew)
    return [inf if one.last is None else part * one.last for one in crew]


def _cluster(
    run: Measured, crew: Sequence[StepTimes], ring: bool, nbytes: int, bytes_per_s: float | None, part: float
) -> Cluster:
    """Links on which an exchange takes what was measured; a ring takes as long as the longest exchange with the server."""
    carried = bytes_per_s or float("inf")
    served = nbytes / run.service_s if run.service_s else float("inf")
    latencies = [one.latency_s for one in crew]
    if ring:
        latencies = [2 * (run.service_s + max(latencies)) / (2 * (len(crew) - 1) or 1)] * len(crew)
    deaths = [Crash(worker=place, at_s=part * one.died_s) for place, one in enumerate(crew) if one.died_s is not None]
    return Cluster(
        tuple(Group(1, Constant(1.0), Link(own_s, carried)) for own_s in latencies),
        Link(bytes_per_s=min(served, carried)),
        tuple(deaths) if len(deaths) < len(crew) else (),
    )


def own_work(summary: Summary) -> bool:
    """Whether every worker did a number of steps of its own: there was no loader to share, and nothing else ended the run."""
    return not summary.samples and summary.ended == "finished"


def as_it_was(summary: Summary) -> Prediction:
    return Prediction(
        strategy=summary.strategy,
        time_s=summary.wall_s,
        steps_per_s=summary.steps_per_s,
        waiting_share=summary.waiting_share,
        staleness=summary.staleness.mean,
    )


def choose(ran: Prediction, others: Sequence[Prediction]) -> Prediction:
    """What to run: of all that are about as fast as the fastest, and faster than what ran, the tightest; else what ran.

    Faster than the replay of what ran, too, and by more than that is off: else the gain may be the model's alone. One that
    leaves a worker out is not chosen: that worker's data may be nobody else's. Nor is one for a single host, where links
    were asked about.
    """
    eligible = (one for one in others if not one.left_out and not one.one_host)
    rivals = [ran, *(one for one in eligible if one.strategy != ran.strategy)]
    shortest_s = min(one.time_s for one in rivals)
    least_s = min(ran.time_s / CLOSE, _replay(ran, others).time_s / max(CLOSE, _off(ran, others)))
    good = [one for one in rivals if one.time_s <= CLOSE * shortest_s and one.time_s < least_s]
    order = {name: place for place, name in enumerate(RECIPES)}  # from those in lock step on; one's own comes last
    return min(good, key=lambda one: order.get(one.strategy.split("(")[0], len(order)), default=ran)


def _replay(ran: Prediction, others: Sequence[Prediction]) -> Prediction:
    """What ran, as the model has it."""
    return next((one for one in others if one.strategy == ran.strategy), ran)


def _off(ran: Prediction, others: Sequence[Prediction]) -> float:
    """How many times too short or too long the replay of what ran is."""
    ratio = _replay(ran, others).time_s / ran.time_s
    return max(ratio, 1 / ratio)


def recommendation(run: Measured, ran: Prediction, others: Sequence[Prediction]) -> str:
    """What to run and why, in words; where other workers or links are assumed, `ran` is one of the `others`, its replay."""
    if why := misfit(run, ran, others):
        return f"No recommendation: {why}. The forecasts may be off by more; simulate the strategies, or try them."
    best = choose(ran, others)
    if best is ran:
        off = _off(ran, others)
        if off <= CLOSE:
            return f"Keep {ran.strategy}: no other of these would have been {CLOSE - 1:.0%} faster."
        faster = f"no other of these would have been {off:.1f} times faster"
        return f"Keep {ran.strategy}: {faster}. Less cannot be told: {_replayed(ran, others)}."
    took = f"{'at least ' if best.at_least else ''}{duration(best.time_s, 1)}"
    waited = "would have waited" if any(one is ran for one in others) else "waited"
    again = f" ({duration(_replay(ran, others).time_s, 1)} in its replay)" if _off(ran, others) > CLOSE else ""
    return (
        f"{_cause(run)}{ran.strategy} {waited} {percent(ran.waiting_share)} of the time; {best.strategy} would have taken "
        f"{took} instead of {duration(ran.time_s, 1)}{again}, at a mean staleness of {best.staleness:.1f}."
    )


def misfit(run: Measured, ran: Prediction, others: Sequence[Prediction]) -> str:
    """Why the model is not to be trusted with this run, if it is not."""
    if run.unexplained > EXPLAINS:
        return (
            f"the time of an exchange varies by {percent(run.unexplained)}, more than a forecast can take into account"
        )
    if _off(ran, others) > FITS:
        return f"the measured times do not fit the model, for {_replayed(ran, others)}"
    return ""


def _replayed(ran: Prediction, others: Sequence[Prediction]) -> str:
    replay_s = _replay(ran, others).time_s
    return f"the replay of what ran takes {duration(replay_s, 1)} instead of {duration(ran.time_s, 1)}"


def _cause(run: Measured) -> str:
    """Who is far away or slow, if somebody is, or that the server is."""
    usual_s, near_s = median(one.mean_s for one in run.workers), median(one.latency_s for one in run.workers)
    far = [one for one in run.workers if one.latency_s > max(UNEVEN * near_s, usual_s / 2)]
    if far:
        more = f" and {len(far) - 1} more" if len(far) > 1 else ""
        longest_s = 2 * max(one.latency_s for one in far)
        return f"An exchange of worker {far[0].worker}{more} takes {duration(longest_s, 3)}, more than a usual step: "
    means = {one.worker: one.mean_s for one in run.workers}
    slow = max(means, key=lambda worker: means[worker])
    others = [mean_s for worker, mean_s in means.items() if worker != slow]
    if others and means[slow] > UNEVEN * median(others):
        least = "at least " if any(one.at_least for one in run.workers if one.worker == slow) else ""
        return f"Worker {slow} is {least}{means[slow] / median(others):.1f} times slower than the others: "
    if run.service_s * sum(1 / mean_s for mean_s in means.values()) > 1:
        return f"Exchanges take {run.service_s * 1e3:.2g} ms each, one after the other, longer than steps leave them: "
    return ""


def usual_rivals(ran_with: Strategy | None) -> list[Strategy]:
    """What a run is compared with unasked, and what it `ran_with`, if that is known."""
    asked = [sync_sgd(), async_sgd(), local_sgd(16)]
    known = {one.name for one in asked}
    return asked if ran_with is None or ran_with.name in known else [*asked, ran_with]


def advice(summary: Summary, ran_with: Strategy | None = None) -> str | None:
    """One line, if another strategy would have been at least `MUCH` times faster; made to cost a fraction of a second.

    Faster than the replay of what it `ran_with`, too, if that is given. Nothing is faster than the ideal, workers that always
    compute, and nobody takes over steps where each worker had its own.
    """
    many = 1 < len(summary.workers) <= ADVICE_WORKERS
    if not many or summary.wall_s < ADVICE_S or summary.ideal_share * MUCH > 1 or own_work(summary):
        return None
    try:
        run = measured(summary)
        others = what_if(run, usual_rivals(ran_with), steps_max=ADVICE_STEPS)
    except (ConfigurationError, StrategyError):
        return None  # too little was measured
    ran = as_it_was(summary)
    if why := misfit(run, ran, others):
        return f"No other strategy is recommended: {why}. Measure: plesio compare."
    if choose(ran, others).time_s * MUCH > min(ran.time_s, _replay(ran, others).time_s):
        return None
    return f"{recommendation(run, ran, others)} (Equal samples, not equal accuracy; see plesio whatif.)"
