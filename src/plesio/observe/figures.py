"""The figures of a report as plain data: learning curves, the workers' time, staleness. `page/report.js` draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from plesio.observe.amounts import number, percent
from plesio.observe.comparison import Target
from plesio.observe.logbook import LastLogged, LastSteps
from plesio.observe.rows import cells
from plesio.observe.summary import EXTREMES, Span, Summary, telling

Curve = list[tuple[float, float]]
Floats = npt.NDArray[np.float64]

POINTS_MAX = 2000  # points of a line in the page
LANE_COLUMNS = 900
KINDS = {"compute": "c", "wait": "w", "exchange": "e"}
"""The letter of each kind of span in a lane; a blank where nothing was recorded."""

_PROGRESS_POINTS = 300
_HISTOGRAM_ROWS_MAX = 8
AT_THE_END = "At the end, here and in the table: the mean over all workers' last steps."
_LOGGED_BINS = 120
_LOGGED_MAX = 6
_WINDOW_S = 2.0
_WINDOW_STEPS = 12


def strategy(s: Summary) -> dict[str, Any]:
    """A strategy's name, what it had spent by when, and its staleness: by worker, or of all if there are many."""
    by_worker = {f"worker {worker}": by_tau for worker, by_tau in sorted(s.staleness.by_worker.items()) if by_tau}
    if len(by_worker) > _HISTOGRAM_ROWS_MAX:
        by_worker = {"all": dict(sum(map(Counter, by_worker.values()), Counter()))}
    stale = {"mean": s.staleness.mean, "p99": s.staleness.p99, "max": s.staleness.max, "by_worker": by_worker}
    return {"name": s.strategy, "wall_s": s.wall_s, "folded": s.folded, "spent": _spent(s), "staleness": stale}


def rows(summaries: Sequence[Summary]) -> list[list[Any]]:
    """What became of the rows of tables: for each table the number of its strategy, its name and its figures."""
    return [[k, name, *cells(one)] for k, s in enumerate(summaries) for name, one in s.rows.items()]


def _spent(s: Summary) -> dict[str, list[float]]:
    """Samples, steps, rounds and bytes by time. Samples and rounds (versions) are as evaluated; a run's bytes are spread evenly
    over its steps."""
    evaluated = np.array([(0.0, 0.0, 0.0), *((one.time_s, one.samples, one.version) for one in s.history)])
    if s.history and s.history[0].version:  # resumed: the samples go on from the checkpoint's
        evaluated[0, 1:] = s.history[0].samples, s.history[0].version
    end_s = max(s.wall_s, evaluated[-1, 0], max((one.end_s for one in s.timeline), default=0.0))
    times = np.union1d(np.linspace(0.0, end_s, _PROGRESS_POINTS), _thin([(t, t) for t in evaluated[:, 0]])[0])
    steps = np.zeros(len(times))
    spans = s.spans_by_worker
    for worker in s.workers:
        own = [one for one in spans.get(worker.worker, []) if one.steps]
        ends = [0.0, *(one.end_s for one in own)]
        made = accumulate((one.steps for one in own), initial=0)
        steps += np.interp(times, [*ends, max(ends[-1], s.wall_s)], [*made, worker.steps])
    share = steps / steps[-1] if steps[-1] else times / (end_s or 1.0)
    samples, rounds = s.samples * share, s.version * share
    if s.history:
        samples, rounds = (np.interp(times, evaluated[:, 0], column) for column in evaluated[:, 1:].T)
    spent = {"time": times, "samples": samples, "steps": steps, "rounds": np.rint(rounds), "bytes": s.bytes * share}
    return {name: _short(values) for name, values in spent.items()}


def _short(values: Sequence[float] | Floats) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


# Learning


