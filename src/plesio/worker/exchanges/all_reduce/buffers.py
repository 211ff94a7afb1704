"""The model's buffers under all-reduce: averaged with each step as the gradients are; counts take the largest.

A number that no worker changed (in a mask of -inf, a table of constants) keeps its bits: the sum carries, for each number, how
many workers changed it. The sum is scaled down, and of half precision taken in float32, so that it does not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plesio.tensors.arena import HALF
from plesio.tensors.mean import room_for, same_bits
from plesio.transport.collective import Group


class SharedBuffers:
    """One worker's. Forward passes write into them at once, so their former values are kept until the step counts."""

    def __init__(self, flats: Sequence[torch.Tensor]) -> None:
        self._flats = flats
        self._kept = [flat.clone() for flat in flats]
        self._incoming: list[torch.Tensor] = []

    def begin(self, group: Group | None) -> None:
        """Begin their mean over `group`; None if the others do not get this worker's."""
        self._incoming = []
        if group is None or not group.works:
            return
        both = [(flat.cpu(), kept.cpu()) for flat, kept in zip(self._flats, self._kept, strict=True)]
        self._incoming = [
            _with_changes(*one, group.size) if one[0].is_floating_point() else one[0].long() for one in both
        ]
        for incoming in self._incoming:
            group.reduce(incoming, largest=not incoming.is_floating_point())

    def take(self, size: int) -> None:
        """The sums over `size` members came, and the step counts."""
        for flat, kept, incoming in zip(self._flats, self._kept, self._incoming, strict=False):  # none where alone
            flat.copy_(_mean(kept.cpu(), incoming, size) if incoming.is_floating_point() else incoming)
        self.keep()

    def keep(self) -> None:
        """Save the current values, to restore them if the next step fails."""
        for kept, flat in zip(self._kept, self._flats, strict=True):
            kept.copy_(flat)

    def restore(self) -> None:
        """The step does not count: take back the saved values."""
        for kept, flat in zip(self._kept, self._flats, strict=True):
            flat.copy_(kept)

    def before(self, flat: torch.Tensor) -> torch.Tensor:
        """The saved values of `flat`, if it is one of these; else `flat` itself."""
        return next((kept for kept, one in zip(self._kept, self._flats, strict=True) if one is flat), flat)


def _with_changes(flat: torch.Tensor, kept: torch.Tensor, size: int) -> torch.Tensor:
    """What `size` members sum: the numbers, scaled down, and for each of them 1 if it changed."""
    numbers = (flat.float() if flat.dtype in HALF else flat) * room_for(size)
    return torch.cat([numbers, (~same_bits(flat, kept)).to(numbers.dtype)])


def _mean(kept: torch.Tensor, sums: torch.Tensor, size: int) -> torch.Tensor:
    """The mean, where any worker changed a number; else the kept one, which all workers share."""
    numbers, changes = sums.chunk(2)
    return torch.where(changes == 0, kept, numbers.div_(size * room_for(size)))
