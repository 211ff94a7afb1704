"""One HTML page that says what each strategy cost: the finding, the table, the curves, who waited, how stale.

The page is one file that needs no network, and no script but its own few lines that hide a curve. One summary gives
the report of a run, several give a comparison. Words are chosen here, charts in `figures`; every number comes from `Summary`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from plesio.observe import figures, svg
from plesio.observe.amounts import of_ideal, percent
from plesio.observe.figures import Target
from plesio.observe.summary import Summary, lower_is_better
from plesio.observe.svg import number

_BASELINES = ("sync_sgd", "allreduce")  # what others are compared with
_INCIDENTS_MAX = 200
_LEFT_MAX = 8

_SCRIPT = """
for (const button of document.querySelectorAll("button[data-s]")) button.onclick = () => {
  const off = button.classList.contains("off");
  for (const one of document.querySelectorAll(`[data-s="${button.dataset.s}"]`)) {
    one.classList.toggle("off", !off);
    if (one.tagName === "BUTTON") one.setAttribute("aria-pressed", String(off));
  }
};
"""

_GLOSSARY = {
    "worker": "One copy of the training loop, working on its own share of the data.",
    "version": "The number of times the global parameters have been changed. Each fold makes the next version.",
    "contribution, fold": "What a worker sends (a gradient, or a change of the parameters), and its being worked into "
    "the global parameters. A discarded contribution was not used: it was too stale, it held a NaN, or its step was called "
    "off.",
    "staleness": "How many versions were made by others between the one a contribution was computed from and its own "
    "fold. A fresh contribution has staleness 0.",
    "waiting": "The share of the workers' time in which they stood still because they had to wait for others.",
    "exchange": "Time a worker spends sending its contribution and taking the new parameters back.",
    "share of ideal": "Steps a second, against the sum of what the workers could each do if nobody ever waited "
    "and nothing they did was thrown away. A worker that never finished a step counts as fast as its longest step that was "
    "called off: the share is then a lower bound.",
}


def write_report(
    path: Path, summaries: Sequence[Summary], *, title: str, target: Target | None, note: str = ""
) -> None:
    """Write `summaries` (one run, or several strategies on the same work) as one self-contained HTML file.

    `target` is the metric and the value that counts as success, e.g. `("accuracy", 0.95)`; `note` is a paragraph
    shown under the finding. All text from outside is escaped. Raises `OSError` if `path` cannot be written.
    """
    style = resources.files("plesio.observe").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(_sections(summaries, title, target, note))
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body><main>\n{body}\n</main>"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def finding(summaries: Sequence[Summary], target: Target | None) -> str:
    """The result in one sentence, e.g. "async_sgd reached accuracy 0.95 in 2.1 s, 6.3 times sooner than sync_sgd."."""
    if not summaries:
        return "There is no run to report."
    if target is None:
        return _finding_of_speed(summaries)
    metric, value = target
    goal = f"{metric} {value:g}"
    reached = sorted((time_s, k) for k, s in enumerate(summaries) if (time_s := s.time_to(metric, value)) is not None)
    if not reached:
        return _finding_of_failure(summaries, metric, goal)
    best_s, winner = reached[0]
    best = summaries[winner]
    sentence = f"{best.strategy} reached {goal} in {number(best_s)} s"
    if len(summaries) == 1:
        return f"{sentence}, at {of_ideal(best, 'at least ')} of the ideal throughput."
    rival = _rival(winner, summaries, [k for _, k in reached[1:]])
    rival_s = rival.time_to(metric, value)
    if rival_s is None:
        return f"{sentence}; {rival.strategy} did not reach it in {number(rival.wall_s)} s."
    times = rival_s / best_s if best_s > 0 else math.inf
    if times < 1.05 or not math.isfinite(times):
        return f"{sentence}, about as soon as {rival.strategy} ({number(rival_s)} s)."
    return f"{sentence}, {number(times, 2)} times sooner than {rival.strategy}."


def _rival(winner: int, summaries: Sequence[Summary], runners_up: Sequence[int]) -> Summary:
    """The run to compare with: the synchronous baseline if it was run, else the next best, else the next."""
    others = [k for k in range(len(summaries)) if k != winner]
    baselines = [k for recipe in _BASELINES for k in others if summaries[k].recipe == recipe]
    return summaries[[*baselines, *runners_up, *others][0]]


def _finding_of_speed(summaries: Sequence[Summary]) -> str:
    order = sorted(range(len(summaries)), key=lambda k: -summaries[k].steps_per_s)
    best = summaries[order[0]]
    rate = f"{number(best.steps_per_s)} steps a second"
    if len(summaries) == 1:
        shares = f"{of_ideal(best, 'at least ')} of the ideal; its workers waited {percent(best.waiting_share)}"
        return f"{best.strategy} made {rate}, {shares} of the time."
    rival = _rival(order[0], summaries, order[1:])
    of_rival = f"{number(rival.steps_per_s)} of {rival.strategy}"
    times = best.steps_per_s / rival.steps_per_s if rival.steps_per_s > 0 else math.inf
    against = f"{number(times, 2)} times the" if 1.05 <= times < math.inf else "against the"
    return f"{best.strategy} made the most steps, {rate}, {against} {of_rival}."


def _finding_of_failure(summaries: Sequence[Summary], metric: str, goal: str) -> str:
    alone = len(summaries) == 1
    within = f"within {number(max(s.wall_s for s in summaries))} s"
    verdict = (
        f"{summaries[0].strategy} did not reach {goal} {within}" if alone else f"No strategy reached {goal} {within}"
    )
    sign = -1 if lower_is_better(metric) else 1
    seen = [
        (sign * one.metrics[metric], -one.time_s, s.strategy)
        for s in summaries
        for one in s.history
        if math.isfinite(one.metrics.get(metric, math.nan))
    ]
    if not seen:
        known = any(metric in one.metrics for s in summaries for one in s.history)
        return f"{verdict}: {metric} was never {'finite' if known else 'evaluated'}."
    best, minus_s, who = max(seen, key=lambda one: one[:2])  # of equals the first
    reached = f"{number(sign * best, 4)} after {number(-minus_s)} s"
    return f"{verdict}; its best was {reached}." if alone else f"{verdict}; the best was {who} with {reached}."


def setting(summaries: Sequence[Summary]) -> str:
    """How many workers took part, and how much their speeds differed."""
    counts = sorted({len(s.workers) for s in summaries})
    plural = "s" if counts[0] != 1 else ""
    workers = f"{counts[0]} to {counts[-1]} workers" if len(counts) > 1 else f"{counts[0]} worker{plural}"
    speeds: dict[int, list[float]] = {}
    for worker in (w for s in summaries for w in s.workers if w.speed > 0):
        speeds.setdefault(worker.worker, []).append(worker.speed)
    if len(speeds) < 2:
        return f"{workers}."
    typical = {worker: sorted(values)[len(values) // 2] for worker, values in speeds.items()}
    slow, fast = min(typical, key=lambda w: typical[w]), max(typical, key=lambda w: typical[w])
    ratio = typical[fast] / typical[slow]
    if ratio < 1.25:
        return f"{workers}, about equally fast."
    return f"{workers}; the slowest, worker {slow}, takes {number(ratio, 2)} times as long for a step as the fastest."


def _sections(summaries: Sequence[Summary], title: str, target: Target | None, note: str) -> Iterator[str]:
    yield f'<h1>{escape(title)}</h1><p class="finding">{escape(finding(summaries, target))}</p>'
    if summaries:
        yield f'<p class="setting">{escape(setting(summaries))}</p>'
    if note:
        yield f'<p class="note">{escape(note)}</p>'
    if summaries:
        yield _table(summaries, target)
        yield from figures.learning(summaries, target)
        yield figures.timelines(summaries)
        yield figures.staleness(summaries)
        yield _incidents(summaries)
    terms = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in _GLOSSARY.items())
    yield f"<h2>Words</h2><dl>{terms}</dl>"


def byte_size(count: float) -> str:
    """Bytes for people, in powers of 1,000.

    >>> byte_size(0), byte_size(1536), byte_size(2_500_000)
    ('0 B', '1.54 kB', '2.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{number(count)} {unit}" if unit != "B" else f"{count:.0f} B"


def _table(summaries: Sequence[Summary], target: Target | None) -> str:
    metric = target[0] if target else next(iter(figures.metrics(summaries, None)), None)
    times = [s.time_to(*target) if target else None for s in summaries]
    best = min((time_s for time_s in times if time_s is not None), default=None)
    heads = [
        f"time to {target[0]} {target[1]:g},\u00a0s" if target else f"{figures.time_name(summaries)}, s",
        "steps/s", "share\u00a0of ideal,\u00a0%", "waiting, %", "staleness mean", "staleness max", "bytes",
        f"final {metric}" if metric else "final metric", "folded", "discarded", "samples",
    ]  # fmt: skip
    rows = []
    for k, s in enumerate(summaries):
        first = _time_cell(times[k], best if len(summaries) > 1 else None) if target else f"<td>{number(s.wall_s)}</td>"
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in _cells(s, metric))
        rows.append(f"<tr><th scope=row>{svg.named(k, s.strategy)}</th>{first}{cells}</tr>")
    head = "".join(f"<th scope=col>{escape(text)}</th>" for text in ["strategy", *heads])
    notes = ["Marked: the soonest at the target."] if best is not None and len(summaries) > 1 else []
    unexplained = (s for s, time_s in zip(summaries, times, strict=True) if s.ended != "finished" and time_s is None)
    notes += [f"{s.strategy} ended: {s.ended}." for s in unexplained]
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>' + (
        f'<p class="small">{escape(" ".join(notes))}</p>' if notes else ""
    )


