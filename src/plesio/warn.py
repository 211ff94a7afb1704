"""Warnings to the user of a worker: they point at the line of the training loop, not at ours."""

from __future__ import annotations

import sys
import warnings

INSIDE = ("plesio.", "torch.")
"""Whose frames lie between the training loop and what warns: a scheduler of torch wraps `step`, too."""


def warn_not_finite(worker: int) -> None:
    """Tell, once a place, that a contribution was thrown away."""
    warnings.warn(
        f"worker {worker}: a contribution held a NaN or an infinity and was discarded; look at the learning rate and "
        "the data, or stop at the first one with on_nonfinite='raise'",
        RuntimeWarning,
        stacklevel=_users_level(),
    )


def warn_frozen(name: str) -> None:
    """Tell, once a place, that freezing a layer does not hold it where the optimizer steps at the server."""
    warnings.warn(
        f"{name} was frozen after prepare: it contributes zeros, and weight decay and momentum at the server go on moving it; "
        "freeze it before prepare",
        RuntimeWarning,
        stacklevel=_users_level(),
    )


def _users_level() -> int:
    """How many calls up the user's own line is, as `stacklevel` counts for whoever called this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    return level
