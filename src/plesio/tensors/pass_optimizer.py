"""Steps a large model in one pass over memory (`plesio.tensors.one_pass`), where compiled kernels can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import optim

from plesio.tensors.arena import Arena
from plesio.tensors.one_pass import NOT_AHEAD, Pass, PassAhead, kernels
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.server_optimizer import OwnMomentum, ServerOptimizer
from plesio.tensors.undo import Undo


class PassOptimizer(ServerOptimizer):
    """One whose passes are shared among so many `threads`."""

    def __init__(
        self, specs: Sequence[OptimizerSpec], arena: Arena, new_arena: Callable[[], Arena], threads: int = 1
    ) -> None:
        super().__init__(specs, arena, new_arena)
        fast = kernels() if self.large else None
        self._pass = Pass(fast, threads) if fast is not None else None

    def in_one_pass(self, absent: int) -> bool:
        """Whether `step_mean` can fold a contribution that lacks these tensors."""
        return self._pass is not None and self.directly and self._whole and not self.has_to_split(absent)

    def step_mean(
        self,
        target: Arena,
        current: Arena,
        slots: Sequence[Arena],
        shares: Sequence[float],
        scales: Sequence[float],
        share: float = 1.0,
        own: OwnMomentum | None = None,
        ahead: Callable[[int], PassAhead] = lambda _: NOT_AHEAD,
        absent: int = 0,
    ) -> list[Any]:
        """As `step` with the weighted mean of what lies in the slots, in one pass over memory. By position, `ahead` tells what
        look-ahead wants, and the sums of the gaps are returned (None: left alone)."""
        assert self._pass is not None, "in_one_pass was asked"
        gaps: list[Any] = []
        lacking = self._left_alone(absent)
        momenta = self.select(own.arena) if own is not None else None
        if own is not None:
            self._swap_in(own, lacking)
        for position, (new, old) in enumerate(zip(self.select(target), self.select(current), strict=True)):
            if lacking[position]:
                self.leave(position, target, current)
                gaps.append(None)
                continue
            came = [self.select(slot)[position] for slot in slots]
            group, rate = self.group_of(position), self._rate(position, scales)
            mine = momenta[position] if momenta is not None else None
            if self.kinds[self._group_of[position]] is optim.SGD:
                momentum, first = self._momentum(position, mine)
                gaps.append(self._pass.sgd(new, old, came, shares, momentum, first, group, rate, ahead(position)))
            else:
                state, by = self._counted(position, rate, share, mine)
                gaps.append(self._pass.adam(new, old, came, shares, state, by, ahead(position)))
        return gaps

    @property
    def _goes_on(self) -> bool:
        undo = self._pass.undo if self._pass is not None else None
        return undo is not None and undo.goes_on

    def undo(self) -> Undo | None:
        """What its passes can be kept in, if it steps in passes."""
        fast, by = kernels() if self._pass is not None else None, self._pass
        return Undo(fast, self._arena.layout, by.threads) if fast is not None and by is not None else None

    def undo_by(self, undo: Undo | None) -> None:
        """The passes that come are kept there."""
        assert self._pass is not None, "it steps in passes"
        self._pass.undo = undo
