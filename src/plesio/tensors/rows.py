"""Tables of which a step uses few rows, as `nn.Embedding(sparse=True)`: what travels, and what a fold costs, is those rows.

In a slot the place of such a tensor holds the values of the rows, then their indices, in the order in which autograd gave them.
So the user's optimizer sees the gradient that it sees in one process, bit for bit. A gradient with more rows than fit there, or
a dense one, is put there whole.

A version's buffer that comes round again takes over the rows that changed since it was current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from plesio.tensors.arena import ALL_PARTS, HALF, Arena, Kind, Layout, TensorSpec
from plesio.tensors.finite import is_finite
from plesio.tensors.several import parts_of

WHOLE = -1
"""In place of a number of rows: the gradient is dense."""
INDEX_BYTES = 8
NO_ROWS: Mapping[int, torch.Tensor] = {}
MOVING = (Kind.TRAINED, Kind.BUFFER, Kind.ROWS)
"""What a worker of another host takes back; frozen tensors are sent once, at the beginning."""


class RowCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many rows of tensor `tensor` lie in a slot; `coalesced`: none twice, and in order."""

    tensor: int
    count: int
    coalesced: bool = False


def tables_of(model: nn.Module, optimizer: Optimizer) -> set[int]:
    """The identities of parameters whose gradients are sparse, and whose optimizer moves the rows of a gradient alone."""
    moved = {
        id(parameter)
        for one in parts_of(optimizer)
        for group in one.param_groups
        for parameter in group["params"]
        if _moves_rows_alone(one, group)
    }
    found = (
        module.weight
        for module in model.modules()
        if getattr(module, "sparse", False) is True and getattr(module, "max_norm", None) is None
    )
    return {id(one) for one in found if isinstance(one, nn.Parameter) and one.dim() == 2} & moved


def _moves_rows_alone(optimizer: Optimizer, group: dict[str, object]) -> bool:
    plain = not group.get("weight_decay") and not group.get("momentum")
    return type(optimizer) in (SGD, Adagrad, SparseAdam) and plain


def put(view: torch.Tensor, gradient: torch.Tensor, tensor: int) -> tuple[RowCount, bool]:
    """Bring a gradient into its place in a slot; and whether it is finite."""
    if gradient.is_sparse:
        count = gradient._nnz()
        if count * (_row_bytes(view) + INDEX_BYTES) <= view.nbytes:
            values, indices = _places(view, count)
            values.copy_(gradient._values())
            indices.copy_(gradient._indices()[0])
            return RowCount(tensor, count, gradient.is_coalesced()), is_finite(values)
        gradient = gradient.to_dense()
    view.copy_(gradient)
    return RowCount(tensor, WHOLE), is_finite(view)


def gradient_in(view: torch.Tensor, rows: RowCount) -> torch.Tensor:
    """The gradient that `put` brought there, over the same memory."""
    if rows.count == WHOLE:
        return view
    values, indices = _places(view, rows.count)
    return torch.sparse_coo_tensor(
        indices[None], values, view.shape, is_coalesced=rows.coalesced, check_invariants=False
    )


def _row_bytes(view: torch.Tensor) -> int:
    return view.shape[1] * view.itemsize


