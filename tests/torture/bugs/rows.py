"""Bugs of tables: what a table server does late, twice or not at all, and what a worker writes or reads too early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from plesio.core.events import Effect, Fold, FoldRows, RowsWanted, Serve
from plesio.core.membership import Seat
from plesio.core.row_requests import RowRequests
from plesio.core.sequencer import Sequencer
from plesio.memory.row_tables import RowTables, ServedRows
from plesio.protocol.rows import RowsRequest
from plesio.protocol.table_server import Ask, Begin, Lay, Vacated
from torture.bugs.planting import BUGS, bug
from torture.server import Server
from torture.sessions.envelopes import FromWorker
from torture.tables.actor import Actor
from torture.tables.desk import Desk
from torture.tables.server import RowServer

_before = set(BUGS)


@bug("a table server steps rows before it serves them")
class _StepsFirst(Actor):
    def _step(self) -> None:
        if len(self.todo) > 1 and isinstance(self.todo[0][1], Lay) and isinstance(self.todo[1][1], (FoldRows, Fold)):
            self.todo[0], self.todo[1] = self.todo[1], self.todo[0]
        super()._step()


@bug("rows step twice")
class _StepsTwice(Actor):
    def _do(self, message: Any, descriptors: Sequence[int]) -> None:
        super()._do(message, descriptors)
        if isinstance(message, FoldRows):
            super()._do(message, descriptors)


@bug("a new process has what the one before was served")
class _Remembers(Actor):
    def _do(self, message: Any, descriptors: Sequence[int]) -> None:
        if not isinstance(message, Vacated):
            super()._do(message, descriptors)


class _ReadsKeysLate(RowTables):
    def _taken(self, worker: int, number: int) -> list[ServedRows]:
        late = []
        for one in super()._taken(worker, number):
            place = self.slots.of(worker, number, one.table)
            begin = (one.laid.values.ctypes.data - place.values.ctypes.data) // place.values.strides[0]
            late.append(one._replace(laid=one.laid._replace(keys=place.keys[begin : begin + len(one.laid.keys)])))
        return late


@bug("keys are read when rows step")
class _KeysLate(Actor):
    def _do(self, message: Any, descriptors: Sequence[int]) -> None:
        super()._do(message, descriptors)
        if isinstance(message, Begin):
            self._tables.__class__ = _ReadsKeysLate


class _WithoutWeights(RowTables):
    def _add(self, worker: int, number: int, weight: float) -> None:
        super()._add(worker, number, 1.0)


@bug("weights of gradients are forgotten")
class _Unweighted(Actor):
    def _do(self, message: Any, descriptors: Sequence[int]) -> None:
        super()._do(message, descriptors)
        if isinstance(message, Begin):
            self._tables.__class__ = _WithoutWeights


@bug("a table server goes on with the rows of others")
class _TakesAll(Actor):
    def _do(self, message: Any, descriptors: Sequence[int]) -> None:
        super()._do(replace(message, servers=1) if isinstance(message, Begin) else message, descriptors)


@bug("a checkpoint does not wait for a table server")
class _WritesEarly(Actor):
    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        begun = not any(isinstance(one, (Begin, Ask)) for _, one, _ in self.todo)
        if begun and isinstance(message, Ask) and message.what == "write":
            self._do(message, descriptors)
        else:
            super().send(message, descriptors)


@bug("rows are read when the first table server has laid them")
class _WaitsForOne(Desk):
    def has(self, request: RowsRequest) -> bool:
        return self._slots[0].has_served(self._reader, request)


@bug("gradients are cleared before rows are served")
class _ClearsEarly(Desk):
    def ask(self, number: int, keys: Sequence[int], start: int, ahead: bool, serial: int) -> RowsRequest:
        for slots in self._slots:
            slots.of(self._reader, number, 0).touched[start : start + len(keys)] = 0
        return super().ask(number, keys, start, ahead, serial)


class _NeverLate(RowRequests):
    def wanted(self, event: RowsWanted, seat: Seat) -> tuple[Effect, ...]:
        return (Serve(event.worker, event.number, event.ahead),)


@bug("rows ahead do not wait for the fold")
class _ServesAtOnce(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._rows.__class__ = _NeverLate


class _Twice(RowRequests):
    def wanted(self, event: RowsWanted, seat: Seat) -> tuple[Effect, ...]:
        effects = super().wanted(event, seat)
        seat.owed *= 2
        return effects


@bug("rows are served twice")
class _ServesTwice(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._rows.__class__ = _Twice


@bug("a checkpoint has rows of what is computed again")
class _KeepsAmidFold(RowServer):
    def _may_keep(self) -> bool:
        return True


@bug("a seat is taken while its slot is read")
class _SeatsEarly(RowServer):
    def hear(self, letter: FromWorker, payload: int) -> None:
        Server.hear(self, letter, payload)


ROW_BUGS = [name for name in BUGS if name not in _before]
"""Those that only runs with tables show."""
