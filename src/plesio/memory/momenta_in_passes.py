"""Look-ahead in a large model: one pass over memory damps, steps, and writes the look-ahead into a free buffer."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.memory.gather import Came
from plesio.memory.momenta import Momenta
from plesio.tensors.arena import Arena
from plesio.tensors.one_pass import PassAhead


class MomentaInPasses(Momenta):
    """As `Momenta`, where there are kernels for it."""

    def _step(self, target: Arena, current: Arena, came: Came, scales: Sequence[float], index: int) -> None:
        self.optimizer.step_as(came.worker, came.absent)
        if self._passes(came.absent):
            self._pass(target, current, came, scales, index)
        else:
            super()._step(target, current, came, scales, index)

    def _passes(self, absent: int) -> bool:
        return self.tables is None and all(self.optimizer.swapped) and self.optimizer.in_one_pass(absent)

    def _pass(self, target: Arena, current: Arena, came: Came, scales: Sequence[float], index: int) -> None:
        own = self._momenta[came.worker]
        totals = self.optimizer.select(self.sum)
        before = self.optimizer.select(came.then) if came.then is not None else None
        free_buffer = self._versions.spare(index)
        shown = self._versions.buffers[free_buffer]
        free = came.scratch or came.slots[0]  # which is read before it is written
        out = self.optimizer.select(shown if self._master is None else free)

        def ahead(position: int) -> PassAhead:
            then, closeness = (before[position], self.damping.closeness(position)) if before else (None, 0.0)
            return PassAhead(
                totals[position], then, closeness, out[position], self.factors(self.optimizer.at())[position]
            )

        gaps = self.optimizer.step_mean(
            target, current, came.slots, [1.0], scales, self._share, own, ahead, came.absent
        )
        elements, lacking = target.layout.trained_elements, self.optimizer.pieces_lacking(came.absent)
        for position, lacks in enumerate(lacking):
            if before and not lacks:
                self.damping.learn(position, gaps[position], elements[position])
            if self._master is not None and not lacks:
                self.optimizer.select(shown)[position].copy_(out[position])
        ats = self.optimizer.at()
        factors = self.factors(ats)
        self.look_ahead(shown, target, [position for position, lacks in enumerate(lacking) if lacks], ats, factors)
        self.ready = free_buffer, factors

    def can_undo(self, worker: int, absent: int) -> bool:
        """Not where momenta are summed anew, in place."""
        return not self._sums_anew(worker) and self._passes(absent)
