"""The options that `run`, `simulate` and `compare` share; `plesio.cli.work` says what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plesio.cluster.presets import PRESETS

ScriptPath = Annotated[
    Path,
    typer.Argument(metavar="SCRIPT", help="Python file that defines train(worker), and evaluate(model) to measure."),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGUMENTS", help="What the script is to find in sys.argv.", show_default=False),
]
StrategyName = Annotated[
    str, typer.Option(metavar="NAME", help="How workers keep step: a name that `plesio strategies` lists.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the strategy: every=16, every=0.3s. May be repeated."
    ),
]
Workers = Annotated[int, typer.Option(help="How many worker processes.")]
SimulatedWorkers = Annotated[
    int | None, typer.Option(help="How many. Without it as many as the cluster's file describes, 8 of a preset.")
]
ClusterName = Annotated[
    str, typer.Option(metavar="NAME|FILE", help=f"The machines: {', '.join(PRESETS)}; or a TOML file.")
]
Slows = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="WORKER:FACTOR", help="Make a worker slower; 0:10 is ten times. May be repeated."),
]
Kills = Annotated[
    list[str] | None,
    typer.Option("--kill", metavar="WORKER:SECONDS", help="Kill a worker (or: server) that long into training. May be "
                 "repeated."),
]  # fmt: skip
PaceS = Annotated[
    float | None,
    typer.Option("--pace", metavar="SECONDS", help="Make a step last at least this long, in place of an accelerator."),
]
Jitter = Annotated[float, typer.Option(metavar="SHARE", help="Let paced steps vary by this share (normal, 0 to 1).")]
Untils = Annotated[
    list[str] | None,
    typer.Option("--until", metavar="NAME=VALUE", help="Stop at a value that evaluate(model) returns, such as "
                 "accuracy=0.95 (at least; at most for names with loss, error, mse, mae, perplexity or nll in them, "
                 "but for neg_...), or at a number of samples, or of steps (a resumed run goes on counting). May be repeated."),
]  # fmt: skip
BudgetS = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this long.")]
Seed = Annotated[int, typer.Option(help="Seeds everything random: initial weights, order of data, jitter.")]
EvaluateEveryS = Annotated[float, typer.Option(metavar="SECONDS", help="Pause between two evaluations.")]
Data = Annotated[
    str, typer.Option(metavar="leases|shards", help="leases: fast workers take more of the data; shards: equal parts.")
]
OnWorkerError = Annotated[
    str, typer.Option(metavar="raise|continue", help="An exception in one worker ends the run, or only that worker.")
]
OnNonfinite = Annotated[
    str, typer.Option(metavar="discard|raise", help="A NaN or infinity in a contribution: do not count it, or stop.")
]
TimeoutS = Annotated[
    float, typer.Option(metavar="SECONDS", help="After how long a wait of one process for another is an error.")
]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Where run folders go.")]
