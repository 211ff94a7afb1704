"""`plesio compare`: the same work under several strategies, side by side; on processes, or simulated."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from plesio.cli import options
from plesio.cli.live import Board, simulated_in, terminal
from plesio.cli.script import load
from plesio.cli.settings import strategies_of, usual
from plesio.cli.work import MetricMissingError, Work, work_of
from plesio.cluster.presets import PRESETS
from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, PlesioError
from plesio.launch.working_directory import check_working_directory
from plesio.observe.report import finding, write_report
from plesio.observe.summary import GONE, Summary, telling
from plesio.observe.tables import Failed, compare_table
from plesio.strategy import Strategy

Names = Annotated[
    str | None,
    typer.Option("--strategies", metavar="A,B,...", help="Names that `plesio strategies` lists, with settings "
                 'where wanted: "sync_sgd,first_of(m=3)". Without it: the eight usual ones.'),
]  # fmt: skip
Workers = Annotated[
    int | None,
    typer.Option(help="How many. Without it 4 processes; with --cluster what its file describes, 8 of a preset."),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Simulate these machines, in virtual time, instead of starting processes: "
                 f"{', '.join(PRESETS)}; or a TOML file."),
]  # fmt: skip
BudgetS = Annotated[float, typer.Option(metavar="SECONDS", help="How long each strategy may take.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON too.")]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where the HTML report goes; without it, into the folder for runs."),
]


@dataclass(slots=True)
class Results:
    """What came out, in the order of the strategies."""

    rows: list[Summary | Failed] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    @property
    def summaries(self) -> list[Summary]:
        """Of those that did not fail."""
        return [row for row in self.rows if isinstance(row, Summary)]

    @property
    def failures(self) -> list[Failed]:
        """The others."""
        return [row for row in self.rows if isinstance(row, Failed)]


def compare(
    script: options.ScriptPath,
    arguments: options.Arguments = None,
    strategies: Names = None,
    workers: Workers = None,
    cluster: Cluster = None,
    slow: options.Slows = None,
    pace: options.PaceS = None,
    jitter: options.Jitter = 0.0,
    until: options.Untils = None,
    budget_s: BudgetS = 30.0,
    json_file: Json = None,
    report: Report = None,
    seed: options.Seed = 0,
    evaluate_every_s: options.EvaluateEveryS = 0.1,
    data: options.Data = "leases",
    on_worker_error: options.OnWorkerError = "raise",
    on_nonfinite: options.OnNonfinite = "discard",
    timeout_s: options.TimeoutS = 300.0,
    kill: options.Kills = None,
    runs: options.Runs = Path("runs"),
) -> int:
    """Run the same work under several strategies and show what each cost.

    Each trains SCRIPT's model from the same start. Then come a table, the finding, and a report for the browser.
    """
    work = work_of(
        workers=workers,
        cluster=cluster,
        slows=slow,
        kills=kill,
        pace_s=pace,
        jitter=jitter,
        untils=until,
        budget_s=budget_s,
        seed=seed,
        evaluate_every_s=evaluate_every_s,
        data=data,
        on_worker_error=on_worker_error,
        on_nonfinite=on_nonfinite,
        timeout_s=timeout_s,
        runs=runs,
    )
    chosen = strategies_of(",".join(usual(work.workers)) if strategies is None else strategies, work.workers)
    for one in chosen:
        one.check_workers(work.workers)
    check_working_directory()
    report = report or runs / f"{time.strftime('%Y%m%d-%H%M%S')}-compare.html"
    _writable(report, json_file)
    console = terminal()
    console.print(Text(f"{script}: {work.setting()}"), soft_wrap=True)
    results = Results()
    started_s = time.monotonic()
    try:
        _run_all(console, script, arguments or (), work, chosen, results)
    except KeyboardInterrupt:
        if results.summaries:  # what there is, is shown
            _show(console, script, work, results, report, json_file)
        raise
    written = _show(console, script, work, results, report, json_file)
    if work.cluster is not None and results.summaries:
        virtual_s = sum(one.wall_s for one in results.summaries)
        console.print(Text(simulated_in(virtual_s, time.monotonic() - started_s)), soft_wrap=True)
    return 1 if results.failures or not written else 0


def _writable(*paths: Path | None) -> None:
    """Find out before the work, not after it."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            known = path.exists()
            path.open("a").close()
            if not known:
                path.unlink()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}; give another file") from error


def _run_all(
    console: Console, path: Path, arguments: Sequence[str], work: Work, chosen: Sequence[Strategy], results: Results
) -> None:
    with Board(console, [one.name for one in chosen], work.target, work.budget_s) as board:
        script = load(path, work.metrics, arguments, processes=work.cluster is None)
        for number, strategy in enumerate(chosen):
            try:
                summary = work.run(script, strategy, board.watch(number)).summary
            except Exception as error:  # one strategy's failure is a row of the table, whatever it was
                if isinstance(error, MetricMissingError) and not results.rows:
                    raise  # the others would fail alike
                why = _first_line(error)
                results.rows.append(Failed(strategy.name, why))
                results.details.append(str(error))
                board.failed(number, why)
            else:
                results.rows.append(summary)
                board.ended(number, summary)


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    return line if isinstance(error, PlesioError) and line else f"{type(error).__name__}: {line}".rstrip(": ")


