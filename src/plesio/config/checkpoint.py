"""`Checkpoint`: how often a run is saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from plesio.cluster.check import OR_INFINITE, check_fields
from plesio.strategy.answers.answer import COUNT, Allowed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How often a run is saved, so that it can be resumed.

    Args:
        folder: where the checkpoints go; None: into the run folder (give `runs=` then).
        every_s: seconds between two checkpoints; one more is written at the end. If the run is stopped (`until`,
            `worker.stop`, Ctrl-C), that last one is of the moment of the stop: steps that workers finish after it are in
            the result, and a resumed run takes them again.
        keep: how many to keep; older ones are deleted.

    Raises:
        ConfigurationError: a time that is not above 0, or a `keep` that is no whole number of at least 1.

    >>> Checkpoint("ck", every_s=30)
    Checkpoint(folder='ck', every_s=30, keep=2)
    """

    folder: str | Path | None = None
    every_s: Annotated[float, Allowed("a number of seconds above 0", OR_INFINITE.holds)] = 60.0
    keep: Annotated[int, COUNT] = 2

    def __post_init__(self) -> None:
        check_fields(self)
