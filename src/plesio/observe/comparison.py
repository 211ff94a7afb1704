"""The columns in which strategies are compared, in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from plesio.observe.amounts import byte_size, number, of_ideal, percent
from plesio.observe.summary import Summary

Target = tuple[str, float]


def metric_of(summaries: Sequence[Summary], target: Target | None) -> str | None:
    """The metric that is shown: the target's, else accuracy, else the first that was evaluated."""
    if target is not None:
        return target[0]
    evaluated = [name for one in summaries for evaluation in one.history for name in evaluation.metrics]
    return "accuracy" if "accuracy" in evaluated else next(iter(evaluated), None)


class Compared(NamedTuple):
    """A column: its heading, as a terminal breaks it; how many are more important; what it shows of a run."""

    heading: str
    place: int
    of: Callable[[Summary], str]


def columns(target: Target | None, metric: str | None) -> list[Compared]:
    """The columns after a strategy's name."""
    final = f"{metric}\nat end" if metric else "metric"
    time = f"time to\n{target[0]}\n{target[1]:g}" if target else "time"
    return [
        Compared(
            time, 0, lambda one: f"> {number(one.wall_s)} s" if (s := time_of(one, target)) is None else f"{s:.2f} s"
        ),
        Compared("steps\n/s", 5, lambda one: number(one.steps_per_s, 2)),
        Compared("of\nideal", 2, of_ideal),
        Compared("waiting", 3, lambda one: percent(one.waiting_share)),
        Compared("staleness\nmean/max", 4, lambda one: f"{one.staleness.mean:.2f}/{one.staleness.max}"),
        Compared("bytes", 6, lambda one: byte_size(one.bytes)),
        Compared(final, 1, lambda one: number(one.final(metric) if metric else None, 4)),
        Compared("folded", 7, lambda one: f"{one.folded:,}"),
        Compared("dis-\ncarded", 8, lambda one: f"{sum(one.discarded.values()):,}"),
        Compared("samples", 9, lambda one: f"{one.samples:,}"),
    ]


def in_a_line(heading: str) -> str:
    """A column's name without the line breaks.

    >>> in_a_line("dis-\\ncarded"), in_a_line("of\\nideal"), in_a_line("steps\\n/s")
    ('discarded', 'of ideal', 'steps/s')
    """
    return heading.replace("-\n", "").replace("\n/", "/").replace("\n", " ")


def cells(
    summary: Summary, target: Target | None, metric: str | None, spread: tuple[float, float] | None = None
) -> list[str]:
    """A strategy's row; `spread`: the least and the greatest time of several runs."""
    time, *others = (one.of(summary) for one in columns(target, metric))
    return [time + _between(spread), *others]


def time_of(summary: Summary, target: Target | None) -> float | None:
    """Seconds to the target, if it was reached; without a target the whole run's."""
    return summary.time_to(*target) if target else summary.wall_s


def _between(spread: tuple[float, float] | None) -> str:
    """
    >>> _between((1.4, 1.51)), _between((1.4, inf)), _between(None)
    (' (1.40-1.51)', ' (from 1.40)', '')
    """
    if spread is None or spread[0] == inf:
        return ""
    return f" ({spread[0]:.2f}-{spread[1]:.2f})" if spread[1] < inf else f" (from {spread[0]:.2f})"


def on_staleness(strategy: str) -> list[str]:
    """Why staleness is above what a strategy of this name, or a phase of it, bounds."""
    if "bounded_staleness" not in strategy:
        return []
    return [
        "Staleness counts versions, which all workers make; bounded_staleness(s) bounds by how many steps a worker is ahead."
    ]
