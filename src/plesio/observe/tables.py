"""The tables a terminal shows."""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.observe.amounts import byte_size, number, of_ideal, percent
from plesio.observe.clients import by_samples, worst_tenth
from plesio.observe.comparison import Target, cells, columns, in_a_line, on_staleness
from plesio.observe.logbook import LastSteps
from plesio.observe.repeats import first, times_of
from plesio.observe.rows import in_lines, slow_server
from plesio.observe.summary import EXTREMES, Summary, lower_is_better, telling
from plesio.observe.totals import COLUMNS, WorkerSummary

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 118
NAME_LEAST = 22  # characters of a strategy's name that have priority over columns


def render(*parts: object, width: int = WIDTH) -> str:
    """rich's output as plain text, for printing: letters outside standard output's encoding are replaced."""
    from rich.console import Console

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    page = io.BytesIO()
    with io.TextIOWrapper(page, encoding, errors="replace", newline="\n") as file:
        console = Console(file=file, width=width, highlight=False, markup=False, color_system=None)
        for part in parts:
            console.print(part)
        file.flush()
        lines = page.getvalue().decode(encoding).splitlines()
    return "\n".join(line.rstrip(" ") for line in lines)


def run_table(summary: Summary, folder: Path | None, *, lacking: Sequence[str] = (), width: int = WIDTH) -> str:
    """One run: its figures, then a row for each worker. `lacking`: what could not be written to its folder."""
    from rich.table import Table

    shows: list[tuple[str, Callable[[WorkerSummary], str]]] = [
        ("worker", lambda one: str(one.worker)),
        ("steps", lambda one: f"{one.steps:,}"),
        ("samples", lambda one: f"{one.samples:,}"),
        ("steps/s\nalone", lambda one: number(one.speed) if one.speed else "-"),
        ("waiting", lambda one: percent(one.waiting_share)),
        ("exchange", lambda one: percent(one.exchange_s / one.there_s) if one.there_s else "-"),
        ("staleness", lambda one: _mean(summary.staleness.by_worker.get(one.worker, {}))),
        ("folded", lambda one: f"{one.folded:,}"),
        ("dis-\ncarded", lambda one: f"{one.discarded:,}"),
    ]
    shown, table = telling(summary.workers), Table()
    left = {one.worker: one.left for one in shown if one.left and one.left != "finished"}
    for heading, _ in shows:
        table.add_column(heading, justify="right")
    if left:
        table.add_column("ended")
    for one in shown:
        table.add_row(*(of(one) for _, of in shows), *([left.get(one.worker, "")] if left else []))
    warning = [summary.spoilt] if summary.spoilt else []
    return render(*warning, _headline(summary, width), table, *_notes(summary, folder, lacking), width=width)


def _mean(counts: Mapping[int, int]) -> str:
    return f"{sum(t * n for t, n in counts.items()) / sum(counts.values()):.2f}" if counts else "-"


def _headline(summary: Summary, width: int) -> str:
    """The figures, with line breaks between them only."""
    stale = summary.staleness
    parts = [
        f"{summary.strategy}: {summary.ended}",
        summary.times,
        f"version {summary.version:,}",
        f"{number(summary.steps_per_s, 2)} steps/s ({of_ideal(summary)} of ideal)",
        f"waiting {percent(summary.waiting_share)}",
        f"staleness {stale.mean:.2f} mean, {stale.p50} p50, {stale.p99} p99, {stale.max} max",
        f"{byte_size(summary.bytes)} exchanged",
        f"{byte_size(summary.shared_bytes)} shared memory",
    ]
    if (loss := LastSteps(summary.logged).of("loss")) is not None:
        parts.append(f"train loss {loss.mean:.4g} (mean of the last {loss.steps:,} steps)")
    if summary.history:
        last = summary.history[-1]
        parts += [f"{name} {value:.4g} (at {last.time_s:.1f} s)" for name, value in last.metrics.items()]
    together = "\u00a0"
    line = f"{together}· ".join(part.replace(" ", together) for part in parts)
    return textwrap.fill(line, width).replace(together, " ")


