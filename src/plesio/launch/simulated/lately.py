"""How fast a run under way would be under other strategies: what its workers did lately, replayed by `what_if`.

It takes about half a second of computing for 8 workers and 3 strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from plesio.core.choosing import Chooser
from plesio.errors import ConfigurationError, StrategyError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.whatif import ADVICE_STEPS, CLOSE, Prediction, misfit, usual_rivals, what_if
from plesio.observe.amounts import duration
from plesio.observe.summary import Span, Summary
from plesio.observe.times import Measured, measured
from plesio.protocol.launcher import Lately, SwitchRequest
from plesio.strategy import Strategy
from plesio.strategy.measured import how_near

BETTER = 1.25
"""An advice is given from so many times the samples a second on."""


def speeds(lately: Lately, ran_with: Strategy, others: Sequence[Strategy]) -> dict[str, float]:
    """Steps a second of all workers under the others, by name.

    One that cannot run with these workers, or whose fold leaves one of them out, is missing. What the run went with is as fast as
    it was, or as its replay is, whichever is faster. Nothing is said where too little was measured, or where the two differ much.
    """
    summary = Summary.of(lately, strategy=ran_with.name, recipe=ran_with.recipe)
    try:
        run = msgspec.structs.replace(measured(summary), steps=ADVICE_STEPS)
    except ConfigurationError:
        return {}
    found = list(chain.from_iterable(_replayed(run, one) for one in others))
    pace = sum(map(_pace, summary.spans_by_worker.values()))
    ran = Prediction(
        strategy=ran_with.name, time_s=ADVICE_STEPS / pace, steps_per_s=pace, waiting_share=0.0, staleness=0.0
    )
    if misfit(run, ran, found):
        return {}
    forecast = {one.strategy: run.steps / one.time_s for one in found if not one.left_out}
    return forecast | {ran.strategy: max(pace, forecast.get(ran.strategy, 0.0))}


def _replayed(run: Measured, strategy: Strategy) -> list[Prediction]:
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


def _may_gain(lately: Lately, times: float) -> bool:
    """Whether workers that always compute would be so many times as fast: nothing is faster."""
    busy_s = sum(span.end_s - span.start_s for span in lately.timeline if span.steps)
    return len(lately.workers) > 1 and busy_s * times < sum(span.end_s - span.start_s for span in lately.timeline)


def _gain(lately: Lately, there: float, here: float) -> str:
    window_s = max(span.end_s for span in lately.timeline) - min(span.start_s for span in lately.timeline)
    return f"{there / here:.2g} times as many samples a second at the speeds of the last {duration(window_s)}"


def advice_lately(lately: Lately, ran_with: Strategy, workers: int) -> str:
    """One line, if another strategy would be `BETTER` times as fast; else nothing."""
    if not _may_gain(lately, BETTER) or not any(one.samples for one in lately.workers):
        return ""
    found = speeds(lately, ran_with, usual_rivals(ran_with))
    best = next((name for name, speed in found.items() if speed * CLOSE >= max(found.values())), "")
    if not best or found[best] < BETTER * found[ran_with.name]:
        return ""
    faster = f"{best} would make {_gain(lately, found[best], found[ran_with.name])}"
    accuracy = f"How many it needs for the same accuracy is not known (docs/convergence.md: {how_near(best, workers)})"
    return f"{faster}. {accuracy}."


class Automatic:
    """Chooses among the phases of a strategy (`plesio.auto`), from what the workers did lately."""

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.chooses is not None, "it says how"
        self._phases, self.rules = strategy.phases, strategy.chooses
        self._chooser = Chooser(self.rules)

    def hear(self, now_s: float, lately: Lately, workers: int) -> tuple[int, str] | None:
        """The phase that the run with so many workers is to go over to, and why; None: it stays as it is."""
        names, present = [one.name for one in self._phases], self._phases[lately.phase]
        out = self.rules.left_out(names, workers)
        asked = [one for place, one in enumerate(self._phases) if place not in out or one is present]
        gains = asked[0] is not present or _may_gain(lately, self.rules.better)
        found = speeds(lately, present, asked) if gains else {}
        wanted = self._chooser.hear(now_s, lately.phase, [found.get(name) for name in names])
        if wanted is None:
            return None
        tighter = ", and is tighter" if wanted < lately.phase else ""
        return wanted, f"it makes {_gain(lately, found[names[wanted]], found[present.name])}{tighter}"


def choose_in(run: VirtualRun, strategy: Strategy) -> None:
    """Have a run in virtual time choose among the phases of its strategy."""
    automatic = Automatic(strategy)
    every_s = automatic.rules.every_s

    def choose(now_s: float) -> None:
        found = automatic.hear(now_s, run.figures.lately(now_s, every_s), run.program.sequencer.workers)
        if found is not None:
            run.order(SwitchRequest(*found))

    run.clock.repeat(every_s, every_s, choose)
