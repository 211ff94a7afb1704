"""What a checkpoint keeps of learners: gone on from, a fit ends as if it had never been stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plesio.errors import CheckpointError
from plesio.sparse.linear.plans import Learner

_ARRAYS = ("weights", "intercept", "paid", "lag", "total")
_NUMBERS = ("scale", "seen", "owed", "total_intercept", "averaged", "best_loss", "idle_epochs", "stopped")


def arrays_of(learners: Sequence[Learner]) -> dict[str, Any]:
    """The learners as they are, their scale not multiplied in: going on gives the same bits."""
    return {f"{name}.{k}": getattr(learner, name) for k, learner in enumerate(learners) for name in _ARRAYS}


def states_of(learners: Sequence[Learner]) -> list[dict[str, Any]]:
    """What they are beside their arrays."""
    return [{"lr": learner.rate.lr} | {name: getattr(learner, name) for name in _NUMBERS} for learner in learners]


def restore(learners: Sequence[Learner], arrays: dict[str, Any], states: list[dict[str, Any]]) -> None:
    """Bring the learners to where they were."""
    for k, (learner, state) in enumerate(zip(learners, states, strict=True)):
        for name in _ARRAYS:
            array, kept = getattr(learner, name), arrays[f"{name}.{k}"]
            if array.shape != kept.shape:
                raise CheckpointError(f"the checkpoint has {name} of shape {kept.shape}, the model {array.shape}.")
            np.copyto(array, kept)
        for name in _NUMBERS:
            setattr(learner, name, state[name])
        learner.rate.lr = state["lr"]
