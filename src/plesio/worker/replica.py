"""A worker's side of the tensors: what its model reads from, and how its contribution gets into its slot.

Three ways to hold a model:

- `GradientReplica`: the server owns the parameters. Large ones are read in place from the version the worker pins, through
  a view in which what the worker writes stays its own; small ones are copied out, which is cheaper than pointing many
  tensors elsewhere. Gradients go to the slot once, and `.grad`
  stays there, so that what is clipped, scaled or accumulated later is what is sent.
- `ParameterReplica`: the worker owns its parameters for a while and sends them.
- `SharedReplica`: everybody's parameters are the same memory.

A model on a device of its own (a GPU) lies in an arena there, gradients in a second one, and each way is one copy a stretch
of memory: torch's copies between devices are in the order of the work on either and done when they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import torch
from torch import nn

from plesio.errors import ModelMismatchError
from plesio.strategy import Strategy
from plesio.tensors.arena import CPU, Arena, Kind, Layout
from plesio.tensors.finite import FiniteCheck, are_finite
from plesio.tensors.model import device_of, self_limiting
from plesio.warn import warn_frozen
from plesio.worker.guards.inventory import Inventory

IN_PLACE_BYTES = 1 << 20
IN_PLACE_MEAN_BYTES = 1 << 16
"""A model this large, in tensors this large on average, is read in place (benchmarks/exchange.py --read)."""


class Replica(Protocol):
    """What the worker's optimizer asks of the tensors."""

    missing: int

    def fill_slot(self) -> bool: ...

    def check_gradients(self) -> bool: ...

    def drop_gradients(self) -> None: ...

    def adopt(self, buffer: int) -> None: ...

    def follow(self, model: nn.Module) -> None: ...

    def rewritten(self) -> list[str]: ...

    def unsent(self) -> list[str]: ...

    def overwritten(self) -> list[str]: ...


