"""`plesio compare`: the same work under several strategies, side by side; on processes, or simulated."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from plesio.cli.live import StrategyLines, simulated_in, terminal
from plesio.cli.options import Arguments, Function, ScriptPath, takes_settings
from plesio.cli.script import load
from plesio.cli.settings import strategies_of, usual
from plesio.cli.typed import in_words, values_of
from plesio.cluster.presets import PRESETS
from plesio.config import RunConfig
from plesio.config.setting import Option
from plesio.config.until import MetricMissingError, Until
from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, PlesioError
from plesio.observe.comparison import metric_of
from plesio.observe.finding import finding
from plesio.observe.repeats import middle, notes
from plesio.observe.report import write_report
from plesio.observe.summary import GONE, Summary, telling
from plesio.observe.tables import FailedRun, compare_table

Names = Annotated[
    str | None,
    typer.Option("--strategies", metavar="A,B,...", help="Names that `plesio strategies` lists, with settings "
                 'where wanted: "sync_sgd,first_of(m=3)". Without it: '
                 f"{', '.join(one.partition('(')[0] for one in usual(4))}."),
]  # fmt: skip
Repeats = Annotated[
    int,
    typer.Option("--repeats", metavar="N", min=1, help="Runs of each strategy; the median is shown, and the spread."),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON too.")]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where the HTML report goes; without it, into the folder for runs."),
]


FIGURES = ("steps_per_s", "ideal_share", "waiting_share", "bytes", "folded", "samples")
INSTEAD = [
    Option("--workers", "How many. Without it 4 processes; with --cluster what its file describes, 8 of a preset.",
           kind=int | None),
    Option("--cluster", "Simulate these machines, in virtual time, instead of starting processes: "
           f"{', '.join(PRESETS)}; or a TOML file.", "NAME|FILE", str | None),
    Option("--budget-s", "How long each strategy may take.", "SECONDS", float, 30.0),
]  # fmt: skip


@dataclass(slots=True)
class Comparison:
    """The work that each strategy does, and what came out so far, in the order of the strategies."""

    script: Path
    function: str
    config: RunConfig  # the first strategy's; the others' differ from it in the strategy alone
    words: str  # tell of the work
    report: Path
    json_file: Path | None
    rows: list[Summary | FailedRun] = field(default_factory=list)  # of several runs of a strategy, the middle one
    repeats: list[list[Summary]] = field(default_factory=list)  # all runs of each strategy that did not fail
    first_failure: str = ""

    @property
    def summaries(self) -> list[Summary]:
        return [row for row in self.rows if isinstance(row, Summary)]

    @property
    def failures(self) -> list[FailedRun]:
        return [row for row in self.rows if isinstance(row, FailedRun)]


@takes_settings(but=["strategy", "workers_max", "checkpoint", "resume"], instead=INSTEAD)
def compare(
    script: ScriptPath,
    arguments: Arguments = None,
    strategies: Names = None,
    *,
    function: Function = "train",
    repeats: Repeats = 1,
    json_file: Json = None,
    report: Report = None,
    **typed: Any,
) -> int:
    """Run the same work under several strategies and show what each cost.

    Each trains SCRIPT's model from the same start; with --repeats several times, each time with the next seed. Then come a table,
    the finding, and a report for the browser.
    """
    values = values_of(typed)
    names = ",".join(usual(values["workers"])) if strategies is None else strategies
    configs = [RunConfig(strategy=one, **values) for one in strategies_of(names, values["workers"])]
    report = report or values["runs"] / f"{time.strftime('%Y%m%d-%H%M%S')}-compare.html"
    _writable(report, json_file)
    console = terminal()
    found = Comparison(script, function, configs[0], in_words(configs[0], typed["cluster"]), report, json_file)
    started_s = time.monotonic()
    try:
        _run_all(console, arguments, configs, found, repeats)
    except KeyboardInterrupt:
        if found.summaries:  # what there is, is shown
            _show(console, found)
        raise
    written = _show(console, found)
    if found.config.simulated and found.summaries:
        virtual_s = sum(one.wall_s for runs in found.repeats for one in runs)
        console.print(Text(simulated_in(virtual_s, time.monotonic() - started_s)), soft_wrap=True)
    return 1 if found.failures or not written else 0


def _writable(*paths: Path | None) -> None:
    """Find out before the work, not after it."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            known = path.exists()
            path.open("a").close()
            if not known:
                path.unlink()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}; give another file") from error


def _run_all(
    console: Console, arguments: list[str] | None, configs: Sequence[RunConfig], found: Comparison, repeats: int
) -> None:
    with StrategyLines(console, [one.strategy.name for one in configs], found.config.until) as board:
        since_s: float | None = time.monotonic()  # loading the script is part of the first run's start
        script = load(found.script, arguments, found.config, found.function)
        console.print(Text(f"{found.script}: {found.words}"), soft_wrap=True)
        for number, config in enumerate(configs):
            try:
                runs = []
                for seed in range(config.seeded, config.seeded + repeats):
                    started, since_s = since_s, None
                    runs.append(script.run(replace(config, seed=seed), board.watch(number), since_s=started).summary)
                    if len(runs) < repeats:
                        board.ended(number, runs[-1], f"run {len(runs)} of {repeats}: ")
            except Exception as error:  # one strategy's failure is a row of the table, whatever it was
                if isinstance(error, MetricMissingError) and not found.rows:
                    raise  # the others would fail alike
                why = _first_line(error)
                found.rows.append(FailedRun(config.strategy.name, why))
                found.first_failure = found.first_failure or str(error)
                board.failed(number, why)
            else:
                found.repeats.append(runs)
                summary = middle(runs, config.until.target)
                found.rows.append(summary)
                board.ended(number, summary)


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    return line if isinstance(error, PlesioError) and line else f"{type(error).__name__}: {line}".rstrip(": ")


