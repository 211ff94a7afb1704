"""The rows of tables that one server holds: what the sequencer decides is done to them.

| effect            | rows at once (`AtOnce`)       | rows with the fold (`WithFold`)                              |
| ----------------- | ----------------------------- | ------------------------------------------------------------ |
| Serve             | they are laid into the slot   | the same                                                     |
| FoldRows          | step by this contribution     | -                                                            |
| Hold              | -                             | its gradients are added to the sum, by key, with its weight  |
| Fold              | -                             | step by the weighted mean of its members' gradients, by key  |

A row is served as it is then; it is born when it first steps. The last reader, while it is `Reading`, is served rows as they were
when it began. The server remembers which rows it gave to a contribution, so
that gradients come back without keys. `clock` counts the times that rows stepped: a row's staleness is by how much it went on
between its service and its step, if the row stepped in between. Which rows have expired follows from it, too; after each step
their memory is given back in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from plesio.core.events import Fold, FoldRows, Hold, Serve
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol.rows import RowsRequest
from plesio.protocol.table_server import Reading
from plesio.tables.dealing import share_of
from plesio.tables.distinct import Sum
from plesio.tables.file import KeptRows, in_memory
from plesio.tables.hot import HotKeys, is_looked_at
from plesio.tables.links import rows_in, write_rows
from plesio.tables.spec import TableSpec
from plesio.tables.store import Folded, Store, load_kernels, slice_of
from plesio.tensors.checksum import HASH
from plesio.transport.row_slots import MOST, Laid, RowSlots


class ServedRows(NamedTuple):
    """Rows that a contribution was given at once, of `table`: what is `laid` in the slot; where they lie in the table; the clock
    then."""

    table: int
    laid: Laid
    places: NDArray[np.int64]
    clock: int


class RowTables:
    """The rows of all tables, for whoever has a place in `slots`: workers first. `at_once`: they step as contributions come.
    Of several `servers` it holds the rows of one, `server`. `survive`: in memory that outlives this process."""

    load: RowServer | None = None  # what this process does is counted elsewhere

    def __init__(
        self, slots: RowSlots, at_once: bool, server: int = 0, servers: int = 1, survive: bool = False
    ) -> None:
        load_kernels()  # before training begins
        self.stores = [Store(spec, slots.readers * MOST if survive else 0) for spec in slots.specs]
        self.clock = 0
        self.counted = [RowsSummary(rows=0) for _ in slots.specs]
        self.hot, self._looked_at = [HotKeys() for _ in slots.specs], 0
        self.slots = slots
        self._whose = server, servers
        self._asked: list[dict[int, RowsRequest]] = [{} for _ in range(slots.readers)]  # by contribution
        self._served: list[dict[int, list[ServedRows]]] = [{} for _ in range(slots.readers)]  # by contribution
        self._sums = [Sum(spec.dim) for spec in slots.specs]
        self._oldest = 0  # when the first of what is in the sums was served
        self.actions = self._actions(at_once)

    def _actions(self, at_once: bool) -> dict[type, Callable[[Any], None]]:
        """What is done for each kind of effect."""
        actions: dict[type, Callable[[Any], None]] = {
            Serve: self._serve,
            Reading: self._reading,
            FoldRows: lambda effect: self._step(effect.worker, effect.number),
        }
        if not at_once:
            actions |= {
                Hold: lambda effect: self._add(effect.worker, effect.number, effect.weight),
                Fold: self._fold,
            }
        return actions

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        return tuple(store.spec for store in self.stores)

    @property
    def clock(self) -> int:
        """How many times rows stepped."""
        return self._clock

    @clock.setter
    def clock(self, clock: int) -> None:
        self._clock = clock
        for store in self.stores:
            store.clock = clock

    def do(self, effect: Any) -> None:
        """Carry out an effect; of many there is nothing to do for rows."""
        if (act := self.actions.get(type(effect))) is not None:
            act(effect)

    # What is asked

    def asked(self, reader: int, request: RowsRequest) -> None:
        """The keys of what `reader` wants lie in its slot."""
        self._asked[reader][request.number] = request

    def _serve(self, serve: Serve) -> None:
        request, given = self._asked[serve.worker].pop(serve.number), self._served[serve.worker]
        for old in [one for one in given if one <= serve.number - 2]:  # nothing comes of these any more
            del given[old]
        looks = self._looks(serve)
        self._looked_at += looks and serve.number not in given
        served = given.setdefault(serve.number, []) if serve.number else []
        for table, (at, count) in enumerate(request.wanted):
            if count:
                one = self._lay(serve, table, at, count)
                served.append(one)
                self._count(table, served=count, pulled_bytes=one.laid.keys.nbytes + one.laid.values.nbytes)
                if looks:
                    self.hot[table].add(one.laid.keys)

    def _looks(self, serve: Serve) -> bool:
        """Whether its keys are looked at, for those that are hot."""
        return is_looked_at(serve.worker, serve.number)

    def _lay(self, serve: Serve, table: int, at: int, count: int) -> ServedRows:
        laid = self.slots.of(serve.worker, serve.number, table).rows(at, at + count)
        laid = laid._replace(keys=laid.keys.copy())  # the next but one contribution's are written there early
        return self._laid(serve, table, laid)

    def _laid(self, serve: Serve, table: int, laid: Laid) -> ServedRows:
        store, last = self.stores[table], serve.worker == self.slots.readers - 1
        return ServedRows(table, laid, (store.read if last else store.pull)(laid.keys, laid.values), self.clock)

    def _reading(self, reading: Reading) -> None:
        for store in self.stores:
            store.stand_still(reading.begins)

    def given(self, worker: int, number: int) -> list[ServedRows]:
        """What a contribution was given, and has not stepped yet."""
        return self._served[worker].get(number, [])

    def gives(self, worker: int, number: int, table: int, laid: Laid) -> None:
        """As if it had been given these rows here, and its gradients lay there."""
        unknown = np.full(len(laid.keys), -1, np.int64)  # where they lie
        self._served[worker].setdefault(number, []).append(ServedRows(table, laid, unknown, self.clock))

    def nbytes_pushed(self, worker: int, number: int) -> int:
        """What the gradients in contribution `number` take."""
        return sum(one.laid.gradients.nbytes for one in self._served[worker].get(number, ()))

    # What steps

    def _taken(self, worker: int, number: int) -> list[ServedRows]:
        """What a contribution was given; its gradients lie beside it."""
        taken = self._served[worker].pop(number, [])
        for one in taken:
            self._count(one.table, pushed_bytes=one.laid.gradients.nbytes)
        return taken

    def _step(self, worker: int, number: int) -> None:
        self.clock += 1
        stepped = [
            (table, self.stores[table].fold(laid.keys, places, laid.gradients, laid.touched, self.clock, seen))
            for table, laid, places, seen in self._taken(worker, number)
        ]
        for table, folded in stepped:  # a table may be there twice: none of these rows is swept before it steps
            self._sweep(table, folded)

    def _add(self, worker: int, number: int, weight: float) -> None:
        for table, laid, _, seen in self._taken(worker, number):
            self._oldest = min(self._oldest, seen)
            self._sums[table].add(laid.keys, laid.gradients, laid.touched, weight)

    def _fold(self, fold: Fold) -> None:
        """Of several members the gradients are added by key first: one by one they would step a row once for each."""
        if len(fold.members) == 1 and not fold.held:
            self._step(fold.members[0].worker, fold.members[0].number)
            return
        for member in fold.members if not fold.held else ():
            self._add(member.worker, member.number, member.share)
        weight = 1.0 / fold.held if fold.held else 1.0
        seen, self.clock = self._oldest, self.clock + 1
        self._oldest = self.clock
        for table, (store, waiting) in enumerate(zip(self.stores, self._sums, strict=True)):
            keys, gradients, touched = waiting.take()
            if len(keys):
                unknown = np.full(len(keys), -1, np.int64)  # where they lie
                self._sweep(table, store.fold(keys, unknown, gradients, touched, self.clock, seen, weight))

    def _sweep(self, table: int, folded: Folded) -> None:
        swept = self.stores[table].sweep(self.clock, slice_of(folded))
        self._count_fold(table, folded._replace(evicted=folded.evicted + swept))

    def _count_fold(self, table: int, folded: Folded) -> None:
        more = folded._asdict()
        self._count(table, stepped=more.pop("rows"), **more)

    def _count(self, table: int, **more: int) -> None:
        counted = self.counted[table]
        self.counted[table] = replace(counted, **{name: getattr(counted, name) + value for name, value in more.items()})

    # What others see

    def take_checksum(self) -> int:
        """That of the rows that stepped since the last time."""
        return sum(store.take_checksum() for store in self.stores) % HASH

    def checksum(self) -> int:
        """That of all rows."""
        return sum(store.checksum() for store in self.stores) % HASH

    def summaries(self, exact: bool) -> dict[str, RowsSummary]:
        """What became of each table's rows. `exact`: without those that died and still have memory, which takes a scan."""
        found = [hot.shares(self._looked_at, exact) for hot in self.hot]
        return {
            one.spec.name: replace(counted, rows=one.rows if exact else one.held, memory_bytes=one.nbytes, hot=hot)
            for one, counted, hot in zip(self.stores, self.counted, found, strict=True)
        }

    def ask(self, what: str, *args: Any) -> Callable[[], Any]:
        """Call a method, as of a server in another process."""
        found = getattr(self, what)(*args)
        return lambda: found

    def forget(self, reader: int) -> None:
        """Another process sits there now."""
        self._served[reader].clear()
        self._asked[reader].clear()

    def kept(self, since: int = -1) -> dict[str, KeptRows]:
        """The rows of each table that stepped after the clock `since`, for a checkpoint or the run's result."""
        return {spec.name: store.kept(since) for spec, store in zip(self.specs, self.stores, strict=True)}

    def write(self, folder: str, link: int, since: int) -> None:
        """Write a file of each table, the number `link` of its chain: of the rows that stepped after the clock `since`."""
        server, servers = self._whose
        write_rows(Path(folder), link, self.kept(since), None if servers == 1 else server)

    def hand_over(self, since: int = -1) -> int:
        """The descriptor of a file in memory with the rows that stepped after the clock `since`."""
        return in_memory(self.kept(since))

    def restore(self, folder: str, files: Sequence[str], clock: int) -> int:
        """Begin from the checkpoint in `folder`, of the same tables and any number of servers. Returns the clock."""
        return self.begin_from(rows_in(Path(folder), files, lambda rows: share_of(rows, *self._whose)), clock)

    def begin_from(self, kept: Mapping[str, KeptRows], clock: int) -> int:
        """Begin from these rows, all of this server's. Returns the clock."""
        for spec, store in zip(self.specs, self.stores, strict=True):
            store.restore(kept[spec.name])
        self.clock = clock
        self.begin_anew()
        return clock

    def begin_anew(self) -> None:
        """Nothing waits to be folded."""
        self._oldest = self.clock
        for waiting in self._sums:
            waiting.take()
        for given in self._served:
            given.clear()