def _notes(summary: Summary, folder: Path | None, lacking: Sequence[str]) -> list[str]:
    notes = []
    if len(summary.workers) > 2 * EXTREMES:
        notes.append(f"of {len(summary.workers)} workers the {EXTREMES} slowest and the {EXTREMES} fastest are shown")
    notes += in_lines(summary.rows)
    notes += slow_server(summary.row_servers, sum(one.there_s for one in summary.workers))
    notes += on_staleness(summary.strategy) if summary.staleness.max else []
    notes += losses(summary)
    notes += of_clients(summary)
    notes += [f"{one.time_s:.2f} s: {one.what}" for one in summary.incidents[:10]]
    if len(summary.incidents) > 10:
        notes.append(f"and {len(summary.incidents) - 10} more incidents")
    if summary.advice:
        notes.append(summary.advice)
    if folder is not None:
        notes.append(f"written to {folder}" + (f", without {', '.join(lacking)}" if lacking else ""))
    return notes


def losses(summary: Summary) -> list[str]:
    """What did not become part of the model."""
    found = [f"discarded, {reason}: {number:,}" for reason, number in sorted(summary.discarded.items())]
    found += [
        f"{column.help}: {count:,}{column.why and f' ({column.why})'}"
        for name, column in COLUMNS.items()
        if column.lost and (count := getattr(summary, name)) and (summary.ended == "finished" or not column.at_end)
    ]
    return [*found, *filter(None, (summary.multiplied, summary.uncounted))]


def of_clients(summary: Summary) -> list[str]:
    """Federated rounds in words: turns, what clients on devices of their own would have sent, and their metrics."""
    clients = summary.clients
    if not clients:
        return []
    turns = sum(one.turns for one in clients)
    late, left_out = sum(one.late for one in clients), sum(one.left_out for one in clients)
    odd = [f"{number:,} {what}" for number, what in ((late, "in a later round"), (left_out, "left out")) if number]
    sent = byte_size(2 * turns * summary.plain_bytes)
    notes = [
        f"clients: {len(clients):,} took {turns:,} turns{' (' + ', '.join(odd) + ')' if odd else ''}; on devices of their own "
        f"they would have exchanged {sent}, unpacked"
    ]
    for name in sorted({name for one in clients for name in one.after}):
        worst = worst_tenth(clients, name, lower_is_better(name))
        notes.append(f"client {name}: {by_samples(clients, name):.4g} by samples, {worst:.4g} the worst tenth")
    return notes


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A strategy whose run failed, in place of its summary."""

    strategy: str
    why: str


def compare_table(
    rows: Sequence[Summary | FailedRun],
    target: Target | None,
    metric: str | None,
    *,
    repeats: Sequence[Sequence[Summary]] = (),
    width: int = WIDTH,
) -> Table:
    """Several strategies side by side; columns beyond the terminal's `width` are left out. `repeats`: all runs of
    each strategy that has a summary."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    runs = repeats or [[row] for row in rows if isinstance(row, Summary)]
    best = {runs[k][0].strategy for k in first(runs, target)} if len(runs) > 1 else set()
    compared = 0 if target else 1  # by the time to the target, else by steps a second
    spreads = {several[0].strategy: times_of(several, target) for several in runs}
    known = columns(target, metric)
    heads = [one.heading for one in known]
    failed = ["failed", *("-" for _ in heads[1:])]
    lines = [
        cells(row, target, metric, spreads.get(row.strategy)) if isinstance(row, Summary) else failed for row in rows
    ]
    names = [min(NAME_LEAST, len(row.strategy)) for row in rows]
    widths = [
        max(len(line) for cell in column for line in cell.split("\n")) for column in zip(heads, *lines, strict=True)
    ]
    shown = sorted(range(len(known)), key=lambda k: known[k].place)
    while sum(widths[k] + 1 for k in shown) > width - max(names, default=0) and shown:
        shown.pop()
    shown.sort()
    left_out = ", ".join(in_a_line(head) for k, head in enumerate(heads) if k not in shown)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0), caption_justify="left")
    table.caption = f"a wider terminal and --json show: {left_out}" if left_out else None
    table.add_column("strategy", overflow="fold", min_width=max(names, default=0))
    for k in shown:
        table.add_column(heads[k], justify="right", no_wrap=True)
    for row, line in zip(rows, lines, strict=True):
        texts = [Text(line[k], style="bold" if row.strategy in best and k == compared else "") for k in shown]
        table.add_row(row.strategy, *texts, style="red" if isinstance(row, FailedRun) else "")
    return table
