"""Whether a run's functions can be what they are given as."""

from __future__ import annotations

from plesio.config import RunConfig
from plesio.errors import ConfigurationError


def check_functions(config: RunConfig, train: object, evaluate: object, watch: object) -> None:
    """Raise `ConfigurationError` for a function of the user's that cannot be called, or one that is missing."""
    functions = {
        "train": (train, "a ps.Worker"),
        "watch": (watch, "the state of the run (or True, for the live page)"),
        "evaluate": (evaluate, "the model and returns names and numbers"),
    }
    for name, (given, what) in functions.items():
        if given is not None and not callable(given):
            raise ConfigurationError(f"{name}={given!r}: a function that takes {what}")
    if config.until.metrics and evaluate is None:
        raise ConfigurationError(
            f"until={config.until!r} needs evaluate=, a function that measures {', '.join(config.until.metrics)}"
        )
