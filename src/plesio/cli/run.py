"""`plesio run`: one script under one strategy."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from plesio.cli.live import StrategyLines, simulated_in, terminal
from plesio.cli.options import Arguments, Function, ScriptPath, Watch, WatchAt, takes_settings
from plesio.cli.script import load
from plesio.cli.typed import config_of
from plesio.config import RunConfig
from plesio.config.run_config import NEWEST
from plesio.errors import DeadlineError, RunInterrupted, ServerLostError, WorkerLostError
from plesio.observe.tables import run_table

if TYPE_CHECKING:
    from plesio.launch.job import Live
    from plesio.launch.result import Run


@takes_settings(but=["engine", "workers_max"])
def run(
    context: typer.Context, script: ScriptPath, arguments: Arguments = None, watch: Watch = False,
    watch_at: WatchAt = None, function: Function = "train", **typed: Any,
) -> int:  # fmt: skip
    """Train a script's model under one strategy and print what it cost.

    SCRIPT defines train(worker), and evaluate(model) to measure as it goes.
    """
    return train(context, script, arguments, config_of(typed), watch_at or watch, function)


def train(
    context: typer.Context,
    script: Path,
    arguments: list[str] | None,
    config: RunConfig,
    page: bool | str,
    function: str,
) -> int:
    """Run a script, with a line that shows how it stands, and print what it cost; if it was cut short, how to go on."""
    since_s = time.monotonic()
    loaded = load(script, arguments, config, function)
    return to_its_end(context, terminal(), config, lambda watch: loaded.run(config, watch, page, since_s))


def to_its_end(
    context: typer.Context, console: Console, config: RunConfig, run: Callable[[Callable[[Live], object]], Run]
) -> int:
    """Show how `run`, which is told what to call meanwhile, goes, and its table; 1 where its result is spoilt or not written."""
    started_s = time.monotonic()
    try:
        with StrategyLines(console, [config.strategy.name], config.until, says=False) as board:
            done = run(board.watch(0))
    except (RunInterrupted, ServerLostError, WorkerLostError, DeadlineError) as stop:
        partial = getattr(stop, "run", None)
        _show(console, partial)
        if partial is not None or stop.resume is not None:
            _say_how_to_go_on(console, context.obj, partial, stop.resume, config)
        raise
    _show(console, done)
    if done.lacking:
        again = "go on from the last checkpoint to have it written" if done.resume else "begin again"
        console.print(f"make room, or give another folder (--runs), and {again}", soft_wrap=True)
        _say_how_to_go_on(console, context.obj, done, done.resume, config)
    if config.simulated:
        console.print(simulated_in(done.summary.wall_s, time.monotonic() - started_s), soft_wrap=True)
    return 1 if done.summary.spoilt or done.lacking else 0


def _show(console: Console, done: Run | None) -> None:
    if done is not None:
        table = run_table(done.summary, done.folder, lacking=done.lacking, width=console.width)
        console.print(table, markup=False, soft_wrap=True)


def _say_how_to_go_on(
    console: Console, typed: Sequence[str], done: Run | None, place: Path | None, config: RunConfig
) -> None:
    if done is not None and done.behind:
        console.print(f"the newest checkpoint is of version {done.version - done.behind}, {done.behind} behind")
    console.print(how_to_go_on(typed, place, config), markup=False, soft_wrap=True)


def how_to_go_on(typed: Sequence[str], place: Path | None, config: RunConfig) -> str:
    """The command that resumes from `place` what was started by the one `typed`, or why there is none."""
    same_again = shlex.join(["plesio", *typed])
    if place is None and config.checkpoint is not None:
        return f"there is no checkpoint yet to go on from; begin again with: {same_again}"
    if place is None and not config.strategy.via.in_shared_memory:
        return "there is no checkpoint to go on from; --checkpoint-every-s 60 keeps them"
    if place is None:
        return f"there is no checkpoint to go on from: under {config.strategy.name} there is no server that keeps them"
    if config.resume == NEWEST:
        return f"go on with: {same_again}"
    own = typed.index("--") if "--" in typed else len(typed)  # what is behind it is the script's
    given = typed[:own]
    if place not in [
        Path(word.removeprefix("--resume=")) for word in given
    ]:  # its own checkpoint knows how far its data is
        given = shlex.split(shlex.join(given).replace("--data=new", "").replace("--data new", ""))
    same = [
        word
        for before, word in zip(["", *given], given, strict=False)
        if "--resume" not in (before, word) and not word.startswith("--resume=")
    ]
    return f"go on with: {shlex.join(['plesio', *same, '--resume', str(place), *typed[own:]])}"