def _show(console: Console, script: Path, work: Work, results: Results, report: Path, json_file: Path | None) -> bool:
    """Write the files, then print; whether the files could be written."""
    summaries, failures = results.summaries, results.failures
    lacking = _write(script, work, results, report, json_file)
    console.print()
    console.print(compare_table(results.rows, work.target, _metric(work, summaries), width=console.width))
    console.print()
    if summaries:
        console.print(Text(closing(work, summaries), style="bold"))
    for one in failures:
        console.print(Text(f"{one.strategy} failed: {one.why}", style="red"))
    for summary in summaries:
        for part in telling(summary.workers):
            if part.left in GONE:
                console.print(Text(f"{summary.strategy}: worker {part.worker} left: {part.left}", style="yellow"))
    if not summaries:
        console.print(Text(results.details[0]), soft_wrap=True)
    elif report not in lacking:
        console.print(Text(f"Report: {report}"), soft_wrap=True)
    for path, why in lacking.items():
        print(f"plesio: {path} cannot be written: {why}", file=sys.stderr)
    return not lacking


def _write(script: Path, work: Work, results: Results, report: Path, json_file: Path | None) -> dict[Path, str]:
    """The JSON, for there may be no room for more, and the page; of what cannot be written, why."""
    lacking = {}
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(as_json(work, results.rows), indent=2) + "\n")
        except OSError as error:
            lacking[json_file] = str(error.strerror)
    if results.summaries:
        try:
            _report(script, work, results, report)
        except Exception as error:  # a full disk, or a picture that cannot be drawn: the table is there all the same
            lacking[report] = getattr(error, "strerror", None) or _first_line(error)
    return lacking


def closing(work: Work, summaries: Sequence[Summary]) -> str:
    """The finding; where nobody got as far as was asked for, with what to try."""
    words = finding(summaries, work.target)
    if work.target is None:
        goals = " or ".join(f"{limit:,} {name}" for name, limit in work.limits.items())
        if not goals or any(getattr(one, name) >= limit for one in summaries for name, limit in work.limits.items()):
            return words
        words = f"No strategy got to {goals} within {work.budget_s:g} s. {words}"
    elif any(one.time_to(*work.target) is not None for one in summaries):
        return words
    if sum(one.discarded.get(Verdict.NOT_FINITE.words, 0) for one in summaries) > sum(one.folded for one in summaries):
        return f"{words} Most contributions held a NaN or an infinity: try a lower learning rate."
    if all(one.ended == "finished" or " stopped the run" in one.ended for one in summaries):
        return f"{words} All were through with train(worker) by then: try more epochs, or a lower target."
    return f"{words} Try more than --budget-s {work.budget_s:g}, or a lower target."


def _report(script: Path, work: Work, results: Results, report: Path) -> None:
    summaries, failures = results.summaries, results.failures
    note = " ".join([f"{script}: {work.setting()}.", *(f"{one.strategy} failed: {one.why}." for one in failures)])
    title = f"{script.name} under {len(summaries)} strateg{'y' if len(summaries) == 1 else 'ies'}"
    if work.cluster is not None:
        title += f", {work.workers} workers in virtual time"
    write_report(report, summaries, title=title, target=work.target, note=note)


def _metric(work: Work, summaries: Sequence[Summary]) -> str | None:
    if work.target is not None:
        return work.target[0]
    seen = [name for one in summaries for evaluation in one.history for name in evaluation.metrics]
    return "accuracy" if "accuracy" in seen else next(iter(seen), None)


def as_json(work: Work, rows: Sequence[Summary | Failed]) -> dict[str, Any]:
    """The table for programs; what there is none of is null. A metric that is no accuracy stands in each row by its name."""
    target = None if work.target is None else {work.target[0]: work.target[1]}
    metric = _metric(work, [row for row in rows if isinstance(row, Summary)])
    return {"target": target, "workers": work.workers, "rows": [_row(work, metric or "accuracy", row) for row in rows]}


def _row(work: Work, metric: str, row: Summary | Failed) -> dict[str, Any]:
    one = row if isinstance(row, Summary) else None
    fields = {
        "strategy": row.strategy,
        "time_to_target_s": one.time_to(*work.target) if one and work.target else None,
        "steps_per_s": one and one.steps_per_s,
        "ideal_share": one and one.ideal_share,
        "waiting_share": one and one.waiting_share,
        "staleness_mean": one and one.staleness.mean,
        "staleness_max": one and one.staleness.max,
        "bytes": one and one.bytes,
        **{name: one and one.final(name) for name in ("accuracy", metric)},
        "folded": one and one.folded,
        "discarded": one and sum(one.discarded.values()),
        "samples": one and one.samples,
    }
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in fields.items()}
