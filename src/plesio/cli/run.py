"""`plesio run`: one script under one strategy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from plesio.cli import options
from plesio.cli.live import Board, terminal
from plesio.cli.script import load
from plesio.cli.settings import strategy_of
from plesio.cli.work import typed, work_of
from plesio.errors import RunInterrupted
from plesio.observe.tables import run_table
from plesio.strategy import Strategy

if TYPE_CHECKING:
    from plesio.runner import Run
    from plesio.server.checkpoints import Checkpoint

CheckpointEveryS = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Write a checkpoint into the run folder this often.", show_default=False),
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Go on from the newest checkpoint of that run folder.", show_default=False),
]


def run(
    context: typer.Context,
    script: options.ScriptPath,
    arguments: options.Arguments = None,
    strategy: options.StrategyName = "async_sgd",
    settings: options.Settings = None,
    workers: options.Workers = 4,
    slow: options.Slows = None,
    pace: options.PaceS = None,
    jitter: options.Jitter = 0.0,
    until: options.Untils = None,
    budget_s: options.BudgetS = None,
    seed: options.Seed = 0,
    evaluate_every_s: options.EvaluateEveryS = 0.5,
    data: options.Data = "leases",
    on_worker_error: options.OnWorkerError = "raise",
    on_nonfinite: options.OnNonfinite = "discard",
    timeout_s: options.TimeoutS = 300.0,
    kill: options.Kills = None,
    runs: options.Runs = Path("runs"),
    checkpoint_every_s: CheckpointEveryS = None,
    resume: Resume = None,
) -> int:
    """Train a script's model under one strategy and print what it cost.

    SCRIPT defines train(worker), and evaluate(model) to measure as it goes.
    """
    work = work_of(
        workers=workers,
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
    chosen = strategy_of(strategy, workers, settings or ())
    chosen.check_workers(workers)
    console = terminal()
    try:
        with Board(console, [chosen.name], work.target, work.budget_s, says=False) as board:
            watch = board.watch(0)
            loaded = load(script, work.metrics, arguments or ())
            done = work.run(loaded, chosen, watch, checkpoint=_checkpoint(checkpoint_every_s), resume=resume)
    except RunInterrupted as stop:
        show(console, stop.run)
        if stop.run is not None or stop.resume is not None:
            console.print(how_to_go_on(context.obj, stop.resume, chosen), markup=False, soft_wrap=True)
        raise
    show(console, done)
    return 0


def show(console: Console, done: Run | None) -> None:
    if done is not None:
        console.print(run_table(done.summary, done.folder, width=console.width), markup=False, soft_wrap=True)


def how_to_go_on(typed: Sequence[str], place: Path | None, strategy: Strategy) -> str:
    """The command that resumes from `place` what was started by the one `typed`, or why there is none.

    >>> how_to_go_on(["run", "train.py", "--resume", "runs/a", "--seed=1"], Path("runs/b"), Strategy(name="any"))
    'go on with: plesio run train.py --seed=1 --resume runs/b'
    >>> how_to_go_on(["run", "train.py", "--", "--resume", "x"], Path("runs/b"), Strategy(name="any"))
    'go on with: plesio run train.py --resume runs/b -- --resume x'
    >>> how_to_go_on(["run", "train.py"], None, Strategy(name="any"))
    'there is no checkpoint to go on from; --checkpoint-every-s 60 keeps them'
    """
    if place is None and strategy.via.at_server:
        return "there is no checkpoint to go on from; --checkpoint-every-s 60 keeps them"
    if place is None:
        return f"there is no checkpoint to go on from: under {strategy.name} there is no server that keeps them"
    own = typed.index("--") if "--" in typed else len(typed)  # what is behind it is the script's
    same = [
        word
        for before, word in zip(["", *typed], typed[:own], strict=False)
        if "--resume" not in (before, word) and not word.startswith("--resume=")
    ]
    return f"go on with: {shlex.join(['plesio', *same, '--resume', str(place), *typed[own:]])}"


def _checkpoint(every_s: float | None) -> Checkpoint | None:
    if every_s is None:
        return None
    from plesio.server.checkpoints import Checkpoint  # imports torch

    with typed(f"--checkpoint-every-s {every_s:g}"):
        return Checkpoint(every_s=every_s)
