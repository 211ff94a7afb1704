"""The columns in which strategies are compared, in the terminal and in the report."""

from __future__ import annotations

from math import inf, isfinite

from plesio.observe.amounts import byte_size, number, of_ideal, percent, rate
from plesio.observe.summary import Summary

Target = tuple[str, float]


def headings(target: Target | None, metric: str | None) -> list[str]:
    """The columns' names; a terminal breaks their lines."""
    time = f"time to\n{target[0]}\n{target[1]:g}" if target else "time"
    final = f"{metric}\nat end" if metric else "metric"
    counts = ["folded", "dis-\ncarded", "samples"]
    return [time, "steps\n/s", "of\nideal", "waiting", "staleness\nmean/max", "bytes", final, *counts]


def in_a_line(heading: str) -> str:
    """A column's name without the line breaks.

    >>> in_a_line("dis-\\ncarded"), in_a_line("of\\nideal")
    ('discarded', 'of ideal')
    """
    return heading.replace("-\n", "").replace("\n", " ")


def cells(
    summary: Summary, target: Target | None, metric: str | None, spread: tuple[float, float] | None = None
) -> list[str]:
    """A strategy's row; `spread`: the least and the greatest time of several runs."""
    final = summary.final(metric) if metric else None
    return [
        _time(summary, time_of(summary, target)) + _between(spread),
        rate(summary.steps_per_s),
        of_ideal(summary),
        percent(summary.waiting_share),
        f"{summary.staleness.mean:.2f}/{summary.staleness.max}",
        byte_size(summary.bytes),
        "-" if final is None else _metric(final),
        f"{summary.folded:,}",
        f"{sum(summary.discarded.values()):,}",
        f"{summary.samples:,}",
    ]


def time_of(summary: Summary, target: Target | None) -> float | None:
    """Seconds to the target, if it was reached; without a target the whole run's."""
    return summary.time_to(*target) if target else summary.wall_s


def _time(summary: Summary, time: float | None) -> str:
    if time is None:
        return f"> {summary.wall_s:.{0 if summary.wall_s >= 10 else 1}f} s"  # not reached
    return f"{time:.2f} s"


def _between(spread: tuple[float, float] | None) -> str:
    """
    >>> _between((1.4, 1.51)), _between((1.4, inf)), _between(None)
    (' (1.40-1.51)', ' (from 1.40)', '')
    """
    if spread is None or spread[0] == inf:
        return ""
    return f" ({spread[0]:.2f}-{spread[1]:.2f})" if spread[1] < inf else f" (from {spread[0]:.2f})"


def on_staleness(recipe: str) -> list[str]:
    """Why staleness is above what a strategy bounds."""
    if recipe != "bounded_staleness":
        return []
    return [
        "Staleness counts versions, which all workers make; bounded_staleness(s) bounds by how many steps a worker is ahead."
    ]


def _metric(value: float) -> str:
    """Four decimals for values of usual size, else four digits.

    >>> _metric(0.95), _metric(3.2e-5), _metric(9.6e29)
    ('0.9500', '3.200e-05', '9.600e+29')
    """
    return f"{value:.4f}" if value == 0 or 0.01 <= abs(value) < 1e6 or not isfinite(value) else number(value, 4)
