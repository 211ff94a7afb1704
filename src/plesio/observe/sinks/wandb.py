"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plesio.observe.sinks.feed import Told, needs
from plesio.observe.summary import Summary


class WandB:
    """Logs to Weights & Biases; the steps of its axes are samples.

    Args:
        project: the project's name.
        options: what else `wandb.init` takes, such as mode="offline", dir=..., group=....

    Raises:
        ConfigurationError: the package wandb is not installed.

    >>> sink = ps.sinks.WandB("digits", mode="offline")
    >>> # ps.run(..., sinks=[sink])
    """

    def __init__(self, project: str, **options: Any) -> None:
        needs("WandB", "wandb", "wandb")
        self._options = {"project": project, **options}
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(**{"name": name, "config": dict(settings), "reinit": "create_new", **self._options})

    def tell(self, told: Told) -> None:
        self._run.log(told.numbers, step=told.at)

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            for name in ("steps_per_s", "ideal_share", "waiting_share", "ended"):
                self._run.summary[name] = getattr(summary, name)
        self._run.finish()
