"""The parameters of a simulated run: one number for each contribution ever made, counting how often it was folded.

A contribution is a one-hot vector of integers, so the parameters are the very multiset of what was folded, and a fault
cannot hide in rounding.
"""

from __future__ import annotations

from typing import Self

import msgspec

from plesio.core.sequencer import SequencerState
from torture.sessions.service import ServiceState

GROW = 1024


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """What a worker computed; its place in the list of all is its payload."""

    worker: int
    incarnation: int
    number: int
    computed_from: int
    batch: int
    finite: bool


class ModelState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps of the model."""

    version: int
    params: bytes
    visited: bytes
    folded: tuple[int, ...]


class Image(msgspec.Struct, frozen=True):
    """A checkpoint."""

    model: ModelState
    sequencer: SequencerState
    service: ServiceState
    rows: tuple[str, int] = ("", 0)
    """Of tables: the folder with their rows, and the clock."""


class Model:
    """Parameters, which batches are in them, and how many contributions of each worker."""

    def __init__(self, workers: int) -> None:
        self.version = 0
        self.params = bytearray(GROW)
        self.visited = bytearray(GROW)
        self.folded = [0] * workers

    def add(self, payload: int, one: Contribution) -> None:
        """Add a contribution to what is to be the next version."""
        while payload >= len(self.params):
            self.params.extend(bytes(GROW))
        while one.batch >= len(self.visited):
            self.visited.extend(bytes(GROW))
        self.params[payload] += 1
        self.visited[one.batch] += 1
        self.folded[one.worker] += 1

    def state(self) -> ModelState:
        """A copy, for a checkpoint or a backup."""
        return ModelState(self.version, bytes(self.params), bytes(self.visited), tuple(self.folded))

    @classmethod
    def restore(cls, state: ModelState) -> Self:
        """The model as it was."""
        model = cls(0)
        model.go_back(state)
        return model

    def go_back(self, state: ModelState) -> None:
        """Be what it was."""
        self.version, self.folded = state.version, list(state.folded)
        self.params, self.visited = bytearray(state.params), bytearray(state.visited)
