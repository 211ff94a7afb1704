"""A worker's place in the run's memory, as the context seats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from plesio.protocol.rows import RowsRequest
from plesio.system.memory import SharedBlock
from plesio.tables.file import KeptRows
from plesio.tables.module import named_tables
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.carrying import Carried, States
from plesio.transport.board import Board
from plesio.transport.held import Held
from plesio.transport.ring import Ring
from plesio.transport.row_slots import RowSlots


@dataclass(frozen=True, slots=True)
class Home:
    """Parameters that the worker steps itself; `wanted`, `keeps`: as `OwnStepExchange` takes them."""

    arena: Arena
    wanted: Callable[[], int]
    keeps: bool


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """Where a worker with tables gets their rows.

    Attributes:
        slots: of each server.
        ask: asks the server for rows, unless that was done ahead, and waits until they are there; `send`: asks ahead.
        bring: takes the rows that the first worker's tables have.
    """

    slots: Sequence[RowSlots]
    ask: Callable[[RowsRequest], object]
    send: Callable[[RowsRequest], object]
    bring: Callable[[Mapping[str, KeptRows]], object]

    def bring_from(self, model: nn.Module) -> None:
        tables = named_tables(model)
        if any(one.rows for one in tables.values()):
            self.bring({name: one.kept() for name, one in tables.items()})


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in the run's memory.

    Attributes:
        initial: where the `first` worker writes the initial weights, then what its optimizer holds.
        ring: the versions; `slot`: where it writes contributions.
        home: parameters that the worker steps itself, if it does.
        board: where workers that fold among themselves meet.
        held: where checkpoints find what the worker holds of its own.
        state: fetches the state of the optimizer that steps at the server.
        brought: the state that was sent for the optimizer here, where `held` is elsewhere.
        states: the folder for what clients keep; empty where not all workers see the same.
        rows: where it gets rows of tables, if the model has some.
    """

    layout: Layout
    initial: Sequence[Arena]
    first: bool
    ring: Ring[Arena]
    slot: Arena
    home: Home | None = None
    board: Board | None = None
    held: Held | None = None
    state: Callable[[], tuple[Carried, SharedBlock]] | None = None
    brought: Callable[[], States] | None = None
    states: str = ""
    rows: RowsPlace | None = None

    def bring_from(self, model: nn.Module) -> None:
        """Hand over what the `first` worker's model has beside tensors."""
        if self.first and self.rows is not None:
            self.rows.bring_from(model)