def _places(view: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the values and the indices of so many rows lie: the indices at the end, where they are aligned."""
    data, size = view.view(-1).view(torch.uint8), count * INDEX_BYTES
    end = view.nbytes // INDEX_BYTES * INDEX_BYTES
    return view[:count], data[end - size : end].view(torch.int64)


def fits(spec: TensorSpec, rows: RowCount) -> bool:
    """Whether this may be said of a tensor."""
    if spec.kind is not Kind.ROWS:
        return False
    row_bytes = spec.shape[1] * spec.torch_dtype.itemsize
    return rows.count == WHOLE or 0 <= rows.count * (row_bytes + INDEX_BYTES) <= spec.shape[0] * row_bytes


def spans_of(layout: Layout, rows: Sequence[RowCount], part: int = ALL_PARTS) -> list[tuple[int, int]]:
    """The bytes of a slot that a contribution of this part with these rows takes."""
    spans = list(layout.stretches((Kind.TRAINED, Kind.BUFFER), part))
    for one in rows:
        spec, start = layout.specs[one.tensor], layout.starts[one.tensor]
        row_bytes = spec.shape[1] * spec.torch_dtype.itemsize
        nbytes = spec.shape[0] * row_bytes
        if one.count == WHOLE:
            spans.append((start, start + nbytes))
        elif one.count:
            end = start + nbytes // INDEX_BYTES * INDEX_BYTES
            spans += [(start, start + one.count * row_bytes), (end - one.count * INDEX_BYTES, end)]
    return spans


def in_range(layout: Layout, slot: memoryview, rows: Sequence[RowCount]) -> bool:
    """Whether the indices in a slot, from another host, are of rows that their tables have: nobody else looks."""
    for one in rows:
        if one.count > 0:
            start, _ = spans_of(layout, (one,))[-1]
            indices = torch.frombuffer(slot, dtype=torch.int64, count=one.count, offset=start)
            if int(indices.min()) < 0 or int(indices.max()) >= layout.specs[one.tensor].shape[0]:
                return False
    return True


def mean_of(gradients: Sequence[torch.Tensor], shares: Sequence[float]) -> torch.Tensor:
    """The weighted sum; of one with a share of 1 the same object."""
    if len(gradients) == 1 and shares[0] == 1.0:
        return gradients[0]
    if not all(one.is_sparse for one in gradients):
        return sum((one.to_dense() * share for one, share in zip(gradients, shares, strict=True)), torch.zeros(()))
    indices = torch.cat([one._indices() for one in gradients], 1)
    values = torch.cat([one._values() * share for one, share in zip(gradients, shares, strict=True)])
    return torch.sparse_coo_tensor(indices, values, gradients[0].shape, check_invariants=False).coalesce()


def copy_rows(target: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
    """Copy these rows, into the target's dtype."""
    target.index_copy_(0, rows, source.index_select(0, rows).to(target.dtype))


class _Behind:
    """The rows of one table that changed since a buffer was current."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []
        self.count = 0

    def add(self, rows: torch.Tensor, most: int) -> None:
        """A buffer that nobody takes for long is copied whole: no more is remembered than the table has."""
        self.count += len(rows)
        if self.count < most:
            self.rows.append(rows)
        else:
            self.rows.clear()


class Tables:
    """The tables in the buffers of versions: which rows of which buffer are behind.

    Args:
        layout: of the buffers.
        buffers: all hold the same at first.
    """

    def __init__(self, layout: Layout, buffers: Sequence[Arena]) -> None:
        self.places = [place for place, spec in enumerate(layout.specs) if spec.kind is Kind.ROWS]
        self._buffers = buffers
        self._behind: list[dict[int, _Behind]] = [{} for _ in buffers]
        self._in_slots: dict[int, tuple[RowCount, ...]] = {}  # by worker
        self._held: list[tuple[float, dict[int, torch.Tensor]]] = []
        self._changed = 0  # bytes, of all folds
        self._told: dict[int, int] = {}  # how many of them each reader knows
        self.nbytes = 0
        """What travelled: the rows of contributions, and those that changed since their readers looked last."""

    @classmethod
    def of(cls, buffers: Sequence[Arena]) -> Tables | None:
        """None where the model has no tables."""
        tables = cls(buffers[0].layout, buffers)
        return tables if tables.places else None

    def came(self, worker: int, rows: tuple[RowCount, ...]) -> None:
        """These lie in `worker`'s slot."""
        self._in_slots[worker] = rows
        views = self._buffers[0].views
        for one in rows:
            view = views[one.tensor]
            self.nbytes += view.nbytes if one.count == WHOLE else one.count * (_row_bytes(view) + INDEX_BYTES)

    def gradients_of(self, worker: int, slot: Arena) -> dict[int, torch.Tensor]:
        """By tensor; of half precision in float32, as the master copy is stepped."""
        given = {one.tensor: gradient_in(slot.views[one.tensor], one) for one in self._in_slots.get(worker, ())}
        return {place: one.float() if one.dtype in HALF else one for place, one in given.items()}

    def hold(self, worker: int, slot: Arena, weight: float) -> None:
        """Keep what lies in a slot for the fold."""
        mine = {tensor: one.clone() for tensor, one in self.gradients_of(worker, slot).items()}
        self._held.append((weight, mine))

    def take_held(self) -> list[tuple[float, dict[int, torch.Tensor]]]:
        """What was held, in order, with its weights."""
        held, self._held = self._held, []
        return held

    def mean(self, parts: Sequence[tuple[float, dict[int, torch.Tensor]]]) -> dict[int, torch.Tensor]:
        """The weighted sum by tensor; who lacks one counts as zeros."""
        means: dict[int, torch.Tensor] = {}
        for place in self.places:
            given = [(share, one[place]) for share, one in parts if place in one]
            if given:
                shares, gradients = zip(*given, strict=True)
                means[place] = mean_of(gradients, shares)
        return means

    def bring_up(self, index: int, current: Arena) -> None:
        """Buffer `index` is to hold the tables of `current`."""
        target = self._buffers[index]
        for place, behind in self._behind[index].items():
            if behind.count >= len(target.views[place]):
                target.views[place].copy_(current.views[place])
            else:
                copy_rows(target.views[place], current.views[place], torch.cat(behind.rows))
        self._behind[index] = {}

    def changed(self, gradients: Mapping[int, torch.Tensor], index: int) -> None:
        """A step with these gradients was made in buffer `index`: the others are behind."""
        for place, gradient in gradients.items():
            table = self._buffers[0].views[place]
            rows = gradient._indices()[0].clone() if gradient.is_sparse else torch.arange(len(table))
            self._changed += len(rows) * _row_bytes(table)
            for other, behind in enumerate(self._behind):
                if other != index:
                    behind.setdefault(place, _Behind()).add(rows, len(table))

    def read(self, reader: int) -> None:
        """Count what `reader` takes back."""
        self.nbytes += self._changed - self._told.get(reader, 0)
        self._told[reader] = self._changed

    def begin_anew(self) -> None:
        self._held.clear()
