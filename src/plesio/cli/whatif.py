"""`plesio whatif`: what a run that was would have cost under other strategies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich import box
from rich.table import Table

from plesio.cli.live import terminal
from plesio.cli.settings import strategies_of, strategy_of, usual
from plesio.errors import ConfigurationError, StrategyError
from plesio.observe.amounts import duration, number, percent
from plesio.observe.history import read_summary
from plesio.observe.summary import Summary
from plesio.strategy import Strategy
from plesio.strategy.renamed import name_today

if TYPE_CHECKING:
    from plesio.launch.simulated.whatif import Prediction
    from plesio.observe.times import Measured

CLOSE = 0.05  # a replay of what ran that is further off than this says so
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def whatif(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", metavar="A,B,...", help="As for compare; without it those that compare takes."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Assume this many workers; any beyond those measured are drawn from them.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="Assume links of this many bytes a second, such as 125MB; without it, as measured."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the draws of steps and workers beyond those measured.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of the table.")] = False,
) -> None:
    """Replay the measured times of a run under other strategies, in virtual time.

    Says what each would have cost to the same number of samples, and which to take. "Leaves out" names the
    workers whose work would mostly have been in vain.
    """
    from plesio.launch.simulated.whatif import as_it_was, own_work, recommendation, what_if
    from plesio.observe.times import measured

    summary = read_summary(run)
    times = measured(summary)
    number = workers if workers is not None else len(times.workers)
    asked = strategies_of(",".join(usual(number)) if strategies is None else strategies, number)
    same = _same(summary, number)
    chosen = [*([same] if same is not None else []), *(one for one in asked if same is None or one.name != same.name)]
    found = what_if(times, chosen, workers, bytes_per_s(bandwidth), seed)
    was = as_it_was(summary)
    changed = workers is not None or bandwidth is not None
    if changed and same is None:
        raise ConfigurationError(
            f"{summary.strategy} is not a strategy of `plesio strategies`, so it cannot be replayed with other workers "
            "or links; leave --workers and --bandwidth out"
        )
    ran = found[0] if changed else was
    words = recommendation(times, ran, found)
    notes = _notes(was, found, same is not None and not changed, number, len(times.workers))
    notes += _assumptions(times, own_work(summary))
    if as_json:
        answer = {"run": str(run), "ran": was, "predictions": found, "recommendation": words, "notes": notes}
        print(msgspec.json.encode(answer).decode())
        return
    console = terminal()
    console.print(_table(was, found, ran), "", words, *(f"Note: {note}." for note in notes), sep="\n", markup=False)


def bytes_per_s(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+\.?\d*(?:[eE]\d+)?)\s*(B|kB|MB|GB)", text.strip())
    if match is None or not float(match[1]) > 0:
        raise ConfigurationError(
            f"--bandwidth {text}: bytes a second above 0 with their unit, such as 125MB ({', '.join(UNITS)})"
        )
    return float(match[1]) * UNITS[match[2]]


def _same(summary: Summary, workers: int) -> Strategy | None:
    """The strategy that ran, if its name says all of it."""
    try:
        name = name_today(summary.strategy)
        strategy = strategy_of(name, workers)
        strategy.check_workers(workers)
    except StrategyError:
        return None
    return strategy if strategy.name == name else None


def _notes(was: Prediction, found: Sequence[Prediction], replayed: bool, workers: int, there: int) -> list[str]:
    """How to read the table; `replayed`: the first of `found` is the run itself; `there`: the workers that it had."""
    notes = ["equal samples, not equal accuracy"]
    if replayed:
        again_s = found[0].time_s
        words = f"the replay of {was.strategy} itself takes {duration(again_s)}; it took {duration(was.time_s)}"
        off = again_s / was.time_s - 1
        if abs(off) > CLOSE:
            words += f": {abs(off):.0%} {'more' if off > 0 else 'less'}, and the other rows may be off by as much"
        notes.append(words)
    if workers > there:
        notes.append(f"{workers - there} of {workers} workers are drawn from the {there} there were")
    shared = ", ".join(one.strategy for one in found if one.one_host)
    if shared:
        notes.append(f"only on one host, where no link slows it down, and so not recommended: {shared}")
    return notes


def _assumptions(times: Measured, own_work: bool) -> list[str]:
    """What was not measured, and what it is taken to be."""
    notes = [
        f"worker {one.worker} finished no step: it is taken to need {one.mean_s * 1e3:.0f} ms, the longest it computed "
        "before it was called off; it may need more, and what needs it then takes longer than is said here (≥)"
        for one in times.workers
        if one.at_least
    ]
    notes += [
        f"worker {one.worker} was done after {one.last:,} steps while others went on: so it is under every strategy"
        for one in times.workers
        if one.last is not None
    ]
    lost = sum(len(one.called_off) for one in times.workers)
    if lost:
        notes.append(
            f"{lost:,} of {lost + sum(len(one.seconds) for one in times.workers):,} steps were called off: each is taken "
            "to need as long as one that took longer"
        )
    if own_work:
        notes.append(
            "no worker took its data from a shared loader, and this assumes that work is shared out: where each worker has a "
            "fixed number of steps of its own, nobody takes over those of a slow one, and no strategy is faster than it"
        )
    if not times.service_s:
        notes.append("no exchange with a server was measured: it is taken to cost nothing")
    return notes


def _table(was: Prediction, found: Sequence[Prediction], ran: Prediction) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column("strategy", overflow="fold", min_width=20)
    for heading in ("time", "times\nfaster", "steps\n/s", "wait-\ning", "stale-\nness"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("leaves\nout")
    table.add_row(f"{was.strategy}, as it ran", *_cells(was, ran))
    table.add_section()
    for one in found:
        table.add_row(one.strategy, *_cells(one, ran))
    return table


def _cells(one: Prediction, ran: Prediction) -> list[str]:
    left_out = ", ".join(map(str, one.left_out[:4])) + ("..." if len(one.left_out) > 4 else "")
    least, most = ("≥ ", "≤ ") if one.at_least else ("", "")
    return [
        f"{least}{duration(one.time_s)}",
        f"{most}{ran.time_s / one.time_s:.2f}",
        number(one.steps_per_s, 2),
        percent(one.waiting_share),
        f"{one.staleness:.2f}",
        f"worker {left_out}" if left_out else "",
    ]
