"""A worker's tensors: where its model reads parameters, and how a contribution gets into the worker's slot.

A model on a device of its own (a GPU) lies in an arena there (`on_device`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.strategy import Strategy
from plesio.tensors.arena import ALL_PARTS, CPU, Arena, Kind, Layout
from plesio.tensors.finite import FiniteCheck, are_finite, finite_flag, zero_unless
from plesio.tensors.model import device_of, self_limiting
from plesio.tensors.rows import RowCount, put
from plesio.tensors.tensor_set import members_of
from plesio.transport.held import BEFORE, LEFT_OUT
from plesio.transport.ring import Ring, Shown
from plesio.worker.guards.inventory import refuse_changed
from plesio.worker.guards.writes import Writes, buffers_of
from plesio.worker.replicas.copies import arena_of, copies_for

NOTHING: frozenset[int] = frozenset()
IN_PLACE_BYTES = 1 << 20
IN_PLACE_MEAN_BYTES = 1 << 16
"""A model this large, in tensors this large on average, is read in place (benchmarks/exchange.py --read)."""


class Replica:
    """A model's tensors over an arena of this process; `ModelMismatchError` if the loop gives one other memory or shape. `late`:
    its worker goes on while an answer comes.

    It reads parameters in place where the ring allows that.

    Attributes:
        copies: the kinds of tensors that are copied from each version.
        trained: the parameters that the optimizer moves.
        missing: how many of them got no gradient since the last version.
        absent: which tensors a contribution lacks: bit i is tensor i's.
        rows: of tables, in a contribution of gradients.
        finite: on a device, a flag there: whether the gradients of all steps since the last version were; None: it has no step.
        writes: what the loop wrote since then.
        slot: where its contributions lie, for the server.
        settle: before anything is said to the server: the version is copied, and may be overwritten; None: copies wait.
    """

    copies: tuple[Kind, ...] = tuple(Kind)
    part = ALL_PARTS
    """Which part of the model the contribution under way is of, and its answer."""
    _left_out: Arena | None = None
    """What packing left out, where that goes into the next contribution."""
    _before: Arena | None = None
    """What it had left out before the last contribution, where that may come too late."""
    awaits_answer = False
    """Whether an answer is to come to what was packed last."""
    _may_come_late = False
    private: Sequence[torch.Tensor] = ()
    """Parameters beside these, which the optimizer moves here and nobody else has."""

    def __init__(
        self,
        layout: Layout,
        model: nn.Module,
        tensors: Sequence[torch.Tensor],
        ring: Ring[Arena],
        slot: Arena,
        late: bool = False,
    ) -> None:
        self.layout, self._late = layout, late
        self.tensors = tuple(tensors)
        device = tensors[0].device
        here = device == CPU
        self._copies = copies_for(device, [slot.memory, *(one.read.memory for one in ring.buffers)])
        if not self.copies:
            self.arena = ring.first.read
        else:
            self.arena = Arena.private(layout) if here else arena_of(layout, self.tensors)
        self.settle: Callable[[], object] | None = None if here else self._copies.settle
        self._bring = self.arena.copy_from if here else partial(self._copies.bring, self.arena)
        self.missing = self.absent = 0
        self.rows: tuple[RowCount, ...] = ()
        self.finite: torch.Tensor | None = None
        overwritten = late and len(ring.buffers) == 1  # while the version before is still computed from
        self._made = Arena.private(layout) if overwritten else None
        self.writes = Writes(model, layout, self.tensors, ring.seen)
        self.ring = ring
        self.slot = self._sent = slot
        self._checks: dict[frozenset[int], FiniteCheck] = {}
        kinds = (Kind.FROZEN, Kind.BUFFER) if ring.in_place else self.copies
        self._copied = kinds
        self._follows = tuple(kind for kind in kinds if kind is not Kind.FROZEN)
        for tensor, view, spec in zip(self.tensors, self._places(), layout.specs, strict=True):
            if spec.kind in kinds:
                if here:
                    view.copy_(tensor.detach())
                tensor.data = view
        self._trained = [i for i, spec in enumerate(layout.specs) if spec.kind.moves and not spec.beside]
        self.trained = [self.tensors[index] for index in self._trained]
        self._stepping, self._turn = self.trained, set(self._trained)
        self._addresses = self._addresses_now()
        self._homes = [(module._buffers, name, place) for module, name, place in buffers_of(model, self.tensors)]
        self._get_ready()

    def _places(self) -> Sequence[torch.Tensor]:
        """Where each tensor is to lie."""
        return self.arena.views

    def _get_ready(self) -> None:
        """Prepare what a kind of replica needs of its own."""

    def turn_to(self, part: Optimizer) -> None:
        """The next step is of the parameters of `part`, one of several optimizers."""
        own = {id(parameter) for group in part.param_groups for parameter in group["params"]}
        self._turn = {index for index in self._trained if id(self.tensors[index]) in own}
        self._stepping = [self.tensors[index] for index in self._turn]

    def bring_back(self) -> None:
        """Copy what the forward pass put in a buffer's place (`self.mean = ...`) into the buffer itself."""
        for home, name, place in self._homes:
            mine, now = self.tensors[place], home.get(name)
            if now is not mine:
                if now is None or now.shape != mine.shape or now.dtype != mine.dtype:
                    refuse_changed(self.layout.specs[place], mine if now is None else now)
                mine.data.copy_(now.detach())
                home[name] = mine

    def _addresses_now(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self.tensors))

    def check(self) -> None:
        self.bring_back()
        if (now := self._addresses_now()) != self._addresses:
            place = next(i for i, address in enumerate(now) if address != self._addresses[i])
            refuse_changed(self.layout.specs[place], self.tensors[place])

    def check_gradients(self, later: bool = False) -> bool:
        """Before an optimizer steps in this process: whether its gradient is finite. Parameters without one are counted.

        `later`: a device is not waited for. There a gradient that is not finite becomes zeros, and `finite` remembers it.
        """
        self.check()
        self.note_gradients()
        gradients = [one.grad for one in self._stepping]
        self.missing += sum(one is None for one in gradients)
        gradients += [one.grad for one in self.private]
        return self._test([one._values() if one.is_sparse else one for one in gradients if one is not None], later)

    def _test(self, numbers: list[torch.Tensor], later: bool) -> bool:
        if not later or not numbers or numbers[0].is_cpu:
            return are_finite(numbers)
        flag = finite_flag(numbers)
        zero_unless(flag, numbers)
        self.finite = flag if self.finite is None else self.finite & flag
        return True

    def stepped_finite(self) -> bool:
        """Whether the gradients of all steps since the last version were finite, as far as `finite` tells: a device is waited
        for."""
        return self.finite is None or bool(self.finite)

    def _is_finite(self, lacking: frozenset[int] = NOTHING) -> bool:
        """Whether what lies in the slot is, without these segments."""
        check = self._checks.get(lacking)
        if check is None:
            flats = enumerate(self._sent.of_kind(Kind.TRAINED))
            check = self._checks[lacking] = FiniteCheck([flat for place, flat in flats if place not in lacking])
        return check()

    def note_gradients(self) -> None:
        """Parameters have the gradients that the optimizer steps by."""

    def fill_slot(self) -> bool:
        """Bring the contribution into its slot; whether it is finite."""
        raise NotImplementedError

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        """Go on from this version; `anew`: and from nothing that this worker had."""
        if self._made is not None:
            self._made.copy_from(shown.made)
        self.writes.adopted(self._made or shown.made)
        self._bring(shown.read, *self._copied)
        self._copied = self._follows  # frozen parameters are there by now
        self.missing = 0

    def close(self) -> None:
        """This worker sends nothing any more."""
        self._copies.close()

    def has_work(self, part: int = ALL_PARTS) -> bool:
        """Whether steps that others contributions counted moved this part, and it was not sent since."""
        return False

    def sent(self) -> None:
        """The worker goes on from here, while the answer to what it sent travels."""

    def rebase(self, shown: Shown[Arena]) -> None:
        """Take this version, and put what was done since `sent` on top."""
        self.adopt(shown, anew=False)

    def own(self) -> dict[str, torch.Tensor]:
        """What this worker alone has, by name, beside its optimizer's state."""
        if self._left_out is None:
            return {}
        own = {LEFT_OUT: self._left_out.memory}
        return (
            own
            if self._before is None
            else own | {BEFORE: (self._before if self.awaits_answer else self._left_out).memory}
        )

    def take_up(self, own: dict[str, torch.Tensor]) -> None:
        """Go on with what `own` gave."""
        if self._left_out is None:
            return
        self._left_out.memory.copy_(own[LEFT_OUT])
        if BEFORE in own:  # the answer to come may say that what was sent last came too late
            self._before = self._before or Arena.private(self.layout, self._left_out.memory.device)
            self._before.memory.copy_(own[BEFORE])
            self.awaits_answer = True

    def _hold_left_out(self, memory: Callable[[torch.device], Arena], may_come_late: bool) -> None:
        """Keep what packings leave out, in such memories."""
        device = self.arena.memory.device
        self._left_out, self._may_come_late = memory(device), may_come_late
        self._before = memory(device) if may_come_late else None

    def _packs(self) -> None:
        """A contribution is packed next."""
        if self._before is not None and self._left_out is not None:
            self._before.copy_from(self._left_out, Kind.TRAINED)
        self.awaits_answer = True

    def answered(self, too_late: bool) -> None:
        """The answer to what was sent last is there. If that came `too_late`, what earlier packings left out is given back."""
        if too_late and self._before is not None and self._left_out is not None:
            self._left_out.copy_from(self._before, Kind.TRAINED)
        self.awaits_answer = False
        if not self._may_come_late:
            self._before = None

    def lose_left_out(self) -> None:
        """What packings left out is lost: of the contributions that it is of some may be undone."""
        if self._left_out is not None:
            self._left_out.memory.zero_()
            self.awaits_answer = False

    def drop_gradients(self, sent: bool = False) -> None:
        """Keep what was computed so far out of the next contribution; `sent`: only what this step sent."""
        for tensor in (*(self._stepping if sent else self.trained), *self.private):
            tensor.grad = None


