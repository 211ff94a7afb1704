"""How a worker of another host asks for rows of tables, and waits for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from plesio.errors import ConfigurationError
from plesio.launch.remote.bell import RemoteBell
from plesio.launch.remote.rows import RemoteRows
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.tables.file import KeptRows
from plesio.tables.spec import TableSpec
from plesio.transport.wire import FrameKind
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.place import RowsPlace
from plesio.worker.exchanges.server import SeatLostError


class AskingRows:
    """Of one worker, over its `line`; `ask` waits for the server's next message of a kind. Without tables it does nothing."""

    def __init__(
        self,
        line: RemoteBell,
        tables: Sequence[TableSpec],
        servers: int,
        ask: Callable[[type[RowsServed], str], object],
        used: DataUse,
        now_s: Callable[[], float],
    ) -> None:
        if tables:
            line.rows = RemoteRows(tables, servers)
        self._line, self._ask, self._used, self._now_s = line, ask, used, now_s
        self._brought: tuple[str, ...] = ()  # the tables that have rows of before the run
        self.place = RowsPlace(line.rows.slots, self._fetch, self._send, self._bring) if tables else None
        self.without = " without rows of tables" if tables else ""
        """How a head was restarted that begins anew."""

    def _bring(self, rows: Mapping[str, KeptRows]) -> None:
        self._brought = tuple(rows)

    def refuse_brought(self) -> None:
        """Of the worker with whose model the run begins."""
        if self._brought:
            raise ConfigurationError(
                f"the model's tables have rows ({', '.join(self._brought)}), with which the run would begin, and a worker of "
                "another host cannot hand them over: start a worker on the head's own host first, or go on with resume="
            )

    def _send(self, request: RowsRequest) -> None:
        self._line.say(FrameKind.CHANNEL, request, self._line.rows.sent(request))

    def _fetch(self, request: RowsRequest) -> None:
        """If the seat is lost, so is the step that needs the rows. The loop hears of it when it sends that, and computes until
        then from what lies there."""
        began_s = self._now_s()
        with suppress(SeatLostError):
            if request.number:
                self._await(request)
            else:
                self._read(request)
        self._used.waited_s += self._now_s() - began_s

    def _read(self, request: RowsRequest) -> None:
        """These are part of no step: where the seat is lost, the next one gives them."""
        untold, self._line.untold = self._line.untold, None
        while True:
            try:
                self._await(request)
                break
            except SeatLostError as lost:
                untold = lost.rejoin()
        self._line.untold = untold

    def _await(self, request: RowsRequest) -> None:
        self._send(replace(request, wanted=()) if request.ahead else request)
        self._ask(RowsServed, "rows of tables")
