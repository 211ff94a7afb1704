"""The replica of a worker that exchanges its model in parts."""

from __future__ import annotations

from typing import Any

import torch

from plesio.tensors.arena import ALL_PARTS, Arena, Kind
from plesio.transport.ring import Shown
from plesio.worker.replicas.parameters import DeltaReplica


class PartedReplica(DeltaReplica):
    """Sends how far one part of the model moved, takes that part back, and goes on with the others from where they are. So each
    part began from another version: this worker keeps a copy of what they began from."""

    def __init__(self, *given: Any, **told: Any) -> None:
        *place, _ = given
        super().__init__(*place, True, **told)

    def has_work(self, part: int = ALL_PARTS) -> bool:
        return self._had != self._had_outside(part)

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        if self.part == ALL_PARTS:
            super().adopt(shown)
            return
        self.writes.adopted(shown.made)
        self._start.copy_from(shown.read, Kind.TRAINED, part=self.part)
        self.arena.copy_from(self._start, Kind.TRAINED, part=ALL_PARTS if anew else self.part)
        self.arena.copy_from(shown.read, Kind.BUFFER)
        self._had = set() if anew else self._had_outside(self.part)
        self.missing = 0

    def own(self) -> dict[str, torch.Tensor]:
        own = {"parameters": self.arena.memory, "start": self._start.memory}
        return super().own() | own | {"had": torch.tensor(sorted(self._had)), "part": torch.tensor(self.part)}

    def take_up(self, own: dict[str, torch.Tensor]) -> None:
        super().take_up(own)
        self.arena.memory.copy_(own["parameters"])
        self._start.memory.copy_(own["start"])
        self._had, self.part = set(own["had"].tolist()), int(own["part"])
