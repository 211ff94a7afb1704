"""`make torture`: the core under simulated faults, seed after seed."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from plesio.cli.live import terminal
from torture import Outcome, excerpt, shrink
from torture.bugs import planted
from torture.plan import way_to_draw
from torture.world import simulate

FAILURES_SHOWN = 5
REDRAW_S = 0.1

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds: each is a cluster, a strategy and a mix of faults.")]
FirstSeed = Annotated[int, typer.Option(help="The first seed.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Workers of each; drawn from 1 to 6 if not given.")]
Contributions = Annotated[
    int | None, typer.Option(min=1, help="Contributions of each worker; drawn from 5 to 40 if not given.")
]
Tables = Annotated[
    bool,
    typer.Option(
        "--tables",
        help="The model has a table, whose rows are at one to three servers, or at the one that dies.",
    ),
]
Deaths = Annotated[
    bool, typer.Option("--deaths", help="The server's process dies now and then, and a spare of it goes on.")
]
Switches = Annotated[bool, typer.Option("--switches", help="The strategy is another one now and then.")]
Bug = Annotated[str | None, typer.Option(metavar="NAME", help="Plant a bug, to see it found.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(slots=True)
class Sweep:
    """What a range of seeds came to."""

    seeds: int = 0
    wall_s: float = 0.0
    simulated_s: float = 0.0
    contributions: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.simulated_s += outcome.time_s
        self.contributions += outcome.contributions
        self.tally.update(outcome.tally)
        if outcome.failure is not None:
            self.failures.append(outcome)


def torture(
    seeds: Seeds = 10_000,
    first_seed: FirstSeed = 0,
    workers: Workers = None,
    contributions: Contributions = None,
    bug: Bug = None,
    tables: Tables = False,
    deaths: Deaths = False,
    switches: Switches = False,
    as_json: AsJson = False,
) -> int:
    """Run the core under lossy networks, crashes and torn disks, all simulated, and check every promise.

    Each seed is one run. A failing one is printed with the smallest run that still fails, as a story.
    """
    console = terminal()
    parts, draw = planted(bug), way_to_draw(tables, deaths, switches)
    sweep = Sweep()
    started_s = time.perf_counter()
    with _progress(console) as progress:
        line = progress.add_task("", total=seeds, words="")
        drawn_s = started_s
        for seed in range(first_seed, first_seed + seeds):
            outcome = simulate(draw(seed, workers, contributions), parts)
            sweep.add(outcome)
            sweep.wall_s = time.perf_counter() - started_s
            if outcome.failure is not None and not as_json:
                kinds = {"--tables": tables, "--deaths": deaths, "--switches": switches}
                again = _again(seed, workers, contributions, bug, [name for name, given in kinds.items() if given])
                _tell(progress.console, outcome, shrink(outcome.plan, parts), again)
            if len(sweep.failures) == FAILURES_SHOWN:
                break
            if sweep.wall_s + started_s - drawn_s > REDRAW_S:
                drawn_s = sweep.wall_s + started_s
                progress.update(line, completed=sweep.seeds, words=_words(sweep))
        progress.update(line, completed=sweep.seeds, words=_words(sweep))
    if as_json:
        print(json.dumps(_document(sweep), indent=2))
    else:
        console.print(_table(sweep))
    return 1 if sweep.failures else 0


def _progress(console: Console) -> Progress:
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("seeds  {task.fields[words]}"), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _words(sweep: Sweep) -> str:
    failed = f"  {len(sweep.failures)} FAILED" if sweep.failures else ""
    return f"{sweep.seeds / max(sweep.wall_s, 1e-9):,.0f}/s  {sweep.contributions:,} contributions{failed}"


def _again(seed: int, workers: int | None, contributions: int | None, bug: str | None, kind: list[str]) -> str:
    """The command that runs this seed alone."""
    options = {"--first-seed": seed, "--seeds": 1, "--workers": workers, "--contributions": contributions, "--bug": bug}
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return f"PYTHONPATH=tests {shlex.join(['python', '-m', 'torture', *given, *kind])}"


def _tell(console: Console, outcome: Outcome, smallest: Outcome, again: str) -> None:
    """A failure: the seed, what was broken, how to see it again, the smallest run that breaks too."""
    console.print(Text(f"seed {outcome.plan.seed} FAILED: {outcome.failure}", style="red"), soft_wrap=True)
    console.print(Text(f"  {outcome.plan}", style="dim"), soft_wrap=True)
    console.print(Text(f"  again: {again}", style="dim"), soft_wrap=True)
    console.print(Text(f"the smallest run that fails: {smallest.plan}"), soft_wrap=True)
    for line in excerpt(smallest):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()


def _table(sweep: Sweep) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    rate = f"{sweep.seeds / sweep.wall_s:,.1f} a second"
    rows = {
        "seeds": f"{sweep.seeds:,} ({rate})",
        "failed": f"{len(sweep.failures)}",
        "simulated time": f"{sweep.simulated_s:,.0f} s ({sweep.simulated_s / sweep.wall_s:,.0f} times as fast)",
        "contributions made": f"{sweep.contributions:,}",
        **{what: f"{count:,}" for what, count in sorted(sweep.tally.items())},
    }
    for what, value in rows.items():
        style = "red" if what == "failed" and sweep.failures else ""
        table.add_row(what, Text(value, style=style))
    return table


def _document(sweep: Sweep) -> dict[str, object]:
    return {
        "seeds": sweep.seeds,
        "seeds_per_s": sweep.seeds / sweep.wall_s,
        "wall_s": sweep.wall_s,
        "simulated_s": sweep.simulated_s,
        "contributions": sweep.contributions,
        "happened": dict(sweep.tally),
        "failures": [{"seed": one.plan.seed, "plan": str(one.plan), "broken": one.failure} for one in sweep.failures],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run it as a program; the exit code."""
    program = typer.Typer(add_completion=False)
    program.command()(torture)
    code = program(arguments, prog_name="torture", standalone_mode=False)
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
