"""How far each worker's learning-rate schedules are, and what its loop set in the optimizer, for a process that goes on where
another ended."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from torch.optim import Optimizer

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.core.events import Count
from plesio.tensors.optimizer_spec import Groups, hyper_parameters, number, settings_of, unsendable

CARRIED_MAX = 3000
"""In bytes: it travels with the first answer to a process."""
Stands = tuple[Count, Annotated[bytes, msgspec.Meta(max_length=CARRIED_MAX)]]
"""(how often its schedules were called, what else a process goes on with: `CarriedSettings`, packed)"""
NOWHERE = (0, b"")


class CarriedSettings(msgspec.Struct, array_like=True, frozen=True):
    """What a loop `changed` in the optimizer's groups since they were made (by group, by setting), and the states of schedules
    that go by what they are told, by their place among those that were prepared."""

    changed: dict[int, dict[str, Any]] = {}
    states: dict[int, dict[str, Any]] = {}


class Schedules(Attachment):
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
        stands = msgspec.convert(kept[: self.workers], list[Stands])
        stands += [(0, stands[0][1])] * (self.workers - len(stands))
        self._made, self._coming, self._before = list(stands), list(stands), stands


class Scheduling(Half):
    """A worker's schedules: `calls` so far, also before the run was resumed, `states` of those that are told something, and what
    there was `before`. `made`: the optimizer's settings when it was prepared."""

    heard = Stands

    def __init__(self) -> None:
        self.calls = 0
        self.made: Groups = []
        self.states: dict[int, dict[str, Any]] = {}
        self.before = CarriedSettings()
        self._said: tuple[int, Groups, dict[int, Any]] | None = None

    def begin(self, optimizer: Optimizer) -> None:
        """It is prepared, with these settings."""
        self.made = hyper_parameters(optimizer)

    def keep(self, place: int, state: dict[str, Any]) -> None:
        """This is the state of a schedule that was told something."""
        values = {key: number(value) for key, value in state.items() if not isinstance(value, dict)}
        self.states = self.states | {place: {key: one for key, one in values.items() if not unsendable(one)}}

    def take(self, pushing: Pushing) -> Stands | None:
        """Where they are, if that is new. What is too large is left out."""
        if self._said == (self.calls, pushing.optimizer.param_groups, self.states):
            return None
        self._said = self.calls, settings_of(pushing.optimizer), self.states
        changes = (
            {key: one for key, one in now.items() if key in made and one != made[key] and not unsendable(one)}
            for now, made in zip(hyper_parameters(pushing.optimizer), self.made, strict=False)
        )
        kept = CarriedSettings({place: changed for place, changed in enumerate(changes) if changed}, self.states)
        packed = msgspec.msgpack.encode(kept) if kept != CarriedSettings() else b""
        return self.calls, packed if len(packed) <= CARRIED_MAX else b""

    def lost(self) -> None:
        self._said = None

    def hear(self, value: Stands) -> None:
        self.calls, carried = value
        self.before = msgspec.msgpack.decode(carried, type=CarriedSettings) if carried else CarriedSettings()
