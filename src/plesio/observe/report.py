"""The report: one HTML file that says what each strategy cost.

It is the static page in `page/` with the figures of the runs as JSON in it. Python gathers them; `page/report.js` draws
them. One summary gives the report of a run, several give a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from plesio.errors import as_utf8
from plesio.observe import figures
from plesio.observe.amounts import number
from plesio.observe.comparison import Target, cells, columns, in_a_line, metric_of
from plesio.observe.encoding import as_json
from plesio.observe.finding import finding, setting
from plesio.observe.repeats import first, notes, times_of
from plesio.observe.summary import Summary
from plesio.observe.tables import losses, of_clients

_INCIDENTS_MAX = 200
_LEFT_MAX = 8


def write_report(
    path: Path,
    summaries: Sequence[Summary],
    *,
    title: str,
    target: Target | None,
    note: str = "",
    repeats: Sequence[Sequence[Summary]] = (),
    context: Mapping[str, Any] | None = None,
) -> None:
    """Write `summaries` (one run, or several strategies on the same work) as one self-contained HTML file.

    `target` is the metric and the value that counts as success; `note` is a paragraph shown under the finding; `repeats` are
    all runs of each strategy, of which `summaries` has the middle ones; `context` is a run.toml, shown as a table. All text
    from outside is escaped.
    """
    page = resources.files("plesio.observe") / "page"
    sentence = finding(summaries, target, repeats)
    data = {
        "title": title,
        "finding": sentence,
        "setting": setting(summaries) if summaries else "",
        "note": note,
        "clock": " and ".join(dict.fromkeys(f"{s.clock} time" for s in summaries)),
        "strategies": [figures.strategy(s) for s in summaries],
        "table": _table(summaries, target, repeats),
        "rows": figures.rows(summaries),
        "row_servers": [[k, s.wall_s, s.row_servers] for k, s in enumerate(summaries) if s.row_servers],
        "learning": figures.learning(summaries, target),
        "lanes": figures.lanes(summaries),
        "incidents": _incidents(summaries),
        "context": in_rows(context or {}),
    }
    parts = {"title": escape(as_utf8(title)), "finding": escape(as_utf8(sentence)), "data": in_script(data)}
    template = (page / "page.html").read_text(encoding="utf-8")
    text = re.sub(  # in one pass: what is put in is not searched
        r"\{\{([\w.]+)\}\}",
        lambda match: parts.get(match[1]) or _unindented(page / match[1]),
        template,
    )
    path.write_text(text, encoding="utf-8")


def _unindented(file: Traversable) -> str:
    """A static file of the page, without lines of comment and the blanks that its lines begin with: a tenth of it."""
    return re.sub(r"^ *(?://.*\n)?", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)


def in_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A run.toml by lines: what was around the run, its settings and its strategy's answers, which change with its phases.

    >>> in_rows({"strategy": {"every": "every step", "fields": {}}, "run": {"workers": 4, "until": {"accuracy": 0.95}}})
    [('workers', '4'), ('until', 'accuracy=0.95'), ('strategy: every', 'every step')]
    >>> in_rows({"strategy": {"every": "every step", "fields": {"plan": []}}})
    [('first phase: every', 'every step')]
    """
    strategy = document.get("strategy", {})
    answers = "first phase" if "plan" in strategy.get("fields", {}) else "strategy"
    named = {
        f"{'strategy' if name == 'name' else answers}: {name}": one
        for name, one in strategy.items()
        if name != "fields"
    }
    return [
        (name, _in_words(value))
        for section in (document.get("surroundings", {}), document.get("run", {}), named)
        for name, value in section.items()
        if value not in ([], {}, "")
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_in_words(one)}" for name, one in value.items())
    return ", ".join(map(_in_words, value)) if isinstance(value, (list, tuple)) else str(value)


def in_script(data: Any) -> str:
    """`data` as JSON that is inert within a script element; NaN and infinities are null.

    >>> in_script({"name": "</script><!--", "loss": float("inf")})
    '{"name":"\\\\u003c/script>\\\\u003c!--","loss":null}'
    """
    return as_json(data).decode().replace("<", "\\u003c")


def _table(summaries: Sequence[Summary], target: Target | None, repeats: Sequence[Sequence[Summary]]) -> dict[str, Any]:
    metric = metric_of(summaries, target)
    best = first(repeats or [[one] for one in summaries], target) if target and len(summaries) > 1 else []
    spreads = [times_of(runs, target) for runs in repeats] or [None for _ in summaries]
    heads = [in_a_line(one.heading) for one in columns(target, metric)]
    return {
        "heads": heads,
        "rows": [cells(s, target, metric, spread) for s, spread in zip(summaries, spreads, strict=True)],
        "best": [k in best for k in range(len(summaries))],
        "notes": [
            *(
                f"{s.strategy} ended: {s.ended}."
                for s in summaries
                if s.ended != "finished" and not (target and s.time_to(*target) is not None)
            ),
            *(f"{s.strategy}, {line}." for s in summaries for line in of_clients(s)),
            *notes(summaries, target, metric, max(map(len, repeats), default=1)),
        ],
    }


def _incidents(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The incidents that the runs survived, and what was lost."""
    happened = sorted(
        (incident.time_s, k, incident.worker, incident.what)
        for k, s in enumerate(summaries)
        for incident in s.incidents
    )
    return {
        "rows": [(k, number(time_s), worker, what) for time_s, k, worker, what in happened[:_INCIDENTS_MAX]],
        "more": max(0, len(happened) - _INCIDENTS_MAX),
        "lost": [f"{s.strategy}: {words}." for s in summaries for words in (*losses(s), *_departures(s))],
    }


def _departures(s: Summary) -> list[str]:
    """Workers that left, of which no incident tells."""
    told = {incident.worker for incident in s.incidents}
    left = [one for one in s.workers if one.left not in (None, "finished") and one.worker not in told]
    more = [f"{len(left) - _LEFT_MAX:,} more workers left"] if len(left) > _LEFT_MAX else []
    return [*(f"worker {worker.worker} {worker.left}" for worker in left[:_LEFT_MAX]), *more]
