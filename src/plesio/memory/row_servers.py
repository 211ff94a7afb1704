"""All rows of a run's tables, which one or several servers hold. Each carries out what is decided, in the same order.

A server is `plesio.memory.row_tables.RowTables` in this process, or stands for one in another (`RowHolder`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

import msgspec

from plesio.core.events import Fold, FoldRows, Hold, Serve
from plesio.errors import ConfigurationError
from plesio.memory.blocks import Blocks
from plesio.memory.capability import Action, MemoryCapability
from plesio.memory.row_tables import RowTables, ServedRows
from plesio.memory.saved import Kept
from plesio.memory.surviving_rows import SurvivingRows
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol.rows import RowsRequest
from plesio.system.recovery_log import RecoveryLog
from plesio.tables.dealing import share_of
from plesio.tables.file import KeptRows, joined, on_one_clock
from plesio.tables.hot import hottest
from plesio.tensors.checksum import HASH
from plesio.transport.row_slots import Laid, RowSlots, check_room


class RowHolder(Protocol):
    """One that holds some rows. `ask` has a method of its `RowTables` called, and returns what waits for the result."""

    clock: int
    load: RowServer | None

    def asked(self, reader: int, request: RowsRequest) -> None: ...
    def do(self, effect: Any) -> None: ...
    def forget(self, reader: int) -> None: ...
    def begin_anew(self) -> None: ...
    def ask(self, what: str, *args: Any) -> Callable[[], Any]: ...


class RowServers(MemoryCapability):
    """The rows that `servers` hold, of those with places in `slots`, one for each server; `answers`: whoever asked for rows is
    told that they are there by this process."""

    def __init__(self, slots: Sequence[RowSlots], servers: Sequence[RowHolder], answers: bool = True) -> None:
        self.slots, self.specs, self.answers = slots, slots[0].specs, answers
        self._servers = servers
        self.stepped = 0  # the checksum that was taken last

    @classmethod
    def here(cls, slots: Sequence[RowSlots], at_once: bool, log: RecoveryLog | None = None) -> RowServers:
        """All of them in this process. `log`: what another one goes on from when this one dies; there is one server then."""
        if log is not None:
            return cls(slots, [SurvivingRows(log, slots[0], at_once)])
        return cls(slots, [RowTables(one, at_once, server, len(slots)) for server, one in enumerate(slots)])

    @property
    def clock(self) -> int:
        """How many times rows stepped."""
        return self._servers[0].clock

    # As plesio.memory.capability

    @property
    def actions(self) -> Mapping[type, Action]:
        """Rows step before the version of their contribution is made."""
        return dict.fromkeys((Serve, FoldRows, Hold, Fold), lambda _, effect: self.do(effect))

    def joins(self, worker: int) -> None:
        self.forget(worker)

    def begun(self, blocks: Blocks, version: int) -> None:
        if blocks.brought:
            self.begin_with(blocks.brought)
            blocks.brought = {}  # a copy of them all

    def numbers(self) -> dict[str, Any]:
        return {"clock": self.clock}

    def go_on(self, kept: Kept) -> None:
        self.restore(*kept.tables, kept.numbers.get("clock", 0))

    @property
    def shared_bytes(self) -> int:
        return sum(slots.nbytes for slots in self.slots)

    # What is asked and done

    @property
    def reader(self) -> int:
        """The place of the one who only reads."""
        return self.slots[0].readers - 1

    def do(self, effect: Any) -> None:
        """Carry out an effect; of many there is nothing to do for rows."""
        for server in self._servers:
            server.do(effect)

    def asked(self, reader: int, request: RowsRequest) -> None:
        """The keys of what `reader` wants lie in its slots; raises `ConfigurationError` if that cannot be."""
        tables = len(self.specs)
        if len(request.wanted) != tables * len(self._servers):
            raise ConfigurationError(
                f"rows of {len(request.wanted)} tables are wanted, and there are {tables} at {len(self._servers)} servers"
            )
        for spec, (at, count) in zip(self.specs * len(self._servers), request.wanted, strict=True):
            check_room(spec, at, count)
        for index, server in enumerate(self._servers):
            own = request.wanted[index * tables : (index + 1) * tables]
            server.asked(reader, msgspec.structs.replace(request, wanted=own))

    def read(self, request: RowsRequest) -> None:
        """Lay rows for the one who only reads."""
        self.asked(self.reader, request)
        self.do(Serve(self.reader, request.number))

    def nbytes_of(self, request: RowsRequest) -> int:
        """What a request and its answer take."""
        wanted = zip(self.specs * len(self._servers), request.wanted, strict=True)
        return sum(count * (8 + 4 * spec.dim) for spec, (_, count) in wanted)

    def given(self, worker: int, number: int) -> list[ServedRows]:
        """What contribution `number` of `worker` was given; its gradients lie beside it. All servers are in this process."""
        return [one for each in self._all("given", worker, number) for one in each]

    def gives(self, worker: int, number: int, table: int, laid: Laid) -> None:
        """These rows were given to a contribution of another process, which has done what comes of it."""
        self._all("gives", worker, number, table, laid)

    def nbytes_pushed(self, worker: int, number: int) -> int:
        """What the gradients in contribution `number` take, that was served here."""
        return sum(self._all("nbytes_pushed", worker, number))

    def forget(self, reader: int) -> None:
        """Another process sits there now."""
        for server in self._servers:
            server.forget(reader)

    def begin_anew(self) -> None:
        """Nothing waits to be folded."""
        for server in self._servers:
            server.begin_anew()

    def _all(self, what: str, *args: Any) -> list[Any]:
        """What each server answers: all are asked first."""
        return _answered([server.ask(what, *args) for server in self._servers])

    # What others see

    def take_checksum(self) -> int:
        """That of the rows that stepped since the last time."""
        self.stepped = int(sum(self._all("take_checksum"))) % HASH
        return self.stepped

    def checksum(self) -> int:
        """That of all rows."""
        return int(sum(self._all("checksum"))) % HASH

    @property
    def nbytes(self) -> int:
        """What travelled."""
        return sum(one.pulled_bytes + one.pushed_bytes for one in self.summaries(exact=False).values())

    def summaries(self, exact: bool) -> dict[str, RowsSummary]:
        """What became of each table's rows. `exact`: as it is now, and without rows that died and still have memory."""
        each = self._all("summaries", exact)
        return {name: reduce(_added, (one[name] for one in each)) for name in each[0]}

    @property
    def loads(self) -> tuple[RowServer, ...]:
        """What each server did, where they are processes of their own."""
        return tuple(one.load for one in self._servers if one.load is not None)

    def kept(self) -> Mapping[str, KeptRows]:
        """The rows of each table."""
        return joined(self._all("kept"))

    def hand_over(self, since: int = -1) -> tuple[int, ...]:
        """Descriptors of files in memory with the rows that stepped after the clock `since`: each server makes one."""
        return tuple(self._all("hand_over", since))

    # Beginnings and checkpoints

    def write(self, folder: Path, link: int, since: int) -> None:
        """Write the files of a checkpoint, the number `link` of the chain: rows that stepped after the clock `since`."""
        self._all("write", str(folder.resolve()), link, since)

    def restore(self, folder: Path, files: Sequence[str], clock: int) -> None:
        """Begin from a checkpoint of the same tables, whatever number of servers wrote it."""
        self._all("restore", str(folder.resolve()), files, clock)

    def begin_with(self, brought: Mapping[str, KeptRows]) -> None:
        """Begin from the rows of tables that were in no run."""
        rows, clock = on_one_clock(brought)
        waiting = list[Callable[[], Any]]()
        for index, server in enumerate(self._servers):
            own = {name: share_of(one, index, len(self._servers)) for name, one in rows.items()}
            waiting.append(server.ask("begin_from", own, clock))
        _answered(waiting)


def rows_here(blocks: Blocks, log: RecoveryLog | None) -> RowServers | None:
    """Those of a run whose model has tables, all in this process."""
    if not blocks.rows:
        return None
    return RowServers.here(blocks.rows, blocks.strategy.rows.at_once, log if blocks.rows_survive else None)


def _answered(waiting: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each answer. All are taken before an error is raised, or the next question would have those that were left."""
    answers, errors = list[Any](), list[OSError]()
    for answer in waiting:
        try:
            answers.append(answer())
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return answers


def _added(one: RowsSummary, other: RowsSummary) -> RowsSummary:
    both = {name: getattr(one, name) + getattr(other, name) for name in RowsSummary.__struct_fields__}
    return RowsSummary(**both | {"hot": hottest(both["hot"])})
