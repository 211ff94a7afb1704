"""What other strategies would make of a run under way: what its workers did lately, replayed by `what_if`.

It takes about half a second for 8 workers and 3 strategies. So whoever asks does so now and then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plesio.errors import ConfigurationError, StrategyError
from plesio.launch.simulated.whatif import ADVICE_STEPS, Prediction, choose, misfit, replay_of, usual_rivals, what_if
from plesio.observe.amounts import duration
from plesio.observe.summary import Span, Staleness, Summary
from plesio.observe.times import Measured, measured
from plesio.protocol.launcher import Lately
from plesio.strategy import Strategy
from plesio.strategy.measured import how_near

BETTER = 1.25
"""An advice is given from so many times the samples a second on."""


def forecast(
    lately: Lately, ran_with: Strategy, others: Sequence[Strategy]
) -> tuple[Measured, Prediction, list[Prediction]]:
    """What was measured, how it went, and how it would have gone: in seconds for `ADVICE_STEPS` steps.

    Raises:
        ConfigurationError: too little was measured, or nothing of what a strategy does would count.
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
    return run, ran, what_if(run, others, steps_max=ADVICE_STEPS)


def _pace(spans: Sequence[Span]) -> float:
    """A worker's steps a second, from the end of one stretch of computing to that of another."""
    made = [span for span in spans if span.steps]
    if len(made) == 1:
        return made[0].steps / (made[0].end_s - made[0].start_s)
    return sum(span.steps for span in made[1:]) / (made[-1].end_s - made[0].end_s)


def advice_lately(lately: Lately, ran_with: Strategy, workers: int) -> str:
    """One line, if another strategy would be `BETTER` times as fast at the speeds that workers have now; else nothing.

    Where the workers compute nearly all the time no strategy can be, and nothing is replayed.
    """
    busy_s = sum(span.end_s - span.start_s for span in lately.spans if span.steps)
    total_s = sum(span.end_s - span.start_s for span in lately.spans)
    if len(lately.workers) < 2 or busy_s * BETTER > total_s or not any(one.samples for one in lately.workers):
        return ""
    try:
        run, ran, others = forecast(lately, ran_with, usual_rivals(ran_with))
    except (ConfigurationError, StrategyError):
        return ""  # too little was measured
    best = choose(ran, others)
    gain = min(ran.time_s, replay_of(ran, others).time_s) / best.time_s
    if gain < BETTER or misfit(run, ran, others):
        return ""
    seconds = max(span.end_s for span in lately.spans) - min(span.start_s for span in lately.spans)
    return (
        f"At the speeds of the last {duration(seconds)} {best.strategy} would make {gain:.1f} times as many samples a second "
        f"as {ran.strategy}. How many it needs for the same accuracy is not known "
        f"(docs/convergence.md: {how_near(best.strategy, workers)})."
    )
