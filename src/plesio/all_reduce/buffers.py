"""The model's buffers under all-reduce: averaged with each step as the gradients are; counts take the largest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plesio.fabric.collective import Group


class SharedBuffers:
    """One worker's. Forward passes write into them at once, so what they were is kept until the step counts.

    Args:
        flats: the buffers, as they lie in the replica.
    """

    def __init__(self, flats: Sequence[torch.Tensor]) -> None:
        self._flats = flats
        self._kept = [flat.clone() for flat in flats]
        self._incoming: list[torch.Tensor] = []

    def begin(self, group: Group | None) -> None:
        """Begin their mean over `group`; None where this worker's are not to be everybody's."""
        self._incoming = []
        if group is None or not group.works:
            return
        mine = [flat.cpu() for flat in self._flats]
        self._incoming = [flat.clone() if flat.is_floating_point() else flat.long() for flat in mine]
        for incoming in self._incoming:
            group.reduce(incoming, largest=not incoming.is_floating_point())

    def take(self, size: int) -> None:
        """The sums over `size` members came, and the step counts."""
        for flat, incoming in zip(self._flats, self._incoming, strict=False):  # none to come where alone
            flat.copy_(incoming.div_(size) if incoming.is_floating_point() else incoming)
        self.keep()

    def keep(self) -> None:
        """From now on they are to be as they are if the next step comes to nothing."""
        for kept, flat in zip(self._kept, self._flats, strict=True):
            kept.copy_(flat)

    def restore(self) -> None:
        """The step came to nothing."""
        for kept, flat in zip(self._kept, self._flats, strict=True):
            flat.copy_(kept)

    def before(self, flat: torch.Tensor) -> torch.Tensor:
        """What `flat` was before the step under way, which wrote into it if it is one of these; else itself."""
        return next((kept for kept, one in zip(self._kept, self._flats, strict=True) if one is flat), flat)
