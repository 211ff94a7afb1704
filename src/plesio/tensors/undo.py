"""Passes over state that changes where it lies, which the successor of a process that was killed in one goes on with.

To write the new state elsewhere takes 1.5 times as long, for memory is what a pass waits for. Here a pass keeps the one line that
it is about to change (`plesio.kernels.folding`), in memory that outlives the process. Whoever takes over puts that line back, and
goes on from there:

| when the process died         | a pass that is made again                                                      |
| ----------------------------- | ------------------------------------------------------------------------------ |
| after its end                 | does nothing                                                                   |
| in it                         | puts the line back that each of its parts was at, and does the rest of each    |
| before it                     | does all of it                                                                 |

What it reads and does not change must be as it was: gradients, and the version that they are of. What it writes must lie where it
lay. The weights may be changed in place, if nothing but passes reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from plesio.system.memory import SharedBlock
from plesio.tensors.arena import Layout

_HEAD_BYTES = 64
_EFFECT_BITS = 24
"""Below the number of an effect in the first word: how many of its passes were begun and ended."""


class Undo:
    """What the passes of one effect after the other are kept in, over a model that is laid out so, by so many threads.

    The first word of the memory says of which effect the passes are, and how many of them were begun and ended. Then come an area
    for each part, and the sums of gaps.
    """

    def __init__(self, kernels: ModuleType, model: Layout, threads: int) -> None:
        self._kernels, each = kernels, kernels.UNDO_BYTES
        gaps = model.nbytes // 4 // kernels.STRETCH + len(model.specs) + 1
        first_gap = _HEAD_BYTES + threads * each
        self._block = SharedBlock.create(first_gap + 4 * gaps, "what passes are gone on with from")
        memory = self._block.memory
        numbers, start = memory.numpy(), memory.data_ptr() + _HEAD_BYTES
        self._word = numbers[:8].data.cast("Q")
        self._areas = range(start, start + threads * each, each)
        self._lines = [numbers[_HEAD_BYTES + at * each :][:8].data.cast("q") for at in range(threads)]
        self._gaps = numbers[first_gap:][: 4 * gaps].view(np.float32)
        self._now = self._taken = self._found = 0
        for load in (kernels.begin_part, kernels.put_back):  # now, and not in the first pass
            load(start, np.zeros(kernels.SLOTS, np.int64), 0)

    def begin(self, effect: int) -> None:
        """The passes that come are of this effect; a process that died may have made some of them."""
        self._now, self._taken, self._found = effect << _EFFECT_BITS, 0, self._word[0]

    @property
    def goes_on(self) -> bool:
        """Whether the next pass was begun by a process that died."""
        return self._found > self._now and self._found >> _EFFECT_BITS == self._now >> _EFFECT_BITS

    def begin_pass(
        self, parts: Sequence[tuple[int, int]], addresses: Any, sums: int
    ) -> tuple[Sequence[int], Sequence[tuple[int, int]], Any]:
        """A pass is to be made, of parts with these bounds: of each its area, and the bounds of what is left of it; and where so
        many sums of gaps go."""
        goes_on, areas = self.goes_on, self._areas[: len(parts)]
        self._now += 1
        gaps = self._gaps[self._taken : self._taken + sums]
        self._taken += sums
        if not goes_on:
            for area, (begin, _) in zip(areas, parts, strict=True):
                self._kernels.begin_part(area, addresses, begin)
            self._word[0] = self._now
        elif self._found > self._now:
            parts = [(end, end) for _, end in parts]
        else:
            parts = [(line[0], end) for line, (_, end) in zip(self._lines, parts, strict=False)]
            for area, (at, _) in zip(areas, parts, strict=True):
                self._kernels.put_back(area, addresses, at)
        return areas, parts, gaps

    def end_pass(self) -> None:
        """It was made."""
        self._now += 1
        self._word[0] = max(self._word[0], self._now)
