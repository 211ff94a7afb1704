"""Bugs of rows of tables that outlive their server: what is not taken back, or is done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plesio.core.events import Serve
from plesio.memory.row_tables import RowTables, ServedRows
from torture.bugs.planting import BUGS, bug
from torture.tables.reborn import Rows

_before = set(BUGS)


@bug("half a fold of rows is not taken back")
class _GoesOn(Rows):
    def _catch_up(self) -> None:
        pass


@bug("rows are on record before they step")
class _RecordsFirst(Rows):
    def _through(self, act: Callable[[Any], None], effect: Any) -> None:
        if self._log.recovering:
            super()._through(act, effect)
            return
        self._done += 1
        self._log.once(lambda: [self._oldest, []])
        act(effect)


@bug("keys are copied to one place")
class _OnePlace(Rows):
    def _lay(self, serve: Serve, table: int, at: int, count: int) -> ServedRows:
        return super()._lay(serve, table, at, count)._replace(laid=self._laid(serve, table, at, count))

    def _laid(self, serve: Serve, table: int, at: int, count: int) -> Any:
        laid = self.slots.of(serve.worker, serve.number, table).rows(at, at + count)
        keys = self._keys.of(serve.worker, 1, table).keys[at : at + count]
        if not self._log.recovering:
            keys[:] = laid.keys
        return laid._replace(keys=keys)


@bug("a reborn server knows where rows were")
class _TrustsPlaces(Rows):
    def _lay(self, serve: Serve, table: int, at: int, count: int) -> ServedRows:
        one = super()._lay(serve, table, at, count)
        return one._replace(places=np.arange(count)) if self._log.recovering else one


@bug("rows are laid while there is a log")
class _LaysAgain(Rows):
    def _lay(self, serve: Serve, table: int, at: int, count: int) -> ServedRows:
        return RowTables._lay(self, serve, table, at, count)


REBORN_ROW_BUGS = [name for name in BUGS if name not in _before]
"""Those that only runs with tables whose server is reborn show."""