class _Bound:
    """A model's tensors over an arena of this process."""

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        arena: Arena,
        ring: Sequence[Arena],
        kinds: Sequence[Kind],
    ) -> None:
        self.layout = layout
        self.tensors = tuple(tensors)
        self.arena = arena
        self._ring = ring
        self.missing = 0
        for tensor, view, spec in zip(self.tensors, arena.views, layout.specs, strict=True):
            if spec.kind in kinds:
                view.copy_(tensor.detach())
                tensor.data = view
        self._trained = [i for i, spec in enumerate(layout.specs) if spec.kind is Kind.TRAINED]
        self._addresses = self._addresses_now()
        self._homes: list[tuple[dict[str, torch.Tensor | None], str, int]] = []
        self._inventory: Inventory | None = None
        self._adopted = 0  # the buffer of the ring that was
        self._steady: list[tuple[str, torch.Tensor]] = []
        self._counters: list[int] = []

    def follow(self, model: nn.Module) -> None:
        """Look for this model's tensors where its modules keep them: they are to be the same at each step, but for buffers,
        where a forward pass may put new tensors."""
        self._inventory = Inventory(model, self.tensors)
        places = {id(tensor): place for place, tensor in enumerate(self.tensors)}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if id(buffer) in places:
                    self._homes.append((module._buffers, name, places[id(buffer)]))
        limited = {id(one) for module in self_limiting(model) for one in module.parameters(recurse=False)}
        trained = [(self.layout.specs[index].name, self.tensors[index]) for index in self._trained]
        self._steady = [(name, one) for name, one in trained if id(one) not in limited]

    def bring_back(self) -> None:
        """Take what the forward pass put in a buffer's place (`self.mean = ...`) into the buffer itself.

        Raises:
            ModelMismatchError: it is of another shape or dtype.
        """
        for home, name, place in self._homes:
            mine, now = self.tensors[place], home.get(name)
            if now is not mine:
                if now is None or now.shape != mine.shape or now.dtype != mine.dtype:
                    self._refuse(place, now)
                mine.data.copy_(now.detach())
                home[name] = mine

    def _addresses_now(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self.tensors))

    def check(self) -> None:
        """Make sure that the model's tensors are the ones it was prepared with.

        Raises:
            ModelMismatchError: the user's code swapped one under our hands.
        """
        self.bring_back()
        if (now := self._addresses_now()) != self._addresses:
            self._refuse(next(i for i, address in enumerate(now) if address != self._addresses[i]))

    def _check_inventory(self) -> None:
        if self._inventory is not None:
            self._inventory.check()

    def check_gradients(self) -> bool:
        """Before an optimizer steps in this process: whether the gradient is finite. Parameters without one are counted.

        Raises:
            ModelMismatchError: as from `check`; or the model has other tensors than when it was prepared.
        """
        self.check()
        self._check_inventory()
        gradients = [self.tensors[index].grad for index in self._trained]
        self.missing += sum(one is None for one in gradients)
        return are_finite([one._values() if one.is_sparse else one for one in gradients if one is not None])

    def drop_gradients(self) -> None:
        """What was computed so far is to be in no contribution."""
        for index in self._trained:
            self.tensors[index].grad = None

    def rewritten(self) -> list[str]:
        """The frozen parameters that the loop wrote into: in the run they are as they were, in every buffer."""
        return [
            spec.name
            for spec, mine, theirs in zip(self.layout.specs, self.tensors, self._ring[0].views, strict=True)
            if spec.kind is Kind.FROZEN and _was_written(mine.detach(), theirs)
        ]

    def saved_buffers(self) -> dict[int, torch.Tensor]:
        """The buffers that the state_dict holds, by their place, as they are now."""
        there = {place: home.get(name) for home, name, place in self._homes}
        return {
            place: now.detach()
            for place, now in there.items()
            if now is not None and self._inventory is not None and self.tensors[place] in self._inventory
        }

    def differing(self, now: dict[int, torch.Tensor], exchanged: Sequence[torch.Tensor]) -> list[str]:
        """The names of those of them in which what was exchanged last has another number."""
        return [self.layout.specs[place].name for place, one in now.items() if _was_written(one, exchanged[place])]

    def unsent(self) -> list[str]:
        """The buffers that were written into since the last version was adopted: nobody will get that."""
        return self.differing(self.saved_buffers(), self._ring[self._adopted].views)

    def overwritten(self) -> list[str]:
        """The parameters that were written into since the last version was adopted, otherwise than by `.data`."""
        now = zip(self._steady, self._counters, strict=True)
        return [name for (name, tensor), counter in now if tensor._version != counter]

    def _took(self, buffer: int) -> None:
        """A version was adopted."""
        self._adopted = buffer
        self._counters = [tensor._version for _, tensor in self._steady]

    def _refuse(self, index: int, now: torch.Tensor | None = None) -> NoReturn:
        tensor, spec = self.tensors[index] if now is None else now, self.layout.specs[index]
        if tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
            raise ModelMismatchError(
                f"{spec.name} changed after prepare: it was {spec.dtype} {tuple(spec.shape)}, "
                f"now it is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}; "
                "change shapes, dtypes and devices before prepare"
            )
        raise ModelMismatchError(
            f"{spec.name} was given other memory after prepare (by .data =, .to() or the like); "
            "write into it in place, or change it before prepare"
        )


class GradientReplica(_Bound):
    """The server owns the parameters; this worker sends gradients."""

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        ring: Sequence[Arena],
        slot: Arena,
        in_place: bool,
        renew: Callable[[int], None] | None = None,
    ) -> None:
        kinds = (Kind.FROZEN, Kind.BUFFER) if in_place else tuple(Kind)
        device = tensors[0].device
        super().__init__(layout, tensors, Arena.private(layout, device), ring, kinds)
        self._sent = slot
        self._slot = slot if device == CPU else Arena.private(layout, device)
        self._in_place = in_place
        self._renew = renew
        self._buffer: int | None = None  # the one that is read in place
        self._contributed = [(i, self.tensors[i], self._slot.views[i].data_ptr()) for i in self._trained]
        self._finite = FiniteCheck(slot.of_kind(Kind.TRAINED))
        self._buffers = list(zip(slot.of_kind(Kind.BUFFER), self.arena.of_kind(Kind.BUFFER), strict=True))
        self._copied = kinds
        self._follows = tuple(kind for kind in kinds if kind is not Kind.FROZEN)
        self._told_frozen = False

    def fill_slot(self) -> bool:
        """Bring gradients and buffers into the slot; whether the gradient is finite."""
        self.missing = 0
        self.bring_back()
        self._check_inventory()
        for index, tensor, in_slot in self._contributed:
            if tensor.data_ptr() != self._addresses[index]:
                self._refuse(index)
            gradient = tensor.grad
            if gradient is None:
                self._no_gradient(index)
            elif gradient.is_sparse or not in_slot or gradient.data_ptr() != in_slot:  # 0: a device without addresses
                view = self._slot.views[index]
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                tensor.grad = view.detach()  # else `.grad.data = ...` would give the slot's view other memory
        if self._slot is not self._sent:
            self._sent.copy_from(self._slot, Kind.TRAINED)
        for sent, mine in self._buffers:
            sent.copy_(mine)
        return self._finite()

    def _no_gradient(self, index: int) -> None:
        """A parameter this step did not touch contributes zero, and is counted. Each time: the fold wrote into the slot."""
        self.missing += 1
        if not self.tensors[index].requires_grad and not self._told_frozen:
            self._told_frozen = True
            warn_frozen(self.layout.specs[index].name)
        self._slot.views[index].zero_()

    def adopt(self, buffer: int) -> None:
        """Go on from the version in ring buffer `buffer`."""
        self.bring_back()
        self._took(buffer)
        self.arena.copy_from(self._ring[buffer], *self._copied)
        self._copied = self._follows  # what nobody moves is there by now
        if not self._in_place:
            return
        if self._renew is not None and self._buffer is not None:
            self._renew(self._buffer)
        self._buffer = buffer
        views = self._ring[buffer].views
        for index in self._trained:
            view = views[index]
            self.tensors[index].data = view
            self._addresses[index] = view.data_ptr()


