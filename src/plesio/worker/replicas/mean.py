"""A replica that its worker's own optimizer steps, by the mean gradient of all workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from plesio.tensors.arena import CPU, Arena, Kind, flattened
from plesio.tensors.tensor_set import members_of
from plesio.transport.doorbell import nothing
from plesio.transport.ring import Shown
from plesio.worker.guards.inventory import refuse_changed
from plesio.worker.replicas.backward import after_this_pass
from plesio.worker.replicas.replica import Replica

PARAMETERS = (Kind.TRAINED, Kind.FROZEN)


class MeanReplica(Replica):
    """Its parameters lie in `home`, where the server reads them while this worker waits for it, and after its end. So do the
    buffers of its version; those that the forward pass writes are this worker's own.

    Attributes:
        touched: which tensors were given a gradient since the last exchange.
        passed: called after each backward pass that gave one a gradient.
    """

    def __init__(self, *given: Any, home: Arena) -> None:
        self._home = home
        self._begun = False
        self.touched: set[int] = set()
        self._zeros = 0  # the tensors that are zero in the slot
        self.passed: Callable[[], None] = nothing
        super().__init__(*given)

    def _places(self) -> Sequence[torch.Tensor]:
        if self.tensors[0].device != CPU:
            return self.arena.views
        both = zip(self.layout.specs, self._home.views, self.arena.views, strict=True)
        return [home if spec.kind in PARAMETERS else own for spec, home, own in both]

    def _get_ready(self) -> None:
        self._mine = self._places()
        self._hooks = [self._hooked(index) for index in self._trained]

    def _hooked(self, index: int) -> Any:
        """Hear of gradients, also of one that is to need them later."""
        parameter = self.tensors[index]
        now = parameter.requires_grad
        parameter.requires_grad_(True)
        hook = parameter.register_post_accumulate_grad_hook(partial(self._note, index))  # type: ignore[no-untyped-call]
        parameter.requires_grad_(now)
        return hook

    def _note(self, index: int, parameter: torch.Tensor) -> None:
        self.touched.add(index)
        after_this_pass(self.passed)

    def check(self) -> None:
        """What was given other memory (`p.data = ...`) is brought back."""
        self._bring_home(refuse_changed)

    def _bring_home(self, otherwise: Callable[..., object]) -> None:
        self.bring_back()
        if self._addresses_now() == self._addresses:
            return
        for spec, tensor, mine in zip(self.layout.specs, self.tensors, self._mine, strict=True):
            if (tensor.shape, tensor.dtype, tensor.device) != (mine.shape, mine.dtype, mine.device):
                otherwise(spec, tensor)
            elif tensor.data_ptr() != mine.data_ptr():
                mine.copy_(tensor.detach())
                tensor.data = mine

    @torch.no_grad()
    def fill_slot(self) -> bool:
        """Bring gradients and buffers into the slot; whether the gradient is finite. One that no pass has touched goes along, for
        it may be part of what another worker's pass has added to."""
        self.check()
        self.missing = 0
        gradients, places = [], []
        for index, tensor in zip(self._trained, self.trained, strict=True):
            gradient, place = tensor.grad, self._sent.views[index]
            if gradient is not None:
                gradients.append(gradient.to_dense() if gradient.is_sparse else gradient)
                places.append(place)
                self._zeros &= ~(1 << index)
                continue
            self.missing += 1
            self.touched.discard(index)  # by an undefined gradient
            if not self._zeros >> index & 1:  # only this worker writes into the slot
                place.zero_()
                self._zeros |= 1 << index
        if places:
            torch._foreach_copy_(places, gradients)
        self.absent = sum(1 << index for index in self._trained if index not in self.touched)
        self._sent.copy_from(self.arena, Kind.BUFFER)
        return self._is_finite(self.layout.lacking(self._zeros))

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        """Begin from the parameters in it; later, take the mean gradient from there."""
        version = shown.read
        if self._begun:
            self._take_mean(version)
            self.arena.copy_from(version, Kind.BUFFER)
        else:
            self._begun = True
            for mine, there in zip(self._mine, version.views, strict=True):
                mine.copy_(there)
        self._home.copy_from(version, Kind.BUFFER)

    @torch.no_grad()
    def _take_mean(self, version: Arena) -> None:
        """Of a tensor that nobody had a gradient for the mean is NaN: it is left alone."""
        others = [one for one in members_of(self.absent) if not flattened(version.views[one])[:1].isnan().any()]
        gradients, means = [], []
        for index in (*self.touched, *others):
            tensor, mean = self.tensors[index], version.views[index]
            gradient = tensor.grad
            if gradient is None:
                tensor.grad = mean.to(tensor.device, copy=True)
            elif gradient.is_sparse:
                tensor.grad = mean.to(tensor.device).to_sparse(gradient.sparse_dim())
            else:
                gradients.append(gradient)
                means.append(mean)
        if means:
            torch._foreach_copy_(gradients, means)
        self.forget()

    def touch_all(self) -> bool:
        """Exchange all gradients that there are; whether there are any."""
        there = zip(self._trained, self.trained, strict=True)
        self.touched.update(index for index, one in there if one.grad is not None)
        return bool(self.touched)

    def forget(self) -> None:
        """The gradients are not to be replaced by a mean."""
        self.touched.clear()
        self.absent = 0

    def leave(self, buffers: bool) -> None:
        """Leave the parameters where the server looks for them; with the model's `buffers`, or with those of the version."""
        self._bring_home(lambda spec, tensor: None)  # what was converted, to export the model, is left out
        if self.arena.memory.device != CPU:
            self._home.copy_from(self.arena, *PARAMETERS)
        if buffers:
            self._home.copy_from(self.arena, Kind.BUFFER)

    def let_go(self) -> None:
        """The model goes on in memory of its own."""
        for hook in self._hooks:
            hook.remove()
        for tensor, mine in zip(self.tensors, self._mine, strict=True):
            if tensor.data_ptr() == mine.data_ptr():
                tensor.data = tensor.detach().clone()
