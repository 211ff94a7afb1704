"""Warnings to the user of a worker: while the training loop runs they point at its line, not at ours."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

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


def warn_outside(names: Sequence[str]) -> None:
    """Tell that some of the model is nobody's to train: it may be meant for a second optimizer."""
    warnings.warn(
        f"no group of the optimizer given to prepare holds {_listed(names)}, with requires_grad=True: in the run they stay as "
        "they are, and what another optimizer does to them reaches no other worker; give prepare one optimizer with a group "
        "for each part of the model, or requires_grad_(False) what is not to be trained",
        RuntimeWarning,
        stacklevel=_users_level(),
    )


def warn_written(names: Sequence[str]) -> None:
    """Tell that weights were loaded or drawn too late."""
    warnings.warn(
        f"written to between prepare and the first step: {_listed(names)}. That is lost, for the next version takes its "
        "place; load or initialise weights before prepare (a forward pass that normalises its own weights may ignore this)",
        RuntimeWarning,
        stacklevel=_users_level(),
    )


def warn_kept_back(names: Sequence[str]) -> None:
    """Tell, at the end, that some of what training made is in no result."""
    _warn_at_the_end(
        f"worker 0 wrote into parameters that need no gradient: {_listed(names)}. Nobody exchanges these: the run's weights and "
        "evaluate have them as they were at the beginning. A moving average of the weights can be made of buffers instead, "
        "which are exchanged, or be kept and saved outside of the model given to prepare"
    )


def warn_unsent(names: Sequence[str]) -> None:
    """Tell, at the end, that what was written into buffers last is in no result."""
    _warn_at_the_end(
        f"worker 0 wrote into buffers after its last exchange: {_listed(names)}. The run's weights and evaluate have them as "
        "they were then: do it before the last step(), or to run.state_dict after ps.run (batch-norm statistics by a model that "
        "loaded it)"
    )


def warn_overwritten(names: Sequence[str]) -> None:
    """Tell, at the end, that weights were written last which are in no result, such as the best ones so far."""
    _warn_at_the_end(
        f"worker 0 wrote into parameters after its last exchange: {_listed(names)}. Unless it put them back, the run's weights "
        "and evaluate lack that, being as that exchange made them: save what you want to keep in train "
        "(torch.save(model.state_dict(), ...)), or do it to run.state_dict after ps.run"
    )


def _warn_at_the_end(message: str) -> None:
    """A filter that makes errors of warnings would cost the run now."""
    with suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=_users_level())


def warn_untied(first: str, second: str) -> None:
    """Tell that two tensors over one memory get their own."""
    warnings.warn(
        f"{first} and {second} lie in the same memory and are two tensors: here each gets its own, and what is written into "
        "one is no longer seen in the other. If they are never written to, ignore this, or .clone() one",
        RuntimeWarning,
        stacklevel=_users_level(),
    )


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _users_level() -> int:
    """How many calls up the user's own line is, as `stacklevel` counts for whoever called this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    return level
