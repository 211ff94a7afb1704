"""Gradients that are copied into the slot while the backward pass goes on.

What the script does to a gradient afterwards (clipping, unscaling, another backward pass) has to be what is sent. So an early
copy counts only if the gradient is still in that memory, and nobody wrote to it. Torch counts most writes, but not those of
`GradScaler.unscale_` and to `grad.data`. So the gradient's bits are summed on the device, when it is copied and when it is
sent. A copy that does not count is made again, behind the first one: what that read half way is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch

from plesio.worker.replicas.copies import Copies

EARLY_BYTES = 1 << 18
"""Copying a smaller gradient takes less time than to sum it twice."""
IN_VAIN_MAX = 2
"""After so many exchanges in a row for which most copies were made again, no more are made."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Copied(NamedTuple):
    address: int
    writes: int
    bits: torch.Tensor


class EarlyCopies:
    """Copies the gradients of large `parameters` to these places in the slot, both by the tensor's number."""

    def __init__(
        self, copies: Copies, parameters: Mapping[int, torch.Tensor], places: Mapping[int, torch.Tensor]
    ) -> None:
        self._copies, self._places = copies, places
        self._copied: dict[int, _Copied] = {}
        self._made = self._in_vain = 0
        large = {index: one for index, one in parameters.items() if one.nbytes >= EARLY_BYTES}
        self._hooks = [
            one.register_post_accumulate_grad_hook(partial(self._copy, index))  # type: ignore[no-untyped-call]
            for index, one in large.items()
        ]

    @torch.no_grad()
    def _copy(self, index: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or not self._copies.overlap:
            return
        self._made += 1
        self._copied[index] = _Copied(gradient.data_ptr(), gradient._version, sum_of_bits(gradient))
        with self._copies.behind():
            self._copies.put(self._places[index], gradient)
        self._copies.keep(gradient)

    def take(self, gradients: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Of the `gradients` to send, those whose copies count as far as the host knows, and the sum of their bits then."""
        copied, self._copied = self._copied, {}
        both = ((index, copied[index], one) for index, one in gradients.items() if index in copied)
        return {
            index: then.bits
            for index, then, now in both
            if (then.address, then.writes) == (now.data_ptr(), now._version)
        }

    def judge(self, counted: int) -> None:
        """So many of the copies made since the last exchange counted."""
        self._in_vain = self._in_vain + 1 if 2 * counted < self._made else 0
        self._made = 0
        if self._in_vain == IN_VAIN_MAX:
            self.close()

    def close(self) -> None:
        """Make no more."""
        self._copied.clear()
        for hook in self._hooks:
            hook.remove()


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements' bits as integers, summed exactly, so whatever one element becomes changes it.

    >>> sum_of_bits(torch.tensor([1.0, 2.0])) == sum_of_bits(torch.tensor([1.0, -2.0]))
    tensor(False)
    """
    return tensor.view(BITS[tensor.itemsize]).sum()