def _time_cell(time_s: float | None, best: float | None) -> str:
    if time_s is None:
        return '<td class="never">not reached</td>'
    return f'<td class="best">{number(time_s)}</td>' if time_s == best else f"<td>{number(time_s)}</td>"


def _cells(s: Summary, metric: str | None) -> list[str]:
    shares = [share.removesuffix("%") for share in (of_ideal(s), percent(s.waiting_share))]
    stale = [f"{s.staleness.mean:.2f}", f"{s.staleness.max:,}"]
    final = number(s.final(metric) if metric else None, 4)
    counts = [f"{count:,}" for count in (s.folded, sum(s.discarded.values()), s.samples)]
    return [number(s.steps_per_s), *shares, *stale, byte_size(s.bytes), final, *counts]


def _incidents(summaries: Sequence[Summary]) -> str:
    """The incidents that the run survived, and what was lost."""
    happened = sorted(
        (
            (incident.time_s, k, incident.worker, incident.what)
            for k, s in enumerate(summaries)
            for incident in s.incidents
        ),
        key=lambda row: row[:2],
    )
    lost = [sentence for s in summaries for sentence in _losses(s)]
    if not happened and not lost:
        return '<h2>Incidents</h2><p class="empty">None: no worker died and nothing was lost.</p>'
    rows = "".join(
        f"<tr><th scope=row>{svg.named(k, summaries[k].strategy)}</th><td>{number(time_s)}</td>"
        f'<td>{"–" if worker is None else worker}</td><td class="text">{escape(what)}</td></tr>'
        for time_s, k, worker, what in happened[:_INCIDENTS_MAX]
    )
    head = '<th scope=col>strategy</th><th scope=col>time, s</th><th scope=col>worker</th><th class="text">what</th>'
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    if (more := len(happened) - _INCIDENTS_MAX) > 0:
        lost.append(f"{more:,} later incidents are not listed.")
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in lost)
    return f"<h2>Incidents</h2>{table if happened else ''}{sentences}"


def _losses(s: Summary) -> Iterator[str]:
    if s.batches_unvisited and s.ended == "finished":  # after a stop they are just the rest of the epoch
        yield f"{s.strategy}: {s.batches_unvisited:,} batches were leased out and not folded when the run ended."
    if s.uncounted:
        yield f"{s.strategy}: {s.uncounted}."
    if s.discarded:
        reasons = ", ".join(f"{count:,} ({reason})" for reason, count in sorted(s.discarded.items()))
        yield f"{s.strategy}: contributions discarded: {reasons}."
    if s.missing_gradients:
        yield f"{s.strategy}: {s.missing_gradients:,} parameter gradients were missing."
    left = [worker for worker in s.workers if worker.left not in (None, "finished")]
    for worker in left[:_LEFT_MAX]:
        yield f"{s.strategy}: worker {worker.worker} left: {worker.left}."
    if (more := len(left) - _LEFT_MAX) > 0:
        yield f"{s.strategy}: {more:,} more workers left."
