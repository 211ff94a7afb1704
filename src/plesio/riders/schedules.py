"""How far each worker's learning-rate schedules are, and what its loop set in the optimizer, for a process that goes on where
another ended."""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any

import msgspec
from torch.optim import Optimizer

from plesio.core.events import Count
from plesio.riders.rider import Half, Pushing, Rider
from plesio.tensors.optimizer_spec import SCHEDULED, Groups, hyper_parameters, number, settings_of

CARRIED_MAX = 3000
"""In bytes: it travels with the first answer to a process."""
CHANGED_MAX = 64
Stands = tuple[Count, Annotated[bytes, msgspec.Meta(max_length=CARRIED_MAX)]]
"""(how often its schedules were called, what else a process goes on with: `Carried`, packed)"""
NOWHERE = (0, b"")
PLAIN = (int, float, str, tuple, list, type(None))
"""What a setting may be to be carried."""


class Carried(msgspec.Struct, array_like=True, frozen=True):
    """What a loop `changed` in the optimizer's groups since they were made (group, setting, value), and the states of schedules
    that go by what they are told, by their place among those that were prepared."""

    changed: list[tuple[int, str, Any]] = []
    states: dict[int, dict[str, Any]] = {}


class Schedules(Rider):
    """Where the schedules of the worker in each seat are."""

    name = "schedules"
    said = Stands

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.restore([NOWHERE] * workers)

    def told(self, worker: int, value: Stands) -> None:
        self._coming[worker] = value

    def answered(self, worker: int) -> None:
        self._made[worker] = self._coming[worker]

    def again(self, worker: int) -> None:
        self._coming[worker] = self._before[worker] = self._made[worker]

    def beginning(self, worker: int) -> Stands:
        return self._before[worker]

    def kept(self) -> list[Stands]:
        return list(self._made)

    def restore(self, kept: list[Any]) -> None:
        """A worker that is new begins with what the lowest one set."""
        stands = [(calls, b64decode(one) if isinstance(one, str) else one) for calls, one in kept[: self.workers]]
        stands += [(0, stands[0][1])] * (self.workers - len(stands))
        self._made, self._coming, self._before = list(stands), list(stands), stands


class Scheduling(Half):
    """A worker's schedules: `calls` so far, also before the run was resumed, `states` of those that are told something, and what
    there was `before`. `made`: the optimizer's settings when it was prepared."""

    heard = Stands

    def __init__(self) -> None:
        self.calls = self._said_calls = 0
        self.made: Groups = []
        self.states: dict[int, dict[str, Any]] = {}
        self.before = Carried()
        self._said_groups: Groups = []
        self._said_states = self.states

    def begin(self, optimizer: Optimizer) -> None:
        """It is prepared, with these settings."""
        self.made = hyper_parameters(optimizer)

    def keep(self, place: int, state: dict[str, Any]) -> None:
        """This is the state of a schedule that was told something."""
        state = {key: number(value) for key, value in state.items()}
        self.states = self.states | {place: {key: one for key, one in state.items() if isinstance(one, PLAIN)}}

    def take(self, pushing: Pushing) -> Stands | None:
        """Where they are, if that is new."""
        groups, states = pushing.optimizer.param_groups, self.states
        if self._said_calls == self.calls and self._said_groups == groups and self._said_states is states:
            return None
        self._said_calls, self._said_groups, self._said_states = self.calls, settings_of(pushing.optimizer), states
        changed = [
            (place, key, number(value))
            for place, (group, made) in enumerate(zip(groups, self.made, strict=False))
            for key, value in group.items()
            if key not in SCHEDULED and key in made and value is not made[key] and value != made[key]
        ]
        kept = Carried([one for one in changed if isinstance(one[2], PLAIN)][:CHANGED_MAX], states)
        packed = msgspec.msgpack.encode(kept, enc_hook=repr) if kept != Carried() else b""
        return self.calls, packed if len(packed) <= CARRIED_MAX else b""

    def lost(self) -> None:
        self._said_calls, self._said_groups, self._said_states = 0, [], self.states

    def hear(self, value: Stands) -> None:
        self.calls, carried = value
        self.before = msgspec.msgpack.decode(carried, type=Carried) if carried else Carried()
