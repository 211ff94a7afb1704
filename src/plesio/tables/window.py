"""What a model has looked up since its rows were last stepped: each key once, with one sum of its gradients.

Without a run the rows are in a store of this process (`Local`), and step at the end of each backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from plesio import tables
from plesio.tables.file import last_step
from plesio.tables.spec import TableSpec


class Rows(NamedTuple):
    """The rows of n keys: `values` and `gradients`, float32, (n, dim); `touched`, uint8: whether there is a gradient yet."""

    values: NDArray[np.float32]
    gradients: NDArray[np.float32]
    touched: NDArray[np.uint8]

    def first(self, count: int) -> Rows:
        """Some of them."""
        return Rows(self.values[:count], self.gradients[:count], self.touched[:count])


def roomy(room: Rows | None, before: Rows | None, count: int, dim: int) -> Rows:
    """`room`, if it begins with the rows `before` and has place for `count`; else one that does, twice as large if it grows."""
    if before is not None and room is not None and count <= len(room.touched):
        return room
    start = len(before.values) if before is not None else 0
    most = 2 * count if start else count
    values = np.empty((most, dim), np.float32)
    room = Rows(values, np.empty_like(values), np.zeros(most, np.uint8))
    for new, old in zip(room, before or (), strict=False):
        new[:start] = old  # type: ignore[index]
    return room


class Source(Protocol):
    """Where the rows of a table come from."""

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the values of distinct keys into `out`, (n, dim); nothing is stepped for them."""
        ...

    def pull(self, keys: NDArray[np.int64], before: Rows | None) -> Rows:
        """The rows of a window, of which `before` were pulled already, with those of more `keys` behind them, untouched."""
        ...


class Window:
    """The distinct keys looked up with gradients until the rows step, in the order of their appearance, and their rows.

    When it is `closed` a table looks up in another. It keeps what it has, for a backward pass that is still to come.
    """

    def __init__(self) -> None:
        self._distinct = tables.Distinct()
        self.rows: Rows | None = None
        self.closed = False

    @property
    def keys(self) -> NDArray[np.int64]:
        """The keys; what is returned is valid until more are looked up."""
        return self._distinct.keys

    def expect(self, ids: NDArray[np.int64]) -> None:
        """These ids will be looked up, and their rows are to be there by then."""
        self._distinct.add(ids)

    def look_up(self, ids: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
        """The position of each id, flat, among the keys; new ones are pulled."""
        before = len(self._distinct)
        positions = self._distinct.add(ids)
        if len(self._distinct) > before:
            try:
                self.rows = source.pull(self.keys[before:], self.rows)
            except BaseException:
                self.closed = True  # or these keys had no rows
                raise
        return positions

    def add(self, positions: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        """A backward pass came by: add what it found to the gradients of the rows at these positions."""
        assert self.rows is not None, "they were pulled"
        tables.add_at(self.rows.gradients, self.rows.touched, positions, gradients)


def vectors_of(values: NDArray[np.float32], positions: NDArray[np.int64]) -> torch.Tensor:
    """The values at each position, (n, dim)."""
    return F.embedding(torch.from_numpy(positions), torch.from_numpy(values))


class WithGradient(torch.autograd.Function):
    """The values at each position among those of a window, (n, dim); a backward pass tells `came_by` their gradients.

    Its first argument needs a gradient, so that there is a backward pass.
    """

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, window: Window, positions: NDArray[np.int64], came_by: Any) -> torch.Tensor:
        ctx.found = window, positions, came_by
        assert window.rows is not None, "they were pulled"
        return vectors_of(window.rows.values, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, None]:
        window, positions, came_by = ctx.found
        came_by(window, positions, gradient.contiguous().numpy())
        return None, None, None, None


class Local:
    """A store of this process, as the source of a table's rows. A copy of it has rows of its own.

    Rows that it is `given` stay as they are until one is looked up: who only hands them on needs no index of them.
    """

    def __init__(self, spec: TableSpec, given: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._spec, self._given = spec, given
        self._room: Rows | None = None  # of the window that was pulled last

    @cached_property
    def store(self) -> tables.Store:
        """The rows, where they can be looked up."""
        self.store = tables.Store(self._spec)
        if self._given is not None:
            self.restore(self._given)
        return self.store

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.store.rows if self._given is None else len(self._given["keys"])

    def kept(self) -> dict[str, NDArray[Any]]:
        """A copy of them."""
        return self.store.kept() if self._given is None else {name: one.copy() for name, one in self._given.items()}

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """The values of keys; nothing is stored."""
        self.store.pull(keys, out)

    def pull(self, keys: NDArray[np.int64], before: Rows | None) -> Rows:
        """The rows of a window, in memory of their own, with room for more: many passes without a backward pass come, too."""
        start = len(before.values) if before is not None else 0
        self._room = roomy(self._room, before, start + len(keys), self.store.spec.dim)
        rows = self._room.first(start + len(keys))
        self.store.pull(keys, rows.values[start:])
        return rows

    def step(self, window: Window) -> None:
        """Step the rows that a backward pass came by. The clock counts such passes."""
        keys, rows, store = window.keys, window.rows, self.store
        assert rows is not None, "a pass came by"
        unknown = np.full(len(keys), -1)
        folded = store.fold(keys, unknown, rows.gradients, rows.touched, store.clock + 1, store.clock)
        store.sweep(store.clock, tables.slice_of(folded))
        rows.touched[:] = 0

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Have these rows instead. Raises CheckpointError if they are not such a table's."""
        arrays = {name: one.cpu().numpy() if torch.is_tensor(one) else one for name, one in kept.items()}
        self.store.restore(arrays)
        self.store.clock = max(last_step(arrays), self.store.clock)
        self._given = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.store.spec, "kept": self.kept(), "version": self.store.clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["spec"])  # type: ignore[misc]
        self.restore(state["kept"])
        self.store.clock = state["version"]
