"""Folding in one pass over memory, by compiled kernels (`plesio.kernels.folding`) and as many threads as there are cores for.

A pass gives the bits that the mean, the damping, `sgd_step` or `adam_step` and the look-ahead give one after the other. This is
tried out when the kernels are loaded: where torch rounds otherwise, as on a processor without fused multiplication, they are not
used.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import AdamW

from plesio.kernels.first_time import one_compiles
from plesio.tensors.adam import LARGEST, MEAN, SQUARE, Numbers, adam_step, begin, count, numbers_of
from plesio.tensors.mean import factors_of, weighted_into
from plesio.tensors.sgd import sgd_step
from plesio.tensors.undo import Undo

LARGE = 1 << 17
"""Elements of a model from which the kernels are used: to load them takes a third of a second."""
ALONE_BELOW = 1 << 19
"""Elements below which a second thread does not pay."""


class PassAhead(NamedTuple):
    """What look-ahead wants of a pass: the momentum is a part of `total`, the gradient is damped by the gaps to `then`, and `out`
    is the new weights + factor * total."""

    total: torch.Tensor | None = None
    then: torch.Tensor | None = None
    closeness: float = 0.0
    out: torch.Tensor | None = None
    factor: float = 0.0


NOT_AHEAD = PassAhead()


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled kernels, loaded when a large model wants them; None where they round otherwise than torch does."""
    with one_compiles():
        module = importlib.import_module("plesio.kernels.folding")
        return module if _rounds_as_torch(module) else None


def _rounds_as_torch(module: ModuleType) -> bool:
    source = torch.Generator().manual_seed(0)
    weight, slope, mean, square = torch.randn(4, 1024, generator=source).unbind()
    square.square_()
    group = {**AdamW([weight], lr=0.1).param_groups[0], "momentum": 0.9, "dampening": 0.1, "nesterov": True}
    ours, theirs = ([one.clone() for one in (weight, mean, square)] for _ in range(2))
    tries = Pass(module, 1)
    for (w, m, v), way in ((ours, True), (theirs, False)):
        state: dict[str, Any] = {MEAN: m, SQUARE: v}
        begin(AdamW, state)
        count(state, group)
        by = numbers_of(state, group, 0.1, 0.1, exact=True)
        if way:
            tries.adam(w, w, [slope], [1.0], state, by)
            tries.sgd(w, w, [slope], [1.0], m, False, group, 0.1)
        else:
            adam_step(w, w, slope, state, by)
            sgd_step(w, w, slope, m, False, group, 0.1)
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class Pass:
    """Passes by the `kernels`, of which so many `threads` take parts."""

    def __init__(self, kernels: ModuleType, threads: int) -> None:
        self._kernels = kernels
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.undo: Undo | None = None
        """What passes are kept in, if another process is to go on with them."""
        self._process = 0  # that the pool is of: threads do not come along when a process forks

    def mean(self, out: torch.Tensor, parts: Sequence[torch.Tensor], shares: Sequence[float]) -> None:
        """`weighted_into`."""
        if out.dtype == torch.float32 and len(parts) > 1:
            self._run(self._kernels.mean, (None, out, None, None, None), parts, shares, (), NOT_AHEAD)
        else:
            weighted_into(out, parts, shares)

    def sgd(
        self,
        out: torch.Tensor,
        weight: torch.Tensor,
        slots: Sequence[torch.Tensor],
        shares: Sequence[float],
        momentum: torch.Tensor | None,
        first: bool,
        group: dict[str, Any],
        rate: float,
        ahead: PassAhead = NOT_AHEAD,
    ) -> Any:
        """`sgd_step` with the weighted mean of what lies in the slots; the sums of the gaps, by stretches."""
        kernel = functools.partial(self._kernels.sgd, first, bool(group["nesterov"]))
        numbers = (group["weight_decay"], group["momentum"], 1 - group["dampening"], -rate)
        return self._run(kernel, (weight, out, momentum, None, None), slots, shares, numbers, ahead)

    def adam(
        self,
        out: torch.Tensor,
        weight: torch.Tensor,
        slots: Sequence[torch.Tensor],
        shares: Sequence[float],
        state: dict[str, Any],
        by: Numbers,
        ahead: PassAhead = NOT_AHEAD,
    ) -> Any:
        """`adam_step`, likewise."""
        kernel = functools.partial(self._kernels.adam, by.nesterov != 0)
        tensors = (weight, out, state[MEAN], state[SQUARE], state.get(LARGEST))
        return self._run(kernel, tensors, slots, shares, by._replace(root=1.0 / by.root), ahead)

    def _run(
        self,
        kernel: Callable[..., None],
        tensors: Sequence[torch.Tensor | None],
        slots: Sequence[torch.Tensor],
        shares: Sequence[float],
        numbers: Sequence[float],
        ahead: PassAhead,
    ) -> Any:
        given = [one.data_ptr() if one is not None else 0 for one in (*tensors, ahead.total, ahead.then, ahead.out)]
        addresses = np.array([*given, *(one.data_ptr() for one in slots)], np.int64)
        factors, even = factors_of(shares)
        floats = np.array((even, ahead.closeness, ahead.factor, *numbers), np.float32)
        size, stretch, undo = slots[0].numel(), self._kernels.STRETCH, self.undo
        sums = -(-size // stretch) if ahead.then is not None else 0
        each = -(-size // (self.threads * stretch)) * stretch if size >= ALONE_BELOW else max(1, size)
        parts: Sequence[tuple[int, int]] = [(begin, min(begin + each, size)) for begin in range(0, size, each)]
        areas: Sequence[int] = [0] * len(parts)
        gaps = np.empty(sums, np.float32)
        if undo is not None:
            areas, parts, gaps = undo.begin_pass(parts, addresses, sums)
        part = functools.partial(kernel, addresses, floats, np.array(factors, np.float32), gaps)
        self._share(part, [(area, *bounds) for area, bounds in zip(areas, parts, strict=True)])
        if undo is not None:
            undo.end_pass()
        return gaps

    def _share(self, part: Callable[[int, int, int], None], parts: Sequence[tuple[int, int, int]]) -> None:
        """Each part by a thread; this one takes the first."""
        if not parts:
            return
        if len(parts) > 1 and (self._pool is None or self._process != os.getpid()):
            self._pool, self._process = ThreadPoolExecutor(self.threads - 1, "fold"), os.getpid()
        others = [self._pool.submit(part, *one) for one in parts[1:]] if self._pool is not None else []
        part(*parts[0])
        for other in others:
            other.result()