def learning(summaries: Sequence[Summary], target: Target | None) -> dict[str, Any]:
    """Charts of every evaluated metric, the training loss and other logged metrics; `notes` tell what is not drawn."""
    charts, notes = [], []
    evaluated = dict.fromkeys(name for s in summaries for one in s.history for name in one.metrics)
    for metric in sorted(evaluated, key=lambda name: target is None or name != target[0]):  # the target's first
        curves = [[(one.time_s, one.metrics[metric]) for one in s.history if metric in one.metrics] for s in summaries]
        goal = target if target and metric == target[0] else None
        words = f"The global parameters' {metric}, evaluated on {_snapshots(summaries)}."
        charts.append(_chart(summaries, metric, curves, words, goal))
    if not charts:
        notes.append("No evaluations were recorded, so there is no metric to draw.")
    last = [LastSteps(s.logged) for s in summaries]
    words = f"Training loss as the workers logged it: their mean, lightly smoothed. {AT_THE_END}"
    curves = [_smooth(_logged(s, "loss")) for s in summaries]
    charts.append(_chart(summaries, "training loss", curves, words, last=[one.of("loss") for one in last]))
    others = sorted({name for s in summaries for one in s.logged for name in one.metrics} - {"loss"})
    for name in others[:_LOGGED_MAX]:
        words, curves = f"{name} as the workers logged it: their mean.", [_logged(s, name) for s in summaries]
        ends = [one.of(name) for one in last]
        charts.append({**_chart(summaries, f"{name}, logged", curves, words, last=ends), "small": True})
    if more := others[_LOGGED_MAX:]:
        notes.append(f"Logged, too, and not drawn: {', '.join(more)}.")
    return {"charts": charts, "notes": notes}


def _snapshots(summaries: Sequence[Summary]) -> str:
    """The kind of snapshot in words: under hogwild, workers write while it is copied."""
    torn = [s.strategy for s in summaries if s.recipe == "hogwild" and s.clock == "wall"]
    if not torn:
        return "consistent snapshots"
    return f"snapshots; those of {', '.join(torn)} may be torn, part one version and part the next"


def _chart(
    summaries: Sequence[Summary],
    name: str,
    curves: Sequence[Curve],
    words: str,
    target: Target | None = None,
    last: Sequence[LastLogged | None] = (),
) -> dict[str, Any]:
    """The lines of the curves with finite values; the caption names the strategies without. `last`: of what was logged."""
    lines, missing = [], []
    for k, (s, curve) in enumerate(zip(summaries, curves, strict=True)):
        if not any(math.isfinite(y) for _, y in curve):
            missing.append(s.strategy)
            continue
        reached_s = s.time_to(*target) if target else None
        dot = next((point for point in curve if point[0] == reached_s), None)
        times, values = _thin(curve)
        end = one.mean if last and (one := last[k]) is not None else curve[-1][1]
        lines.append({"strategy": k, "time": times, "y": values, "end": number(end), "dot": dot})
    if not any(curves):
        words = "No worker logged a loss, so there is no curve to draw; worker.log(loss=loss) logs it."
    elif not lines:
        words = f"No finite {name} was recorded, so there is no curve to draw."
    elif missing:
        words += f" Nothing to draw for {', '.join(missing)}."
    if any(line["dot"] for line in lines):
        words += " A dot is the first evaluation at the target."
    return {"name": name, "target": target and target[1], "caption": words, "lines": lines}


