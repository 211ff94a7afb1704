"""The server's lines to the processes that hold the rows of tables."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from plesio.core.events import Fold, FoldRows, Hold, Serve
from plesio.launch.local.handlers import Handlers
from plesio.memory.blocks import Blocks
from plesio.memory.row_servers import RowServers
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol.rows import RowsRequest
from plesio.protocol.table_server import Answered, Ask, Begin, Bells, FromTableServer, Lay, Reading, Stands, Vacated
from plesio.tables.file import in_memory
from plesio.transport.channel import DESCRIPTORS_MAX, Channel, ChannelClosedError, readable
from plesio.transport.row_slots import RowSlots


class TableLink:
    """Stands for a server in another process; whoever waits for its answer does so for `timeout_s` at most."""

    def __init__(self, channel: Channel[FromTableServer], timeout_s: float) -> None:
        self.clock = 0
        self.here = False
        """Whether it has come."""
        self._channel, self._timeout_s = channel, timeout_s
        self._asked: dict[tuple[int, int], RowsRequest] = {}  # by reader and contribution
        self._steps: tuple[type, ...] = ()
        self._at_once = False
        self._summaries: dict[str, RowsSummary] = {}
        self.load: RowServer | None = RowServer()

    def begin(self, slots: RowSlots, at_once: bool, server: int, servers: int, bells: Sequence[int]) -> None:
        """There are tables, and readers with bells."""
        self._steps = (FoldRows,) if at_once else (FoldRows, Fold)
        self._at_once = at_once
        self._summaries = {spec.name: RowsSummary(rows=0) for spec in slots.specs}
        for begin in range(0, len(bells), DESCRIPTORS_MAX):
            self._send(Bells(), bells[begin : begin + DESCRIPTORS_MAX])
        self._send(Begin(slots.specs, slots.readers, at_once, server, servers), (slots.fd,))

    @property
    def name(self) -> str:
        return self._channel.peer

    def listen(self, handlers: Handlers, came: Callable[[], None]) -> None:
        """Take what it says unasked; `came`: it is here. If it is gone, whoever started it says so, and ends the run."""
        descriptor = self._channel.fileno()

        def hear() -> None:
            try:
                if readable(descriptor, 0.0):  # it may have been read with an answer
                    self._take(*self._channel.receive(self._timeout_s))
                    if not self.here:
                        self.here = True
                        came()
            except ChannelClosedError:
                handlers.remove(descriptor)

        handlers.add(descriptor, hear)

    def _take(self, message: FromTableServer, descriptors: Sequence[int]) -> tuple[Answered, Sequence[int]] | None:
        if isinstance(message, Stands):
            self._summaries, self.load = message.summaries, message.load
            return None
        return message, descriptors

    def _send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        with suppress(ChannelClosedError):  # as above
            self._channel.send(message, descriptors)

    # As plesio.memory.row_servers.Server

    def asked(self, reader: int, request: RowsRequest) -> None:
        self._asked[reader, request.number] = request

    def do(self, effect: Any) -> None:
        kind: type = type(effect)
        if kind is Serve:
            self._send(Lay(effect.worker, self._asked.pop((effect.worker, effect.number)), time.monotonic()))
        elif kind in self._steps:
            self.clock += 1
            self._send(effect)
        elif kind is Reading or (kind is Hold and not self._at_once):
            self._send(effect)

    def forget(self, reader: int) -> None:
        self._asked = {who: one for who, one in self._asked.items() if who[0] != reader}
        self._send(Vacated(reader))

    def begin_anew(self) -> None:
        self.ask("begin_anew")()

    def ask(self, what: str, *args: Any) -> Callable[[], Any]:
        """Raises, when the answer is waited for, `OSError` for what the system says there, and `ChannelClosedError`."""
        if what == "summaries" and not args[0]:
            return lambda: self._summaries
        if what == "summaries":
            self._send(Ask(what, args))
            return lambda: self._answer() or self._summaries  # which came before
        if what == "begin_from":
            file = in_memory(args[0])
            self._send(Ask(what, args[1:]), (file,))
            os.close(file)
        else:
            self._send(Ask(what, args))
        if what in ("restore", "begin_from"):
            self.clock = args[-1]
        return self._answer

    def _answer(self) -> Any:
        answered = None
        while answered is None:
            answered = self._take(*self._channel.receive(self._timeout_s, "an answer"))
        message, descriptors = answered
        if message.error:
            raise OSError(message.error)
        return descriptors[0] if descriptors else message.value


class TableLinks:
    """Those of a run: none, where the server holds the rows itself."""

    def __init__(self, channels: Sequence[Channel[FromTableServer]], readers: int, timeout_s: float) -> None:
        self.links = [TableLink(channel, timeout_s) for channel in channels]
        self._bells = tuple(os.eventfd(0) for _ in range(readers) if channels)

    @property
    def servers(self) -> int:
        """How many hold rows."""
        return len(self.links) or 1

    def listen(self, handlers: Handlers, came: Callable[[], None]) -> None:
        for link in self.links:
            link.listen(handlers, came)

    def lacking(self) -> str:
        """Those that have not come, for which training waits."""
        late = [link.name for link in self.links if not link.here]
        return f"{', '.join(late)} did not come" if late else ""

    def welcome(self, blocks: Blocks) -> Blocks:
        """Whoever is welcomed has a bell."""
        blocks.bells = self._bells
        return blocks

    def rows(self, blocks: Blocks) -> tuple[RowServers, ...]:
        """Training begins: the rows, if there are any that the servers hold, and not this process."""
        if not (self.links and blocks.rows):
            return ()
        for server, (slots, link) in enumerate(zip(blocks.rows, self.links, strict=True)):
            link.begin(slots, blocks.strategy.rows.at_once, server, self.servers, self._bells)
        return (RowServers(blocks.rows, self.links, answers=False),)
