"""The figures of a report: learning curves, the workers' time, staleness. From `Summary` to HTML, through `svg`.

A figure without data becomes a sentence that says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import starmap

from plesio.observe import svg
from plesio.observe.amounts import percent
from plesio.observe.summary import EXTREMES, Summary, WorkerSummary, telling
from plesio.observe.svg import number

Target = tuple[str, float]
Curve = tuple[tuple[float, float], ...]

_HISTOGRAM_ROWS_MAX = 8
_BINS_MAX = 64
_LOGGED_BINS = 120
_LOGGED_MAX = 6
_LOG_DECADES = 1.5
_WINDOW_S = 2.0
_WINDOW_STEPS = 12
_VISIBLE = 0.02


def metrics(summaries: Sequence[Summary], target: Target | None) -> list[str]:
    """The evaluated metrics, the target's first."""
    found = {metric: None for s in summaries for evaluation in s.history for metric in evaluation.metrics}
    return sorted(found, key=lambda metric: target is None or metric != target[0])


def learning(summaries: Sequence[Summary], target: Target | None) -> Iterator[str]:
    """Every evaluated metric, the training loss and other logged metrics over time; one line per strategy."""
    yield "<h2>Learning over time</h2>"
    names = metrics(summaries, target)
    longest_s, time = max(s.wall_s for s in summaries), time_name(summaries)
    if not names:
        yield '<p class="empty">No evaluations were recorded, so there is no metric to draw over time.</p>'
    for metric in names:
        value = target[1] if target and metric == target[0] else None
        series = [_metric_series(k, s, metric, value) for k, s in enumerate(summaries)]
        words = f"The global parameters' {metric}, evaluated on {_snapshots(summaries)}."
        if any(one.dots for one in series):
            words += " A dot is the first evaluation at the target."
        yield _figure(series, metric, value, words, longest_s, time)
    series = [svg.Series(k, s.strategy, _smooth(_logged(s, "loss"))) for k, s in enumerate(summaries)]
    words = "Training loss as the workers logged it: their mean, lightly smoothed."
    yield _figure(series, "training loss", None, words, longest_s, time)
    others = sorted({name for s in summaries for one in s.logged for name in one.metrics} - {"loss"})
    for name in others[:_LOGGED_MAX]:
        series = [svg.Series(k, s.strategy, _logged(s, name)) for k, s in enumerate(summaries)]
        words = f"{name} as the workers logged it: their mean."
        figure = _figure(series, f"{name}, logged", None, words, longest_s, time)
        yield figure.replace("<figure>", '<figure class="half">', 1)
    if more := others[_LOGGED_MAX:]:
        yield f'<p class="empty">Logged, too, and not drawn: {escape(", ".join(more))}.</p>'


def _snapshots(summaries: Sequence[Summary]) -> str:
    """The kind of snapshot in words: under hogwild, workers write while it is copied."""
    torn = [s.strategy for s in summaries if s.recipe == "hogwild" and s.clock == "wall"]
    if not torn:
        return "consistent snapshots"
    why = "may be torn, part one version and part the next, as others write meanwhile"
    if len(torn) == len(summaries):
        return f"snapshots that {why}"
    return f"consistent snapshots; those of {', '.join(torn)} {why}"


def time_name(summaries: Sequence[Summary]) -> str:
    """The clock of these runs: "wall time", or "virtual time" if they were simulated."""
    return " and ".join(dict.fromkeys(f"{s.clock} time" for s in summaries))


def _metric_series(index: int, s: Summary, metric: str, target: float | None) -> svg.Series:
    points = tuple((one.time_s, one.metrics[metric]) for one in s.history if metric in one.metrics)
    time_s = None if target is None else s.time_to(metric, target)
    return svg.Series(index, s.strategy, points, tuple(p for p in points if p[0] == time_s)[:1])


