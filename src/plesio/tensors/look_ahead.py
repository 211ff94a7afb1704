"""DANA: one momentum for each worker, and parameters sent with look-ahead.

Worker i's contribution moves its own momentum v_i and the global parameters w by it; worker i is then sent

    w - lr mu sum_{j != i} v_j

which is where the parameters will be when its next contribution comes, if every other worker contributes once meanwhile.
The gradient is thus taken about where it will be applied, and a momentum tuned for synchronous training keeps its meaning.
With one worker the sum is empty and this is the plain optimizer, bit for bit.

The user's own optimizer does the step: before it, worker i's momentum is put in the place of the optimizer's. For Adam the
first moment is kept for each worker, the second is shared, and the look-ahead is divided by the root of the second.
Source: Hakimi et al. 2019, arXiv 1907.11612 (there the sum includes worker i's own momentum; see docs/decisions/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from plesio.core.events import Fold
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.mean import blend_buffers
from plesio.tensors.outer import Groups, ServerOptimizer
from plesio.tensors.versions import Versions

CHUNK = 1 << 18
"""Elements worked on at a time, so that the temporary stays small and in cache."""

RESUM_EVERY = 1024
"""Folds after which the sum of the momenta is added up afresh, so that rounding does not pile up in it."""


def momentum_key(optimizer: ServerOptimizer) -> str | None:
    """The name under which this optimizer keeps its momentum; None if it keeps none that can be looked ahead by."""
    kind, groups = type(optimizer.optimizer), optimizer.groups
    if kind in (SGD, RMSprop) and any(group["momentum"] for group in groups):
        return "momentum_buffer"
    if kind in (Adam, AdamW):
        return "exp_avg"
    return None


class LookAheadFolding:
    """Folds one contribution at a time into a master copy and publishes it with look-ahead.

    Args as for `plesio.tensors.folding.Folding`; `key` is where the optimizer keeps its momentum.
    """

    def __init__(
        self,
        key: str,
        optimizer: ServerOptimizer,
        versions: Versions,
        slots: Sequence[Arena],
        workers: int,
        new_arena: Callable[[str], Arena],
    ) -> None:
        self._key = key
        self._optimizer = optimizer
        optimizer.swapped = key
        self._versions = versions
        self._slots = slots
        self._workers = workers
        self._master = versions.buffers[versions.current]  # never published itself
        self._momenta = [new_arena("momentum") for _ in range(workers)]
        self._sum = new_arena("sum of momenta")
        self._scale = 1.0 / workers
        self._folds = 0

    def set_groups(self, groups: Groups) -> None:
        """Use these hyper-parameters from now on."""
        self._optimizer.set_groups(groups)

    def hold(self, worker: int, weight: float) -> None:
        """Never asked for: a correction takes contributions one at a time."""
        raise AssertionError("worker momentum goes with gather=Each()")

    def fold(self, fold: Fold) -> None:
        """Step the master copy with the momentum of the worker that contributed."""
        (member,) = fold.members
        own = self._optimizer.select(self._momenta[member.worker])
        total = self._optimizer.select(self._sum)
        slot = self._slots[member.worker]
        self._scale = fold.scale
        for whole, part in zip(total, own, strict=True):
            whole.sub_(part)
        self._swap_in(own)
        self._optimizer.step(self._master, slot, fold.scale)
        self._swap_out(own)
        for whole, part in zip(total, own, strict=True):
            whole.add_(part)
        blend_buffers(self._master, self._master, slot, 1.0 / self._workers)
        self._folds += 1
        if self._folds % RESUM_EVERY == 0:
            self._resum()

    def _swap_in(self, own: Sequence[torch.Tensor]) -> None:
        for position, momentum in enumerate(own):
            state = self._optimizer.state_of(position)
            if self._key in state:
                state[self._key] = momentum

    def _swap_out(self, own: Sequence[torch.Tensor]) -> None:
        """At the very first step the optimizer makes its own momentum: take it over."""
        for position, momentum in enumerate(own):
            value = self._optimizer.state_of(position).get(self._key)
            if value is not None and value.data_ptr() != momentum.data_ptr():
                self._optimizer.state_of(position)[self._key] = momentum.copy_(value)

    def _resum(self) -> None:
        parts = [self._optimizer.select(momentum) for momentum in self._momenta]
        for position, whole in enumerate(self._optimizer.select(self._sum)):
            whole.copy_(parts[0][position])
            for part in parts[1:]:
                whole.add_(part[position])

    def publish(self, reader: int) -> int:
        """Write the look-ahead for `reader` into a free buffer and pin it; its index."""
        self._versions.release(reader)
        index = self._versions.spare()
        out = self._versions.buffers[index]
        out.copy_from(self._master, Kind.BUFFER)
        others = self._optimizer.select(out)
        whole, own = self._optimizer.select(self._sum), self._optimizer.select(self._momenta[reader])
        for position, weight in enumerate(self._optimizer.select(self._master)):
            self._look_ahead(position, others[position], weight, whole[position], own[position])
        self._versions.pin(reader, index)
        return index

    def _look_ahead(
        self, position: int, out: torch.Tensor, weight: torch.Tensor, whole: torch.Tensor, own: torch.Tensor
    ) -> None:
        """out = weight - rate * (whole - own) [/ root of the second moment], a chunk at a time."""
        state = self._optimizer.state_of(position)
        group = self._optimizer.group_of(position)
        rate = group["lr"] * self._scale
        pieces = zip(*(torch.split(t.view(-1), CHUNK) for t in (out, weight, whole, own)), strict=True)
        if self._key == "momentum_buffer":
            for target, master, everybody, mine in pieces:
                torch.sub(everybody, mine, out=target)
                torch.add(master, target, alpha=-rate * group["momentum"], out=target)
            return
        if "exp_avg_sq" not in state:
            out.copy_(weight)
            return
        first, second = group["betas"]
        steps = float(state["step"])
        rate *= first / (1.0 - first**steps)
        root = (1.0 - second**steps) ** -0.5
        squares = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].view(-1).split(CHUNK)
        for (target, master, everybody, mine), square in zip(pieces, squares, strict=True):
            denominator = square.sqrt().mul_(root).add_(group["eps"])
            torch.sub(everybody, mine, out=target)
            torch.addcdiv(master, target, denominator, value=-rate, out=target)

    def snapshot(self, reader: int) -> int:
        """Copy the master into a free buffer and pin it; its index."""
        self._versions.release(reader)
        index = self._versions.spare()
        self._versions.buffers[index].copy_from(self._master)
        self._versions.pin(reader, index)
        return index

    def forget(self, worker: int) -> None:
        """`worker` is gone: its momentum will not act any more."""
        self._versions.release(worker)
        own = self._optimizer.select(self._momenta[worker])
        for whole, part in zip(self._optimizer.select(self._sum), own, strict=True):
            whole.sub_(part)
            part.zero_()
