"""The middle of a fold: the next version out of the current one and what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from plesio.memory.gather import Came
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena, flattened
from plesio.tensors.carrying import Carried, Part
from plesio.tensors.mean import Weighted, blend_buffers, mean_into, move_towards
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.rows import Tables
from plesio.tensors.tensor_set import members_of


class Step:
    """A step without an optimizer, and what is asked of each."""

    optimizer: StatefulOptimizer | None = None
    """What steps, and has state."""
    remembers = False
    """Whether it has state of each worker."""
    one_pass = False
    """Whether a step goes over a large model line by line."""

    def __call__(self, target: Arena, current: Arena, came: Came, index: int) -> None:
        """`target`, which is buffer `index` of the ring, is `current` after a step with what `came`; both may be one."""
        raise NotImplementedError

    def set_groups(self, worker: int, groups: Groups) -> None:
        """Step with what comes from `worker` by these hyper-parameters from now on; of several together, the first one's."""
        if self.optimizer is not None:
            self.optimizer.sent_groups(worker, groups)

    def step_as(self, worker: int) -> None:
        """Go by the hyper-parameters of `worker`."""
        if self.optimizer is not None:
            self.optimizer.step_as(worker)

    def can_undo(self, worker: int, absent: int) -> bool:
        """Whether a step with what came from `worker`, and lacks these, is made of passes that can be gone on with."""
        return False

    def share_among(self, workers: int) -> None:
        """The run has so many workers from now on."""

    def forget(self, worker: int) -> None:
        """`worker` is gone."""

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Begin with the state that the user's optimizer held; `arenas` hold what its keys name."""
        assert self.optimizer is not None, "nothing is carried to where nobody steps"
        self.optimizer.begin_from(carried, arenas)

    def carried(self) -> Carried:
        """The state of the user's optimizer, as a worker would hold it."""
        return self.optimizer.carried() if self.optimizer is not None else Carried(())

    def copy_state(self, worker: int, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Copy what its keys name into these, as `worker` would hold it."""
        if self.optimizer is not None:
            self.optimizer.copy_state(carried, arenas)


class Towards(Step):
    """Some of the way to the mean of the parameters that came."""

    def __call__(self, target: Arena, current: Arena, came: Came, index: int) -> None:
        move_towards(target, current, came.mean(), came.scale)


class Mean(Step, Part):
    """The mean of what came. `marks`: it is of gradients, and a NaN marks tensors that nobody had one for."""

    is_kept = False

    def __init__(self, marks: bool, by: Weighted | None) -> None:
        self._marks = marks
        self._by = by
        self._zeroed: dict[int, frozenset[int]] = {}  # by buffer: segments that are zeros, but for marks

    def take(self, numbers: Any) -> None:
        self._zeroed.clear()  # buffers have changed since

    def __call__(self, target: Arena, current: Arena, came: Came, index: int) -> None:
        mean_into(target, came.slots, came.shares, by=self._by, absent=came.absent)
        if not self._marks:
            return
        lacking = target.layout.lacking(came.absent)
        for segment in lacking - self._zeroed.get(index, frozenset()):
            target.flat[segment].zero_()
        self._zeroed[index] = lacking
        for tensor in members_of(came.absent):  # a NaN, which no mean of finite gradients has, says that nobody had one
            flattened(target.views[tensor])[:1] = nan


class Optimizing(Step):
    """A step of the user's optimizer with the mean gradient, in a run of so many `workers`."""

    def __init__(self, strategy: Strategy, optimizer: StatefulOptimizer, workers: int, tables: Tables | None) -> None:
        self.optimizer = self._optimizer = optimizer
        self._tables = tables
        self._replaces = strategy.gather.in_rounds and not strategy.admit.admits(1)  # nothing stale is in a fold
        self._scale: Callable[[int, int], float] = strategy.outer.scale
        self.share_among(workers)

    @property
    def one_pass(self) -> bool:  # type: ignore[override]
        return self._optimizer.large and self._optimizer.in_one_pass(0)

    def share_among(self, workers: int) -> None:
        self._workers = workers
        self._share = [self._scale(folded, workers) for folded in range(1, workers + 1)]

    def __call__(self, target: Arena, current: Arena, came: Came, index: int) -> None:
        optimizer, absent = self._optimizer, came.absent
        optimizer.step_as(came.worker, absent)
        share = self._share[min(came.folded, self._workers) - 1]
        scales = optimizer.scales[came.scale, share]
        if self._tables is None and optimizer.large and optimizer.in_one_pass(absent):
            optimizer.step_mean(target, current, came.slots, came.shares, scales, share, absent=absent)
            mean = came.mean(target.layout.buffer_segments)
        else:
            if self._tables is not None:
                self._tables.bring_up(index, current)
            alone = len(came.slots) == 1  # an optimizer of somebody else may change its gradient
            mean = came.own().slots[0] if alone and not optimizer.directly else came.mean()
            optimizer.step(target, current, mean, scales, absent, came.rows, share)
            if self._tables is not None:
                self._tables.changed(came.rows, index)
        if target.layout.buffer_segments:
            blend_buffers(target, current, mean, 1.0 if self._replaces else min(1.0, came.folded / self._workers))

    def can_undo(self, worker: int, absent: int) -> bool:
        return self._tables is None and self._optimizer.in_one_pass(absent)
