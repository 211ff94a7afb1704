"""`plesio simulate`: as `plesio run`, on machines there are not, in virtual time."""

from __future__ import annotations

from typing import Any

import typer
from rich.text import Text

from plesio.cli.live import terminal
from plesio.cli.options import REQUIRED, Arguments, Function, ScriptPath, Watch, WatchAt, options_of, takes_settings
from plesio.cli.run import train
from plesio.cli.typed import config_of, in_words
from plesio.config.setting import Option
from plesio.config.simulated import Simulated

(CLUSTER,) = options_of("engine")


@takes_settings(
    but=list(Simulated.refuses),
    instead=[
        Option("--cluster", CLUSTER.help, CLUSTER.metavar, str, REQUIRED),
        Option(
            "--workers", "How many. Without it as many as the cluster's file describes, 8 of a preset.", kind=int | None
        ),
    ],
)
def simulate(
    context: typer.Context, script: ScriptPath, arguments: Arguments = None, watch: Watch = False,
    watch_at: WatchAt = None, function: Function = "train", **typed: Any,
) -> int:  # fmt: skip
    """Train a script's model on simulated machines, in virtual time, and print what it would have cost.

    SCRIPT is that of `plesio run`: its gradients are computed, one worker's after the other's, only time is virtual.
    """
    config = config_of(typed)
    terminal().print(Text(f"{script}: {in_words(config, typed['cluster'])}"), soft_wrap=True)
    return train(context, script, arguments, config, watch_at or watch, function)
