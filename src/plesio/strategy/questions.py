"""What a strategy's answers are told."""

from __future__ import annotations

import msgspec


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """What is known of a contribution when it is weighed: a later answer's new need is one more field here.

    Args:
        staleness: versions folded since the one it was computed from.
        workers: how many the run was asked to have.
        work: its samples, or its steps where nobody knows them.
        version: the version it comes to, so the number of folds so far.
        epochs: passes over the data that are in the parameters; 0 where the loop's data is its own.
    """

    staleness: int
    workers: int
    work: int
    version: int
    epochs: float
