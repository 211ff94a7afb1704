"""What other strategies would make of a run under way: what its workers did lately, replayed by `what_if`.

It takes about half a second for 8 workers and 3 strategies. So whoever asks does so now and then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plesio.core.choosing import Chooser
from plesio.errors import ConfigurationError, StrategyError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.whatif import ADVICE_STEPS, Prediction, choose, misfit, replay_of, usual_rivals, what_if
from plesio.observe.amounts import duration
from plesio.observe.summary import Span, Staleness, Summary
from plesio.observe.times import Measured, measured
from plesio.protocol.launcher import Lately
from plesio.strategy import Strategy
from plesio.strategy.choosing import Choosing
from plesio.strategy.measured import how_near

BETTER = 1.25
"""An advice is given from so many times the samples a second on."""


def forecast(
    lately: Lately, ran_with: Strategy, others: Sequence[Strategy]
) -> tuple[Measured, Prediction, list[Prediction]]:
    """What was measured, how it went, and how it would have gone under those that can: in seconds for `ADVICE_STEPS` steps.

    Raises:
        ConfigurationError: too little was measured.
    """
    steps = sum(span.steps for span in lately.spans)
    made = sum(span.steps > 0 for span in lately.spans)
    summary = Summary(
        strategy=ran_with.name, recipe=ran_with.recipe, workers=lately.workers, wall_s=0.0, version=0, steps=steps,
        samples=0, folded=made, discarded={}, bytes=2 * made * lately.nbytes, plain_bytes=lately.plain_bytes,
        served_s=made * lately.served_s, staleness=Staleness(), timeline=lately.spans,
    )  # fmt: skip
    run = msgspec.structs.replace(measured(summary), steps=ADVICE_STEPS)
    pace = sum(_pace(spans) for spans in summary.spans_by_worker.values())
    ran = Prediction(
        strategy=ran_with.name, time_s=ADVICE_STEPS / pace, steps_per_s=pace, waiting_share=0.0, staleness=0.0
    )
    return run, ran, [found for one in others for found in _replayed(run, one)]


def _replayed(run: Measured, strategy: Strategy) -> list[Prediction]:
    """How it would go; nothing where it cannot with these workers, or nothing it does would count."""
    try:
        return what_if(run, [strategy], steps_max=ADVICE_STEPS)
    except (ConfigurationError, StrategyError):
        return []


def _pace(spans: Sequence[Span]) -> float:
    """A worker's steps a second, from the end of one stretch of computing to that of another."""
    made = [span for span in spans if span.steps]
    if len(made) == 1:
        return made[0].steps / (made[0].end_s - made[0].start_s)
    return sum(span.steps for span in made[1:]) / (made[-1].end_s - made[0].end_s)


def may_gain(lately: Lately, times: float) -> bool:
    """Whether workers that always compute would be so many times as fast: nothing is faster."""
    busy_s = sum(span.end_s - span.start_s for span in lately.spans if span.steps)
    return len(lately.workers) > 1 and busy_s * times < sum(span.end_s - span.start_s for span in lately.spans)


def _window(lately: Lately) -> str:
    return duration(max(span.end_s for span in lately.spans) - min(span.start_s for span in lately.spans))


def advice_lately(lately: Lately, ran_with: Strategy, workers: int) -> str:
    """One line, if another strategy would be `BETTER` times as fast at the speeds that workers have now; else nothing.

    Where the workers compute nearly all the time no strategy can be, and nothing is replayed.
    """
    if not may_gain(lately, BETTER) or not any(one.samples for one in lately.workers):
        return ""
    try:
        run, ran, others = forecast(lately, ran_with, usual_rivals(ran_with))
    except ConfigurationError:
        return ""  # too little was measured
    best = choose(ran, others)
    gain = min(ran.time_s, replay_of(ran, others).time_s) / best.time_s
    if gain < BETTER or misfit(run, ran, others):
        return ""
    return (
        f"At the speeds of the last {_window(lately)} {best.strategy} would make {gain:.1f} times as many samples a second "
        f"as {ran.strategy}. How many it needs for the same accuracy is not known "
        f"(docs/convergence.md: {how_near(best.strategy, workers)})."
    )


class Automatic:
    """Chooses among the phases of a strategy (`plesio.auto`), from what the workers did lately."""

    def __init__(self, strategy: Strategy, rules: Choosing) -> None:
        self._phases, self._rules = strategy.phases, rules
        self._chooser = Chooser(rules)

    def hear(self, now_s: float, lately: Lately, workers: int) -> tuple[int, str] | None:
        """The phase that the run with so many workers is to go over to, and why; None: it stays as it is."""
        speeds = self._forecast(lately, workers)
        wanted = self._chooser.hear(now_s, lately.phase, speeds)
        if wanted is None:
            return None
        there, present = speeds[wanted], speeds[lately.phase]
        assert there is not None, "it has a forecast"
        assert present is not None, "it has a forecast"
        times = (
            f"it makes {there / present:.2g} times as many samples a second at the speeds of the last {_window(lately)}"
        )
        return wanted, f"{times}, and is tighter" if wanted < lately.phase else times

    def _forecast(self, lately: Lately, workers: int) -> list[float | None]:
        """Steps a second in each phase; None where it is left out, or nobody can tell."""
        names, present = [one.name for one in self._phases], self._phases[lately.phase]
        unknown: list[float | None] = [None] * len(names)
        out = self._rules.left_out(names, workers)
        asked = [one for place, one in enumerate(self._phases) if place not in out or one is present]
        if asked[0] is present and not may_gain(lately, self._rules.better):
            return unknown
        try:
            run, ran, found = forecast(lately, present, asked)
        except ConfigurationError:
            return unknown  # too little was measured
        if misfit(run, ran, found):
            return unknown
        speeds = {one.strategy: run.steps / one.time_s for one in found if not one.left_out}
        return [speeds.get(name) for name in names]


def choose_in(run: VirtualRun, strategy: Strategy) -> None:
    """Have a run in virtual time choose among the phases of its strategy, if that says so."""
    rules = strategy.chooses
    if rules is None:
        return
    automatic = Automatic(strategy, rules)

    def choose(now_s: float) -> None:
        program = run.program
        found = automatic.hear(now_s, program.lately(now_s, rules.every_s), program.sequencer.workers)
        if found is not None:
            run.switch(*found)

    run.clock.repeat(rules.every_s, rules.every_s, choose)