def _thin(curve: Curve) -> tuple[list[float], list[float]]:
    """Times and values of at most `POINTS_MAX` points: of each stretch the ends, the extremes and a gap are kept."""
    times, values = np.array(curve, float).reshape(-1, 2).T
    values = np.where(np.isfinite(values), values, np.nan)
    kept = set(range(len(times)))
    if len(times) > POINTS_MAX:
        kept = set()
        for stretch in np.array_split(np.arange(len(times)), POINTS_MAX // 5):
            ranks = stretch[np.argsort(values[stretch])]  # what is not finite comes last
            highest = ranks[np.isfinite(values[stretch]).sum() - 1]
            kept.update((stretch[0], stretch[-1], ranks[0], ranks[-1], highest))
    places = sorted(kept)
    return _short(times[places]), values[places].tolist()


def _logged(s: Summary, name: str) -> Curve:
    """A logged number, averaged over workers in bins of time."""
    logged = [entry for entry in s.logged if name in entry.metrics]
    if not logged:
        return []
    times, values, weights = np.array([(one.time_s, one.metrics[name], max(one.steps, 1)) for one in logged]).T
    count = min(_LOGGED_BINS, max(1, len(logged) // len({entry.worker for entry in logged})))
    place = np.minimum((times / (times.max() / count or 1.0)).astype(int), count - 1)
    total = np.bincount(place, weights)
    some = total > 0
    means = (np.bincount(place, weights * one)[some] / total[some] for one in (times, values))
    return list(zip(*(one.tolist() for one in means), strict=True))


def _smooth(raw: Curve) -> Curve:
    """Each point averaged with its neighbours (1, 2, 1)."""
    losses = [loss for _, loss in (*raw[:1], *raw, *raw[-1:])]
    smooth = [(losses[k] + 2 * loss + losses[k + 2]) / 4 for k, (_, loss) in enumerate(raw)]
    # A non-finite loss breaks the line at its own place only.
    return [(time, mean if math.isfinite(mean) else loss) for (time, loss), mean in zip(raw, smooth, strict=True)]


# The workers' time


def lanes(summaries: Sequence[Summary]) -> dict[str, Any]:
    """One lane per worker: of each whole run, and of a window in its middle, of the same length for all strategies."""
    drawn = [(k, s) for k, s in enumerate(summaries) if s.timeline]
    length = _window([s for _, s in drawn]) if drawn else 0.0
    missing = [s.strategy for s in summaries if not s.timeline]
    caption = f"No timeline was recorded for {', '.join(missing)}." if drawn and missing else ""
    return {"window_s": length, "caption": caption, "groups": [_group(k, s, length) for k, s in drawn]}


def _window(summaries: Sequence[Summary]) -> float:
    """The window's seconds: about a dozen steps of the slowest worker."""
    longest = max(_typical_step(s) for s in summaries)
    shortest_run = min(_extent(s)[1] - _extent(s)[0] for s in summaries)
    wanted = max(min(_WINDOW_STEPS * longest, _WINDOW_S), 1.5 * longest) or _WINDOW_S
    wanted = float(f"{wanted:.2g}")
    return wanted if shortest_run <= 0 else min(wanted, shortest_run)


def _typical_step(s: Summary) -> float:
    """The median compute span of the worker whose median is longest."""
    spans = s.spans_by_worker.values()
    steps = [sorted(one.end_s - one.start_s for one in own if one.kind == "compute") for own in spans]
    return max((lengths[len(lengths) // 2] for lengths in steps if lengths), default=0.0)


def _extent(s: Summary) -> tuple[float, float]:
    return min(span.start_s for span in s.timeline), max(span.end_s for span in s.timeline)


def _group(index: int, s: Summary, length: float) -> dict[str, Any]:
    """The lanes of the workers to show."""
    begin, end = _extent(s)
    start = max(begin, (begin + end - length) / 2)
    spans = s.spans_by_worker
    workers = telling([one for one in s.workers if one.worker in spans])
    more = f"; of {len(spans)} workers the {EXTREMES} slowest and the {EXTREMES} fastest"
    rows = [
        {
            "worker": one.worker,
            "waiting": percent(one.waiting_share),
            "whole": columns(spans[one.worker], 0.0, end),
            "middle": columns(spans[one.worker], start, length),
        }
        for one in workers
    ]
    about = f"waiting {percent(s.waiting_share)}{more if len(spans) > len(workers) else ''}"
    return {"strategy": index, "about": about, "start_s": start, "end_s": end, "rows": rows}


def columns(spans: Sequence[Span], start: float, length: float) -> str:
    """The letter of each column of a lane: one worker's time in the window of `length` at `start`.

    Spans narrower than a column take turns: the time a kind is owed is carried over to the next column, so the visible
    shares are right however fine the spans.
    """
    edges = np.linspace(start, start + length, LANE_COLUMNS + 1)
    width = length / LANE_COLUMNS or 1.0
    owed = np.array([np.diff(_time_within(spans, kind, edges)) / width for kind in KINDS])
    credit = [0.0] * len(KINDS)
    letters = ""
    for shares in owed.T.tolist():
        if sum(shares) < 0.5:
            letters += " "
            continue
        credit = [had + share for had, share in zip(credit, shares, strict=True)]
        best = max((k for k, share in enumerate(shares) if share), key=credit.__getitem__)
        credit[best] -= 1.0
        letters += "cwe"[best]
    return letters


def _time_within(spans: Sequence[Span], kind: str, times: Floats) -> Floats:
    """How much of its time a worker had spent in spans of `kind` until each of `times`."""
    own = sorted((one.start_s, one.end_s) for one in spans if one.kind == kind)
    if not own:
        return np.zeros(len(times))
    starts, ends = np.array(own).T
    spent = np.cumsum(ends - starts)
    within: Floats = np.interp(times, np.ravel([starts, ends], "F"), np.ravel([[0.0, *spent[:-1]], spent], "F"))
    return within
