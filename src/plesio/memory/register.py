"""What the server keeps of a model, beside versions and slots. Each array and number is declared once, where it is made:

| who reads that                                  | what of it                                                             |
| ----------------------------------------------- | ---------------------------------------------------------------------- |
| a checkpoint (`plesio.memory.saved`)            | arrays and numbers of parts that are `kept`                            |
| a server that survives (`plesio.memory.surviving`) | which arrays an effect changes where they lie; the numbers of all parts |
| another strategy (`plesio.memory.taking_over`)  | parts that go on with it as they are                                   |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any

import torch

from plesio.strategy import Strategy
from plesio.tensors.arena import Arena
from plesio.tensors.carrying import Kept, Part

NewArena = Callable[[str], Arena]
"""Makes a zeroed arena for what its argument names."""


class When(Enum):
    """When an array changes where it lies."""

    STEP = auto()
    """In the step of a fold, of which passes may be gone on with."""
    FOLD = auto()
    """In a fold, beside the step."""
    HOLD = auto()
    """When a contribution is held, and when that is folded."""


class Register:
    """The declarations of one folder.

    Attributes:
        new: makes memory that need not be declared: what lies there is of no use later.
        parts: numbers, and what else belongs to them, by name.
    """

    def __init__(self, new: NewArena) -> None:
        self.new = new
        self.parts: dict[str, Part] = {}
        self._changing = defaultdict[tuple[When, int | None], list[Arena]](list)
        self._arrays = defaultdict[str, dict[str, Arena]](dict)  # that checkpoints keep, by part

    def array(self, name: str, when: When = When.FOLD, worker: int | None = None, part: str = "") -> Arena:
        """A zeroed array that changes then; `worker`: by contributions of this one alone. Checkpoints keep it with its `part`."""
        arena = self.new(name)
        self._changing[when, worker].append(arena)
        if part:
            self._arrays[part][name] = arena
        return arena

    def maker(self, name: str, when: When) -> Callable[[], Arena]:
        """Makes arrays as `array` does. A part may keep it: it does not lead back here, so memory goes when a run ends, not when
        somebody looks for cycles."""
        new, changing = self.new, self._changing[when, None]

        def make() -> Arena:
            arena = new(name)
            changing.append(arena)
            return arena

        return make

    # What effects change

    @property
    def arrays(self) -> list[Arena]:
        """All that change where they lie."""
        return [one for some in self._changing.values() for one in some]

    def changing(self, when: When, workers: Iterable[int] = ()) -> list[Arena]:
        """The arrays that change then, by contributions of these `workers`."""
        return [one for worker in (None, *workers) for one in self._changing[when, worker]]

    def numbers(self) -> list[Any]:
        """All that effects change beside arrays, as plain values."""
        return [part.numbers() for part in self.parts.values()]

    def take(self, numbers: Iterable[Any]) -> None:
        """Go on from these numbers, with arrays as they are."""
        for part, own in zip(self.parts.values(), numbers, strict=True):
            part.take(own)

    # What is kept, and gone on from

    def kept(self) -> Kept:
        """What a checkpoint keeps beside the parameters."""
        parts = {name: self._kept_of(name) for name, part in self.parts.items() if part.is_kept}
        tensors = {name: tensor for part in parts.values() for name, tensor in part.tensors.items()}
        return Kept(tensors, {name: part.numbers for name, part in parts.items()})

    def _kept_of(self, name: str) -> Kept:
        arrays = {key: one.memory for key, one in self._arrays[name].items()}
        tensors, numbers = self.parts[name].kept()
        return Kept(tensors | arrays, numbers)

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from these parts of what was kept."""
        for name, own in numbers.items():
            self.parts[name].restore(own)
            for key, tensor in self._kept_of(name).tensors.items():
                tensor.copy_(tensors[key])

    def going_on(self, was: Strategy, now: Strategy) -> Iterator[str]:
        """The parts that go on as they were under another strategy, if that had them."""
        for name, part in self.parts.items():
            if part.like == "" or (part.like and getattr(was, part.like) == getattr(now, part.like)):
                yield name
