"""`plesio runs`: list, compare, tag and prune run folders."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from plesio.cli.groups import Command, CommandGroup
from plesio.cli.live import terminal
from plesio.errors import ConfigurationError
from plesio.observe.amounts import duration, number, percent
from plesio.observe.comparison import metric_of
from plesio.observe.finding import finding
from plesio.observe.history import KeptRun, history, kept, read_summary, to_prune, write_notes
from plesio.observe.repeats import notes
from plesio.observe.report import write_report
from plesio.observe.tables import compare_table

Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where the run folders are.")]
METRICS = 2  # how many metrics the list shows
LIMITS = ("seconds", "steps", "samples")

commands = typer.Typer(cls=CommandGroup)


@commands.callback(invoke_without_command=True)
def runs(context: typer.Context, runs: Runs = Path("runs")) -> None:
    """List, compare, tag and prune run folders. Without a command: list them."""
    command = context.invoked_subcommand
    if command is None:
        listed(runs)
    elif runs != Path("runs"):
        if command not in ("list", "prune"):
            raise ConfigurationError(
                f"plesio runs --runs {runs} {command}: {command} takes run folders; leave --runs out"
            )
        context.default_map = {command: {"runs": str(runs)}}  # as if it were given behind the command


@commands.command(cls=Command, name="list", epilog="For example: plesio runs list --strategy async_sgd --sort accuracy")
def listed(
    runs: Runs = Path("runs"),
    strategy: Annotated[str, typer.Option(metavar="NAME", help="Only those whose strategy's name begins so.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only those with this tag.")] = "",
    sort: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="By changed (when), time (how long), speed, or a metric's name; the greatest is last."
        ),
    ] = "changed",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """List runs: when, under which strategy, how long, how fast, and the last metrics."""
    found = [one for one in history(runs) if one.strategy.startswith(strategy) and (not tag or tag in one.tags)]
    found = _sorted(found, sort)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode([_row(one) for one in found])).decode())
    elif not found:
        print(f"no run in {runs} matches" if strategy or tag else f"no run in {runs}")
    else:
        terminal().print(_table(found))


def _sorted(found: list[KeptRun], by: str) -> list[KeptRun]:
    names = {name for one in found if one.brief is not None for name in one.brief.metrics}
    own = ("changed", "time", "speed")
    if by not in own and by not in names:
        raise ConfigurationError(f"--sort {by}: known here: {', '.join([*own, *sorted(names)])}")

    def value(one: KeptRun) -> float:
        known: float | None = one.changed_s
        if by != "changed":
            brief = one.brief
            known = {**brief.metrics, "time": brief.wall_s, "speed": brief.steps_per_s}.get(by) if brief else None
        return known if known is not None and known == known else float("-inf")

    return sorted(found, key=value)


def _there(folder: Path) -> Path:
    """A run as it was typed, or that of the name in the folder runs."""
    return folder if folder.exists() or not (Path("runs") / folder).is_dir() else Path("runs") / folder


def _target(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        if not name or name in LIMITS:
            raise ValueError
        return name, float(value)
    except ValueError:
        raise ConfigurationError(f"--until {text}: a metric and its value, such as accuracy=0.95") from None


def _common_target(folders: list[Path]) -> tuple[str, float] | None:
    """What all of these runs were to reach, if it is one metric."""
    goals = [_goals(one) for one in folders]
    same = len(goals[0]) == 1 and all(one == goals[0] for one in goals)
    return next(iter(goals[0].items())) if same else None


def _goals(folder: Path) -> dict[str, float]:
    try:
        until = kept(folder).run.get("until")
    except ConfigurationError:  # a summary.json by itself
        return {}
    goals = until.items() if isinstance(until, dict) else ()
    return {name: value for name, value in goals if name not in LIMITS and isinstance(value, int | float)}


def _row(one: KeptRun) -> dict[str, Any]:
    return {
        "folder": str(one.folder),
        "strategy": one.strategy,
        "train": one.run.get("train"),
        "workers": one.run.get("workers"),
        "ended": one.ended,
        **{name: getattr(one.brief, name, None) for name in ("wall_s", "steps_per_s", "ideal_share", "metrics")},
        "tags": one.tags,
        "note": one.note,
    }


def _table(found: list[KeptRun]) -> Table:
    names = list(dict.fromkeys(name for one in reversed(found) if one.brief is not None for name in one.brief.metrics))
    names = names[:METRICS]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True, min_width=max(len(one.folder.name) for one in found))
    table.add_column("strategy", overflow="fold")
    for head in ("workers", "time", "steps/s", "of ideal", *names):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("ended, tags, note", overflow="fold")
    for one in found:
        brief = one.brief
        figures = ["", "", "", *("" for _ in names)]
        if brief is not None:
            share = percent(brief.ideal_share) if brief.ideal_share is not None else ""
            metrics = [number(brief.metrics[name], 4) if name in brief.metrics else "" for name in names]
            figures = [duration(brief.wall_s), number(brief.steps_per_s, 2), share, *metrics]
        words = "; ".join(part for part in (one.ended, " ".join(f"#{tag}" for tag in one.tags), one.note) if part)
        cells = [one.folder.name, one.strategy, str(one.run.get("workers", "")), *figures, words]
        table.add_row(*map(Text, cells))
    return table


@commands.command(
    cls=Command, name="compare", epilog="For example: plesio runs compare runs/20261121-* --until accuracy=0.95"
)
def compared(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    until: Annotated[
        str,
        typer.Option(
            metavar="METRIC=VALUE", help="Compare by the time to this; without it, to what all were to reach."
        ),
    ] = "",
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report there, too.")] = None,
) -> None:
    """Compare finished runs: the table, the finding and the report that plesio compare makes."""
    folders = [_there(one) for one in folders]
    summaries = [read_summary(one) for one in folders]
    target = _target(until) if until else _common_target(folders)
    names = [one.strategy for one in summaries]
    summaries = [  # two runs of one strategy are told apart by their folders
        msgspec.structs.replace(one, strategy=f"{one.strategy} {folder.name}") if names.count(one.strategy) > 1 else one
        for one, folder in zip(summaries, folders, strict=True)
    ]
    metric = metric_of(summaries, target)
    console = terminal()
    console.print(compare_table(summaries, target, metric, width=console.width))
    for note in notes(summaries, target, metric):
        console.print(Text(note, style="dim"), soft_wrap=True)
    console.print(Text(finding(summaries, target), style="bold"), soft_wrap=True)
    if report is not None:
        title = f"{len(summaries)} runs"
        try:
            write_report(report, summaries, title=title, target=target, note=", ".join(map(str, folders)))
        except OSError as error:
            raise ConfigurationError(f"{report} cannot be written: {error.strerror}; give another file") from error
        console.print(Text(f"Report: {report}"), soft_wrap=True)


@commands.command(
    cls=Command,
    name="tag",
    epilog="For example: plesio runs tag runs/20261121-101530-async_sgd baseline --note 'lr .1'",
)
def tagged(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    tags: Annotated[list[str] | None, typer.Argument(metavar="TAG...", help="What to tag it with.")] = None,
    note: Annotated[str | None, typer.Option(help="A note; an empty one takes it away.")] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="TAG", help="Take this tag away.")] = None,
) -> None:
    """Tag a run, or write a note about it. Runs with a tag or a note are not pruned."""
    folder = _there(folder)
    was = kept(folder)
    left = {*was.tags, *(tags or ())} - set(drop or ())
    write_notes(folder, left, was.note if note is None else note)
    now = kept(folder)
    print("; ".join(part for part in (" ".join(f"#{tag}" for tag in now.tags), now.note) if part) or "no tags")


@commands.command(cls=Command, name="prune", epilog="For example: plesio runs prune --keep 20 --yes")
def pruned(
    runs: Runs = Path("runs"),
    keep: Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the N that changed last.")] = None,
    older: Annotated[
        float | None,
        typer.Option("--older", metavar="DAYS", min=0, help="Only those that did not change for so many days."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only listed.")] = False,
) -> None:
    """Remove run folders, except those with a tag or a note, and those that may be under way."""
    if keep is None and older is None:
        raise ConfigurationError("plesio runs prune: give --keep N or --older DAYS")
    found, failed = to_prune(history(runs), keep, older), []
    for one in found:
        try:
            if yes:
                shutil.rmtree(one.folder)
        except OSError as error:
            failed.append(f"{one.folder} cannot be removed: {error.strerror}")
        else:
            age = duration(time.time() - one.changed_s)
            print(f"{'removed' if yes else 'would remove'} {one.folder}  ({one.ended}, {age} old)")
    if not yes and found:
        print("with --yes they are removed, with their weights, journals and checkpoints")
    elif not found:
        print("nothing to remove")
    if failed:
        raise ConfigurationError("; ".join(failed))