def _logged(s: Summary, name: str) -> Curve:
    """A logged number, averaged over workers in bins of time."""
    logged = [entry for entry in s.logged if name in entry.metrics]
    if not logged:
        return ()
    count = min(_LOGGED_BINS, max(1, len(logged) // len({entry.worker for entry in logged})))
    width = max(entry.time_s for entry in logged) / count or 1.0
    bins: dict[int, list[float]] = {}
    for entry in logged:
        total = bins.setdefault(min(int(entry.time_s / width), count - 1), [0.0, 0.0, 0.0])
        weight = max(entry.steps, 1)
        for position, amount in enumerate((entry.time_s, entry.metrics[name], 1.0)):
            total[position] += weight * amount
    return tuple((time / weight, value / weight) for _, (time, value, weight) in sorted(bins.items()))


def _smooth(raw: Curve) -> Curve:
    """Each point averaged with its neighbours (1, 2, 1)."""
    if not raw:
        return ()
    losses = [raw[0][1], *(loss for _, loss in raw), raw[-1][1]]
    smooth = [(losses[k] + 2 * loss + losses[k + 2]) / 4 for k, (_, loss) in enumerate(raw)]
    # A non-finite loss breaks the line at its own place only.
    return tuple((time, mean if math.isfinite(mean) else loss) for (time, loss), mean in zip(raw, smooth, strict=True))


def _figure(
    series: Sequence[svg.Series], name: str, target: float | None, words: str, longest_s: float, time: str
) -> str:
    """A line chart of the series with data; its caption names those without."""
    values = {one.index: [y for _, y in one.points if math.isfinite(y)] for one in series}
    drawn = [one for one in series if values[one.index]]
    missing = [one.name for one in series if not values[one.index]]
    if not drawn:
        return f'<p class="empty">No finite {escape(name)} was recorded, so there is no curve to draw.</p>'
    ys = [y for one in drawn for y in values[one.index]]
    log = "loss" in name and min(ys) > 0 and math.log10(max(ys) / min(ys)) > _LOG_DECADES
    factor, unit = _time_unit(max(longest_s, *(x for one in drawn for x, _ in one.points)))
    drawn = [
        svg.Series(one.index, one.name, *(tuple((x / factor, y) for x, y in some) for some in (one.points, one.dots)))
        for one in drawn
    ]
    chart = svg.line_chart(
        drawn, x_name=f"{time}, {unit}", y_name=name, x_high=longest_s / factor, target=target, log=log
    )
    if missing:
        words += f" Nothing to draw for {', '.join(missing)}."
    return f"<figure>{chart}<figcaption>{escape(words)}</figcaption></figure>"


def _time_unit(longest_s: float) -> tuple[float, str]:
    if longest_s < 600:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 3 * 3600 else (3600.0, "h")


def timelines(summaries: Sequence[Summary]) -> str:
    """One lane per worker over a window in the middle of each run, of the same length for all strategies."""
    heading = "<h2>Where the workers' time went</h2>"
    drawn = [(k, s) for k, s in enumerate(summaries) if s.timeline]
    if not drawn:
        return f'{heading}<p class="empty">No timeline was recorded.</p>'
    length = _window([s for _, s in drawn])
    axis = svg.linear_axis(0.0, length, 8, tight=True)
    kinds = [("compute", "computing"), ("wait", "waiting for others"), ("exchange", "exchanging: push, fold, pull")]
    shown = [(k, s, *_shown(s, length)) for k, s in drawn]
    if any(lane.count("") > _VISIBLE * len(lane) for *_, lanes in shown for _, lane in lanes):
        kinds.append(("none", "gone, or nothing recorded"))
    legend = "".join(f'<span><i class="k-{kind}"></i>{word}</span>' for kind, word in kinds)
    groups = "".join(starmap(_lanes, shown))
    run = "each run" if len(summaries) > 1 else "the run"
    words = f"{length:.2g} s from the middle of {run}, one lane a worker. Right: waiting over the whole run."
    missing = [s.strategy for s in summaries if not s.timeline]
    if missing:
        words += f" No timeline was recorded for {', '.join(missing)}."
    return (
        f'{heading}<figure><div class="kinds">{legend}</div>{groups}<div class="row"><span></span>'
        f'<div class="under">{svg.ticks_below(axis)}<span class="x-name">seconds into the window</span></div>'
        f"<span></span></div><figcaption>{escape(words)}</figcaption></figure>"
    )


def _window(summaries: Sequence[Summary]) -> float:
    """The window's seconds: about a dozen steps of the slowest worker."""
    longest = max(_typical_step(s) for s in summaries)
    shortest_run = min(_extent(s)[1] - _extent(s)[0] for s in summaries)
    wanted = max(min(_WINDOW_STEPS * longest, _WINDOW_S), 1.5 * longest) or _WINDOW_S
    wanted = float(f"{wanted:.2g}")
    return wanted if shortest_run <= 0 else min(wanted, shortest_run)


def _typical_step(s: Summary) -> float:
    """The median compute span of the worker whose median is longest."""
    spans: dict[int, list[float]] = {}
    for span in s.timeline:
        if span.kind == "compute":
            spans.setdefault(span.worker, []).append(span.end_s - span.start_s)
    return max((sorted(lengths)[len(lengths) // 2] for lengths in spans.values()), default=0.0)


def _extent(s: Summary) -> tuple[float, float]:
    return min(span.start_s for span in s.timeline), max(span.end_s for span in s.timeline)


def _shown(s: Summary, length: float) -> tuple[float, list[tuple[WorkerSummary, list[str]]]]:
    """Where the window of a run begins, and the lanes of the workers to show."""
    begin, end = _extent(s)
    start = max(begin, (begin + end - length) / 2)
    spans: dict[int, list[tuple[str, float, float]]] = {}
    for span in s.timeline:
        spans.setdefault(span.worker, []).append((span.kind, span.start_s, span.end_s))
    workers = telling([one for one in s.workers if one.worker in spans])
    return start, [(one, svg.columns(spans[one.worker], start, length)) for one in workers]


def _lanes(index: int, s: Summary, start: float, lanes: Sequence[tuple[WorkerSummary, list[str]]]) -> str:
    rows = (
        f'<div class="row"><span>worker {one.worker}</span>{svg.lane(lane)}'
        f"<span>{escape(percent(one.waiting_share))} waiting</span></div>"
        for one, lane in lanes
    )
    workers = len({span.worker for span in s.timeline})
    more = f"; of {workers} workers the {EXTREMES} slowest and the {EXTREMES} fastest" if workers > len(lanes) else ""
    about = f"waiting {percent(s.waiting_share)}, from {number(round(start, 3))} s{more}"
    head = f"<h3>{svg.named(index, s.strategy)}<small>{escape(about)}</small></h3>"
    return f'<div class="lanes">{head}{"".join(rows)}</div>'


def staleness(summaries: Sequence[Summary]) -> str:
    """A histogram for each worker of each strategy with any staleness; a sentence names the others."""
    stale = [(k, s) for k, s in enumerate(summaries) if s.staleness.max > 0 and s.staleness.by_worker]
    fresh = [s.strategy for s in summaries if s.staleness.max == 0 and s.folded > 0]
    unknown = [s.strategy for s in summaries if not (s.staleness.by_worker if s.staleness.max > 0 else s.folded > 0)]
    parts = ["<h2>Staleness</h2>"]
    if fresh:
        parts.append(f"<p>Every contribution was fresh (staleness 0): {escape(', '.join(fresh))}.</p>")
    if unknown:
        parts.append(f'<p class="empty">No staleness was recorded: {escape(", ".join(unknown))}.</p>')
    if stale:
        limit = max(min(s.staleness.max, max(8, s.staleness.p99 * 3 // 2)) for _, s in stale)
        panels = "".join(_panel(k, s, limit) for k, s in stale)
        cut = any(s.staleness.max > limit for _, s in stale)
        beyond = f" The last bar holds all that is staler than {limit:,} too." if cut else ""
        parts.append(
            f'<figure><div class="panels">{panels}</div><figcaption>Staleness of the folded contributions. '
            f"A bar is a share of that worker's contributions (of all, where there are more than {_HISTOGRAM_ROWS_MAX} workers); "
            "heights compare within a strategy, "
            f"the horizontal scale is the same for all.{beyond}</figcaption></figure>"
        )
    return "".join(parts)


def _panel(index: int, s: Summary, limit: int) -> str:
    width = max(1, math.ceil((limit + 1) / _BINS_MAX))
    bins = limit // width + 1
    by_worker = {worker: by_tau for worker, by_tau in sorted(s.staleness.by_worker.items()) if by_tau}
    named = {f"worker {worker}": by_tau for worker, by_tau in by_worker.items()}
    if len(named) > _HISTOGRAM_ROWS_MAX:
        named = {"all": dict(sum(map(Counter, by_worker.values()), Counter()))}
    counts = {name: sum(by_tau.values()) for name, by_tau in named.items()}
    shares = {name: [n / counts[name] for n in _binned(by_tau, width, bins)] for name, by_tau in named.items()}
    top = max(map(max, shares.values()))
    rows = []
    for name, by_tau in named.items():
        mean = sum(tau * n for tau, n in by_tau.items()) / counts[name]
        bars = svg.bars(shares[name], top, f"{name}: mean {mean:.2f}, max {max(by_tau)}")
        rows.append(f'<div class="row"><span>{name}</span>{bars}<span>mean {number(mean, 2)}</span></div>')
    axis = svg.linear_axis(0.0, float(bins * width), 4, tight=True)
    ticks = "".join(_bin_label(value, text, width, bins) for value, text in axis.ticks)
    about = f"mean {s.staleness.mean:.2f}, max {s.staleness.max:,}"
    return (
        f"<div><h3>{svg.named(index, s.strategy)}<small>{about}</small></h3>"
        f'<div class="{svg.colour(index)}">{"".join(rows)}</div>'
        f'<div class="row"><span></span><div class="under">{ticks}</div><span>versions</span></div></div>'
    )


def _binned(by_tau: dict[int, int], width: int, bins: int) -> list[int]:
    row = [0] * bins
    for tau, count in by_tau.items():
        row[min(tau // width, bins - 1)] += count
    return row


def _bin_label(value: float, text: str, width: int, bins: int) -> str:
    """A tick under the middle of its bin."""
    position = value / width
    if position > bins - 1 or value != int(value):
        return ""
    return f'<span style="left:{100 * (int(position) + 0.5) / bins:.1f}%">{text}</span>'
