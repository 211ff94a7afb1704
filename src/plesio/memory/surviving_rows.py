"""Rows of tables that can be gone on from when the process that holds them dies (`plesio.system.recovery_log`).

They lie in memory that outlives it. An effect by which rows step is entered in the log when it is done, with its figures. Whoever
takes over takes these from there, and steps no row. The effect that was under way at the end is taken back (`plesio.tables.undo`)
and done again: a word in shared memory says that it was begun.

| what                         | whoever takes over, as long as there is a log                                             |
| ---------------------------- | ----------------------------------------------------------------------------------------- |
| Serve                        | lays nothing: the values lie in the slot, and the rows may have stepped since             |
| Reading                      | has rows as they are at the death: they have stepped since then                           |
| keys of what was served      | finds a copy, by contribution and table: the reader may have written others into the slot |
| places of what was served    | does not know them: they are looked up again                                              |
| rows folded since a checksum | forgets them if the checksum was the last in the log, else those of later folds are there |
| keys that are hot            | does not look: the copy may be of a later contribution                                    |

A Serve that is not in the log is done again, with the keys in the slot. They are still those: a worker asks for contribution
n + 2 when n is answered, and not before.

Sums of gradients that wait for a fold are in a process's own memory: such a run has no spare.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from plesio.core.events import Fold, FoldRows, Serve
from plesio.memory.row_tables import RowTables, ServedRows
from plesio.system.memory import SharedBlock
from plesio.system.recovery_log import RecoveryLog
from plesio.tables.store import Folded
from plesio.tensors.arena import PAGE
from plesio.tensors.checksum import HASH
from plesio.transport.row_slots import RowSlots


class SurvivingRows(RowTables):
    """Does as `RowTables`, by way of the `log`."""

    def __init__(self, log: RecoveryLog, slots: RowSlots, at_once: bool) -> None:
        super().__init__(slots, at_once, survive=True)
        self._log = log
        self._keys = RowSlots.create(
            [replace(spec, dim=1) for spec in slots.specs], slots.readers
        )  # no values are in there
        self._block = SharedBlock.create(PAGE, "the word that says which rows were begun to step")
        self._begun = self._block.memory.numpy().data.cast("Q")
        self._done = 0  # effects that are in the log, and the one that is being done
        self._folded: list[tuple[int, ...]] = []  # by it: tables, and what became of their rows
        for store in self.stores:  # nothing is taken back: the kernel is loaded before training begins
            store.begin_fold()
            store.take_back()

    def _actions(self, at_once: bool) -> dict[type, Callable[[Any], None]]:
        actions = super()._actions(at_once)
        step = {kind: partial(self._through, act) for kind, act in actions.items() if kind in (FoldRows, Fold)}
        return actions | step

    def do(self, effect: Any) -> None:
        self._catch_up()
        super().do(effect)

    def ask(self, what: str, *args: Any) -> Callable[[], Any]:
        self._catch_up()
        return super().ask(what, *args)

    def _catch_up(self) -> None:
        """What a process that died had begun and not done is taken back."""
        if self._begun[0] > self._done and not self._log.recovering:
            for store in self.stores:
                store.take_back()
            self._begun[0] = self._done

    # What is asked

    def _looks(self, serve: Serve) -> bool:
        return not self._log.recovering and super()._looks(serve)

    def _lay(self, serve: Serve, table: int, at: int, count: int) -> ServedRows:
        laid = self.slots.of(serve.worker, serve.number, table).rows(at, at + count)
        keys = self._keys.of(serve.worker, serve.number, table).keys[at : at + count]
        laid, came = laid._replace(keys=keys), laid.keys
        if self._log.recovering:
            return ServedRows(table, laid, np.full(count, -1), self.clock)
        keys[:] = came
        return self._laid(serve, table, laid)

    # What steps

    def _through(self, act: Callable[[Any], None], effect: FoldRows | Fold) -> None:
        """Have rows step, unless the log has it."""
        self._done += 1
        if self._log.recovering:
            self._take(effect, *self._log.once(list[Any]))
            return
        for store in self.stores:
            store.begin_fold()
        self._begun[0] = self._done
        self._folded = []
        act(effect)
        self._log.once(lambda: [self._oldest, self._folded])

    def _take(self, effect: FoldRows | Fold, oldest: int, folded: list[tuple[int, ...]]) -> None:
        """Rows have stepped, with these figures."""
        for one in effect.members if isinstance(effect, Fold) else (effect,):
            self._taken(one.worker, one.number)
        self.clock += 1
        self._oldest = oldest
        for table, *figures in folded:
            self._count_fold(table, Folded(*figures))

    def _count_fold(self, table: int, folded: Folded) -> None:
        self._folded.append((table, *folded))
        super()._count_fold(table, folded)

    # What others see

    def take_checksum(self) -> int:
        found = self._log.once(lambda: sum(store.take_checksum(forget=False) for store in self.stores) % HASH)
        if not self._log.recovering:
            for store in self.stores:
                store.forget_folded()
        return found

    def checksum(self) -> int:
        return self._log.once(super().checksum)