class ParameterReplica(_Bound):
    """This worker owns its parameters between exchanges and sends them."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], ring: Sequence[Arena], slot: Arena) -> None:
        super().__init__(layout, tensors, Arena.private(layout, tensors[0].device), ring, tuple(Kind))
        self._slot = slot
        self._copied = tuple(Kind)
        self._finite = FiniteCheck(slot.of_kind(Kind.TRAINED))

    def fill_slot(self) -> bool:
        """Bring parameters and buffers into the slot; whether they are finite."""
        self.check()
        self._slot.copy_from(self.arena, Kind.TRAINED, Kind.BUFFER)
        return self._finite()

    def adopt(self, buffer: int) -> None:
        """Go on from the version in ring buffer `buffer`."""
        self._took(buffer)
        self.arena.copy_from(self._ring[buffer], *self._copied)
        self._copied = (Kind.TRAINED, Kind.BUFFER)  # what nobody moves is there by now
        self.missing = 0


class SharedReplica(_Bound):
    """Everybody's parameters are the one buffer of the ring, where the first worker wrote its own."""

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor], ring: Sequence[Arena]) -> None:
        super().__init__(layout, tensors, ring[0], ring, ())

    def fill_slot(self) -> bool:
        """Nothing is sent; whether the gradient is finite."""
        self.missing = 0
        return self.check_gradients()

    def adopt(self, buffer: int) -> None:
        """Point the model at the shared parameters; they are always the current ones."""
        for tensor, view in zip(self.tensors, self.arena.views, strict=True):
            tensor.data = view
        self._addresses = self._addresses_now()


def _was_written(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether they differ in a number; one that was made something else of, to export the model, is not compared."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype or mine.is_meta:
        return False
    mine = mine.to(theirs.device)
    return not torch.equal(mine, theirs) and not bool(((mine == theirs) | (mine != mine)).all())


def reads_in_place(layout: Layout, model: nn.Module) -> bool:
    """Whether a worker should read this model's parameters where they lie.

    Not where a module writes into its parameters during the forward pass: to drop that each time costs more than a copy.
    Nor where they lie on a device of their own.
    """
    if device_of(model) != CPU:
        return False
    sizes = [spec.numel * spec.torch_dtype.itemsize for spec in layout.specs if spec.kind is Kind.TRAINED]
    return not self_limiting(model) and sum(sizes) >= IN_PLACE_BYTES and sum(sizes) >= IN_PLACE_MEAN_BYTES * len(sizes)


def make_replica(
    strategy: Strategy,
    layout: Layout,
    tensors: Sequence[torch.Tensor],
    ring: Sequence[Arena],
    slot: Arena,
    in_place: bool,
    renew: Callable[[int], None] | None = None,
) -> Replica:
    """The replica of a worker that exchanges with a server.

    `renew`: called with the buffer that was read in place, once it no longer is: what was written there is to be dropped.
    """
    if strategy.send.stepped:
        return ParameterReplica(layout, tensors, ring, slot)
    return GradientReplica(layout, tensors, ring, slot, in_place, renew)