def _show(console: Console, found: Comparison) -> bool:
    """Write the files, then print; whether the files could be written."""
    summaries = found.summaries
    lacking = _write(found)
    console.print()
    for summary in summaries:
        if summary.spoilt:
            console.print(Text(f"{summary.strategy}: {summary.spoilt}", style="red"), soft_wrap=True)
    target = found.config.until.target
    metric = metric_of(summaries, target)
    console.print(compare_table(found.rows, target, metric, repeats=found.repeats, width=console.width))
    for note in notes(summaries, target, metric, max(map(len, found.repeats), default=1)):
        console.print(Text(note, style="dim"), soft_wrap=True)
    console.print()
    if summaries:
        console.print(Text(closing(found.config.until, summaries, found.repeats), style="bold"))
    for one in found.failures:
        console.print(Text(f"{one.strategy} failed: {one.why}", style="red"))
    for summary in summaries:
        for part in telling(summary.workers):
            if part.left in GONE:
                console.print(Text(f"{summary.strategy}: worker {part.worker} {part.left}", style="yellow"))
    if not summaries:
        console.print(Text(found.first_failure), soft_wrap=True)
    elif found.report not in lacking:
        console.print(Text(f"Report: {found.report}"), soft_wrap=True)
    for path, why in lacking.items():
        print(f"plesio: {path} cannot be written: {why}", file=sys.stderr)
    return not lacking


def _write(found: Comparison) -> dict[Path, str]:
    """Write the JSON first, for there may be no room for more, then the page; returns why a file cannot be written."""
    lacking = {}
    for path, write in ((found.json_file, _write_json), (found.report, _write_report)):
        if path is None:
            continue
        try:
            write(found, path)
        except Exception as error:  # a full disk, or a picture that cannot be drawn: the table is there all the same
            lacking[path] = getattr(error, "strerror", None) or _first_line(error)
    return lacking


def closing(until: Until, summaries: Sequence[Summary], repeats: Sequence[Sequence[Summary]] = ()) -> str:
    """The finding; where nobody got as far as was asked for, with what to try."""
    counts = {name: until.limits[name] for name in ("steps", "samples") if name in until.limits}
    words = finding(summaries, until.target, repeats)
    if until.target is None:
        goals = " or ".join(f"{limit:,} {name}" for name, limit in counts.items())
        if not goals or any(getattr(one, name) >= limit for one in summaries for name, limit in counts.items()):
            return words
        words = f"No strategy got to {goals} within {until.seconds:g} s. {words}"
    elif any(one.time_to(*until.target) is not None for one in summaries):
        return words
    if sum(one.discarded.get(Verdict.NOT_FINITE.words, 0) for one in summaries) > sum(one.folded for one in summaries):
        return f"{words} Most contributions held a NaN or an infinity: try a lower learning rate."
    if all(one.ended == "finished" or " stopped the run" in one.ended for one in summaries):
        return f"{words} All were through with train(worker) by then: try more epochs, or a lower target."
    return f"{words} Try more than --budget-s {until.seconds:g}, or a lower target."


def _write_report(found: Comparison, path: Path) -> None:
    from plesio.observe.surroundings import surroundings  # imports torch

    summaries = found.summaries
    if not summaries:
        return
    note = " ".join(
        [f"{found.script}: {found.words}.", *(f"{one.strategy} failed: {one.why}." for one in found.failures)]
    )
    context = {"surroundings": surroundings(str(found.script.resolve())), "run": found.config.as_document()["run"]}
    title = f"{found.script.name} under {len(summaries)} strateg{'y' if len(summaries) == 1 else 'ies'}"
    if found.config.simulated:
        title += f", {found.config.workers} workers in virtual time"
    target = found.config.until.target
    write_report(path, summaries, title=title, target=target, note=note, repeats=found.repeats, context=context)


def _write_json(found: Comparison, path: Path) -> None:
    """The table for programs. Missing values and NaN are null. A metric other than accuracy is in each row by its name."""
    target = found.config.until.target
    metric = metric_of(found.summaries, target) or "accuracy"
    table = {
        "target": None if target is None else dict([target]),
        "workers": found.config.workers,
        "rows": [_row(row, target, metric) for row in found.rows],
        "repeats": [[_row(run, target, metric) for run in runs] for runs in found.repeats],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(table)) + b"\n")


def _row(row: Summary | FailedRun, target: tuple[str, float] | None, metric: str) -> dict[str, Any]:
    one = row if isinstance(row, Summary) else None
    return {
        "strategy": row.strategy,
        "time_to_target_s": one.time_to(*target) if one and target else None,
        **{name: getattr(row, name, None) for name in FIGURES},
        "staleness_mean": one and one.staleness.mean,
        "staleness_max": one and one.staleness.max,
        **{name: one and one.final(name) for name in ("accuracy", metric)},
        "discarded": one and sum(one.discarded.values()),
    }
