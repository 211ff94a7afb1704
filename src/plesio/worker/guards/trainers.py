"""At the first step: a trainer that reads its data by itself.

It is given the prepared optimizer only. So each worker reads all of the data, and an epoch visits each sample once a worker.
"""

from __future__ import annotations

import sys
from types import FrameType

from plesio.errors import ConfigurationError

TRAINER = "transformers.trainer"
"""The module of Hugging Face's Trainer."""


def refuse_trainer() -> None:
    """Look for the trainer among the callers.

    Raises:
        ConfigurationError: it is there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == TRAINER:
            raise ConfigurationError(
                "transformers.Trainer made the first step without data from prepare: each worker would train on its whole "
                "train_dataset; prepare the DataLoader too, and let get_train_dataloader of a subclass return the prepared one"
            )
        frame = frame.f_back
