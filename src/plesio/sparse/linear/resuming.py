"""A fit in a folder: kept after each epoch, gone on from as if it had never ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plesio.errors import CheckpointError
from plesio.sparse import saving
from plesio.sparse.epochs import Epoch
from plesio.sparse.linear.plans import Learner

_ARRAYS = ("weights", "intercept", "paid", "lag", "total")
_NUMBERS = ("scale", "seen", "owed", "total_intercept", "averaged", "best_loss", "idle_epochs", "stopped")


def save(folder: str | Path, learners: Sequence[Learner], history: Sequence[Epoch], about: dict[str, Any]) -> None:
    """Keep the learners as they are, their scale not multiplied in: going on gives the same bits."""
    arrays = {f"{name}.{k}": getattr(learner, name) for k, learner in enumerate(learners) for name in _ARRAYS}
    states = [{"lr": learner.rate.lr} | {name: getattr(learner, name) for name in _NUMBERS} for learner in learners]
    saving.save(folder, arrays, about | {"learners": states, "history": saving.written(history)})


def load(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `save` kept: the arrays, and the rest."""
    arrays, about = saving.load(folder)
    if "learners" not in about:
        raise CheckpointError(f"what is in {str(folder)!r} is not the checkpoint of a linear model.")
    return arrays, about


def restore(learners: Sequence[Learner], arrays: dict[str, Any], about: dict[str, Any]) -> list[Epoch]:
    """Bring the learners to where they were; the epochs they had done."""
    for k, (learner, state) in enumerate(zip(learners, about["learners"], strict=True)):
        for name in _ARRAYS:
            array, kept = getattr(learner, name), arrays[f"{name}.{k}"]
            if array.shape != kept.shape:
                raise CheckpointError(f"the checkpoint has {name} of shape {kept.shape}, the model {array.shape}.")
            np.copyto(array, kept)
        for name in _NUMBERS:
            setattr(learner, name, state[name])
        learner.rate.lr = state["lr"]
    return saving.read(about["history"])
