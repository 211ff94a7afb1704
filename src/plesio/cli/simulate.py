"""`plesio simulate`: as `plesio run`, on machines there are not, in virtual time."""

from __future__ import annotations

import time
from pathlib import Path

from rich.text import Text

from plesio.cli import options
from plesio.cli.live import Board, simulated_in, terminal
from plesio.cli.run import show
from plesio.cli.script import load
from plesio.cli.settings import strategy_of
from plesio.cli.work import work_of
from plesio.errors import RunInterrupted


def simulate(
    script: options.ScriptPath,
    cluster: options.ClusterName,
    arguments: options.Arguments = None,
    strategy: options.StrategyName = "async_sgd",
    settings: options.Settings = None,
    workers: options.SimulatedWorkers = None,
    until: options.Untils = None,
    budget_s: options.BudgetS = None,
    seed: options.Seed = 0,
    evaluate_every_s: options.EvaluateEveryS = 0.5,
    data: options.Data = "leases",
    on_worker_error: options.OnWorkerError = "raise",
    on_nonfinite: options.OnNonfinite = "discard",
    timeout_s: options.TimeoutS = 300.0,
    runs: options.Runs = Path("runs"),
) -> int:
    """Train a script's model on simulated machines, in virtual time, and print what it would have cost.

    SCRIPT is that of `plesio run`: its gradients are computed, one worker's after the other's, only time is virtual.
    """
    work = work_of(
        workers=workers,
        cluster=cluster,
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
    chosen = strategy_of(strategy, work.workers, settings or ())
    chosen.check_workers(work.workers)
    console = terminal()
    console.print(Text(f"{script}: {work.setting()}"), soft_wrap=True)
    started_s = time.monotonic()
    try:
        with Board(console, [chosen.name], work.target, work.budget_s, says=False) as board:
            done = work.run(load(script, work.metrics, arguments or (), processes=False), chosen, board.watch(0))
    except RunInterrupted as stop:
        show(console, stop.run)
        raise
    show(console, done)
    console.print(Text(simulated_in(done.summary.wall_s, time.monotonic() - started_s)), soft_wrap=True)
    return 0
