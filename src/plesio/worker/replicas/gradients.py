"""A replica whose gradients are sent: the server owns the parameters."""

from __future__ import annotations

from torch import nn

from plesio.strategy import Strategy
from plesio.tensors.arena import CPU, Arena, Kind, Layout
from plesio.tensors.model import device_of, self_limiting
from plesio.tensors.rows import put
from plesio.tensors.tensor_set import members_of
from plesio.transport.ring import Shown
from plesio.worker.guards.inventory import refuse_changed
from plesio.worker.replicas.replica import Replica

NOTHING: frozenset[int] = frozenset()
IN_PLACE_BYTES = 1 << 20
IN_PLACE_MEAN_BYTES = 1 << 16
"""A model this large, in tensors this large on average, is read in place (benchmarks/exchange.py --read)."""


class GradientReplica(Replica):
    """The server owns the parameters; this worker sends gradients.

    It reads large models in place, from the version it pins, through a view that keeps its own writes from the others. It
    copies small ones, which is cheaper than to redirect many tensors. Gradients are copied to the slot once, and `.grad` stays
    there: what is clipped or accumulated later is what is sent.
    """

    def _get_ready(self) -> None:
        device = self.tensors[0].device
        self._slot = self._sent if device == CPU else Arena.private(self.layout, device)
        self._read: Shown[Arena] | None = None  # in place
        tables = [i for i in self._trained if self.layout.specs[i].kind is Kind.ROWS]
        self._tables = [(i, self.tensors[i]) for i in tables]
        self._contributed = [
            (i, self.tensors[i], self._slot.views[i].data_ptr()) for i in self._trained if i not in tables
        ]
        self._buffers = list(zip(self._sent.of_kind(Kind.BUFFER), self.arena.of_kind(Kind.BUFFER), strict=True))

    def fill_slot(self) -> bool:
        """Bring gradients and buffers into the slot; whether the gradient is finite."""
        self.missing = self.absent = 0
        self.bring_back()
        for index, tensor, in_slot in self._contributed:
            if tensor.data_ptr() != self._addresses[index]:
                refuse_changed(self.layout.specs[index], tensor)
            gradient = tensor.grad if index in self._turn else None
            if gradient is None:
                self.missing += index in self._turn
                self.absent |= 1 << index
            elif len(self._turn) < len(self._trained):  # another's step is not to find its gradients in the slot
                self._slot.views[index].copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            elif gradient.is_sparse or not in_slot or gradient.data_ptr() != in_slot:  # 0: a device without addresses
                view = self._slot.views[index]
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                tensor.grad = view.detach()  # else `.grad.data = ...` would give the slot's view other memory
        lacking = self._leave_out() if self.absent else NOTHING
        if self._slot is not self._sent:
            both = enumerate(zip(self._sent.of_kind(Kind.TRAINED), self._slot.of_kind(Kind.TRAINED), strict=True))
            for place, (sent, mine) in both:
                if place not in lacking:
                    sent.copy_(mine)
        for sent, mine in self._buffers:
            sent.copy_(mine)
        return self._is_finite(lacking) and self._put_rows()

    def _leave_out(self) -> frozenset[int]:
        """Parameters without a gradient count as zeros beside others' gradients, and are left alone where nobody has one. The
        fold wrote into the slot, so they are zeroed anew; but for whole segments of them, which are returned: nobody reads these.
        """
        lacking = self.layout.lacking(self.absent)
        unread = {tensor for place in lacking for tensor in self.layout.segments[place].tensors}
        for index in members_of(self.absent):
            if index not in unread:
                self._slot.views[index].zero_()
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


def reads_in_place(strategy: Strategy, layout: Layout, model: nn.Module) -> bool:
    """Whether a worker should read this model's parameters where they lie.

    A module that writes into its parameters in the forward pass rules it out: to drop that each time costs more than a copy.
    So does a device of its own.
    """
    if strategy.send.stepped or device_of(model) != CPU or self_limiting(model):
        return False
    sizes = [spec.numel * spec.torch_dtype.itemsize for spec in layout.specs if spec.kind.moves]
    return sum(sizes) >= max(IN_PLACE_BYTES, IN_PLACE_MEAN_BYTES * len(sizes))
