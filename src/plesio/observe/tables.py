"""The tables a terminal shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plesio.observe.report import byte_size
from plesio.observe.summary import Summary

WIDTH = 118


def render(*parts: object, width: int = WIDTH) -> str:
    """What rich draws, as plain text."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def run_table(summary: Summary, folder: Path | None) -> str:
    """One run: what it did, then a row for each worker."""
    table = Table(title=_headline(summary), title_justify="left", title_style="bold")
    for name in (
        "worker",
        "steps",
        "samples",
        "steps/s alone",
        "waiting",
        "exchange",
        "staleness",
        "folded",
        "discarded",
    ):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in summary.workers:
        total_s = one.compute_s + one.wait_s + one.exchange_s
        stale = summary.staleness.by_worker.get(one.worker, {})
        count = sum(stale.values())
        mean = f"{sum(t * n for t, n in stale.items()) / count:.2f}" if count else "-"
        table.add_row(
            str(one.worker),
            f"{one.steps:,}",
            f"{one.samples:,}",
            f"{one.speed:,.1f}",
            f"{one.waiting_share:.0%}",
            f"{one.exchange_s / total_s:.0%}" if total_s else "-",
            mean,
            f"{one.folded:,}",
            f"{one.discarded:,}",
            "" if one.left == "finished" else str(one.left or ""),
        )
    return render(table, *_notes(summary, folder))


def _headline(summary: Summary) -> str:
    stale = summary.staleness
    parts = [
        f"{summary.strategy}: {summary.ended} after {summary.wall_s:.2f} s",
        f"version {summary.version:,}",
        f"{summary.steps_per_s:,.0f} steps/s ({summary.ideal_share:.0%} of ideal)",
        f"waiting {summary.waiting_share:.0%}",
        f"staleness {stale.mean:.2f} mean, {stale.p50} p50, {stale.p99} p99, {stale.max} max",
        f"{byte_size(summary.bytes)} exchanged",
        f"{byte_size(summary.shared_bytes)} shared memory",
    ]
    losses = [one.metrics["loss"] for one in summary.logged if "loss" in one.metrics]
    if losses:
        parts.append(f"loss {losses[-1]:.4g}")
    parts += [f"{name} {value:.4g}" for name, value in (summary.history[-1].metrics if summary.history else {}).items()]
    return " · ".join(parts)


def _notes(summary: Summary, folder: Path | None) -> list[str]:
    notes = [f"discarded, {reason}: {number:,}" for reason, number in summary.discarded.items()]
    if summary.missing_gradients:
        notes.append(f"parameters that had no gradient in a step and contributed zero: {summary.missing_gradients:,}")
    if summary.batches_unvisited:
        notes.append(f"batches leased out and not folded when the run ended: {summary.batches_unvisited:,}")
    notes += [f"{one.time_s:.2f} s: {one.what}" for one in summary.incidents[:10]]
    if len(summary.incidents) > 10:
        notes.append(f"and {len(summary.incidents) - 10} more incidents")
    if folder is not None:
        notes.append(f"written to {folder}")
    return notes


def compare_table(summaries: Sequence[Summary], target: tuple[str, float] | None, metric: str | None) -> Table:
    """Several strategies side by side."""
    table = Table()
    table.add_column("strategy")
    heading = f"time to {target[0]} {target[1]:g}" if target else "time"
    names = (heading, "steps/s", "of ideal", "waiting", "staleness mean / max", "bytes", metric or "metric", "folded")
    for name in (*names, "discarded", "samples"):
        table.add_column(name, justify="right")
    times = [s.time_to(*target) if target else s.wall_s for s in summaries]
    best = min((time for time in times if time is not None), default=None)
    for summary, time in zip(summaries, times, strict=True):
        final = summary.final(metric) if metric else None
        table.add_row(
            summary.strategy,
            "not reached" if time is None else f"[bold]{time:.2f} s[/]" if time == best else f"{time:.2f} s",
            f"{summary.steps_per_s:,.1f}",
            f"{summary.ideal_share:.0%}",
            f"{summary.waiting_share:.0%}",
            f"{summary.staleness.mean:.2f} / {summary.staleness.max}",
            byte_size(summary.bytes),
            "-" if final is None else f"{final:.4f}",
            f"{summary.folded:,}",
            f"{sum(summary.discarded.values()):,}",
            f"{summary.samples:,}",
        )
    return table