class GradientReplica(Replica):
    """The server owns the parameters; this worker sends gradients.

    It reads large models in place, from the version it pins, through a view that keeps its own writes from the others. It
    copies small ones, which is cheaper than to redirect many tensors. Gradients are copied to the slot once, and `.grad` stays
    there: what is clipped or accumulated later is what is sent. One that computes ahead (`late`) leaves `.grad` where it is: it
    computes the next gradient while the last one still lies in the slot.
    """

    def _get_ready(self) -> None:
        self._read: Shown[Arena] | None = None  # in place
        tables = [i for i in self._trained if self.layout.specs[i].kind is Kind.ROWS]
        self._tables = [(i, self.tensors[i]) for i in tables]
        self._contributed = [
            (i, self.tensors[i], self._sent.views[i].data_ptr()) for i in self._trained if i not in tables
        ]
        self._buffers = list(zip(self._sent.of_kind(Kind.BUFFER), self.arena.of_kind(Kind.BUFFER), strict=True))

    def fill_slot(self) -> bool:
        """Bring gradients and buffers into the slot; whether the gradient is finite."""
        self.missing = self.absent = 0
        self.rows = ()
        self.bring_back()
        for index, tensor, in_slot in self._contributed:
            if tensor.data_ptr() != self._addresses[index]:
                refuse_changed(self.layout.specs[index], tensor)
            gradient = tensor.grad if index in self._turn else None
            if gradient is None:
                self.missing += index in self._turn
                self.absent |= 1 << index
            elif self._late or len(self._turn) < len(self._trained):  # nor are another's gradients to be found there
                self._sent.views[index].copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            elif gradient.is_sparse or gradient.data_ptr() != in_slot:
                view = self._sent.views[index]
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                tensor.grad = view.detach()  # else `.grad.data = ...` would give the slot's view other memory
        lacking = self._leave_out() if self.absent else NOTHING
        for sent, mine in self._buffers:
            sent.copy_(mine)
        return self._put_rows() and self._is_finite(lacking)

    def _leave_out(self) -> frozenset[int]:
        """Parameters without a gradient count as zeros beside others' gradients, and are left alone where nobody has one. The
        fold wrote into the slot, so they are zeroed anew; but for whole segments of them, which are returned: nobody reads these.
        """
        lacking = self.layout.lacking(self.absent)
        unread = {tensor for place in lacking for tensor in self.layout.segments[place].tensors}
        for index in members_of(self.absent):
            if index not in unread:
                self._sent.views[index].zero_()
        return lacking

    def _put_rows(self) -> bool:
        """Bring the gradients of tables into the slot; whether they are finite."""
        if not self._tables:
            return True
        rows, finite = [], True
        for index, tensor in self._tables:
            if tensor.data_ptr() != self._addresses[index]:
                refuse_changed(self.layout.specs[index], tensor)
            if index in self._turn and tensor.grad is not None:
                one, is_finite = put(self._sent.views[index], tensor.grad, index)
                rows.append(one)
                finite &= is_finite
            else:
                self.missing += index in self._turn
                self.absent |= 1 << index
        self.rows = tuple(rows)
        return finite

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        self.bring_back()
        super().adopt(shown)
        if not self.ring.in_place:
            return
        if self._read is not None:
            self._read.renew()
        self._read = shown
        views = shown.read.views
        for index in self._trained:
            view = views[index]
            self.tensors[index].data = view
            self._addresses[index] = view.data_ptr()


class SharedReplica(Replica):
    """All workers' parameters are the one buffer of the ring, into which the first worker wrote its own."""

    copies = ()

    def fill_slot(self) -> bool:
        """Nothing is sent; whether the gradient is finite."""
        self.missing = 0
        return self.check_gradients()

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        """Point the model at the shared parameters."""
        for tensor, view in zip(self.tensors, self.arena.views, strict=True):
            tensor.data = view
        self._addresses = self._addresses_now()


def reads_in_place(strategy: Strategy, layout: Layout, model: nn.Module) -> bool:
    """Whether a worker should read this model's parameters where they lie.

    A module that writes into its parameters in the forward pass rules it out: to drop that each time costs more than a copy.
    So do a device of its own, and an answer that comes while the version before is read.
    """
    if strategy.send.stepped or strategy.adopt.late or device_of(model) != CPU or self_limiting(model):
        return False
    sizes = [spec.numel * spec.torch_dtype.itemsize for spec in layout.specs if spec.kind.moves]
    return sum(sizes) >= max(IN_PLACE_BYTES, IN_PLACE_MEAN_BYTES * len(sizes))
