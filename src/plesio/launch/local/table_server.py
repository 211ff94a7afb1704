"""A table server: a process that holds the rows of some keys. It does what the server says, in that order, and answers workers
itself.

It reads clocks for figures only. What it raises ends the run, as what the server raises does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from safetensors import SafetensorError

from plesio.core.events import Serve
from plesio.launch.job import Job
from plesio.launch.local.children import keep_to_itself, reported_to
from plesio.memory.row_tables import RowTables
from plesio.observe.totals import RowServer
from plesio.protocol.launcher import Finished
from plesio.protocol.table_server import Answered, Ask, Begin, Bells, Lay, Stands, ToTableServer, Vacated
from plesio.tables import load_kernels
from plesio.tables.file import from_memory
from plesio.transport.channel import Channel, ChannelClosedError, readable
from plesio.transport.row_slots import RowSlots

TICK_S = 0.1
SOON_S = 60.0


class TableServer:
    """The rows that one of several servers holds; `say` tells the server that decides, with descriptors of files."""

    _tables: RowTables  # once there are some

    def __init__(self, say: Callable[[Any, Sequence[int]], None]) -> None:
        self._say = say
        self._bells: list[int] = []
        self._told_s = 0.0
        self._pulls, self._waited_s, self._began_s = 0, 0.0, 0.0
        self._changed = False

    def run(self, head: Channel[ToTableServer]) -> None:
        """Say that this one is here. Do what comes, until the other one is gone."""
        self._say(Stands({}, RowServer()), ())
        while True:
            if readable(head.fileno(), TICK_S):
                self._do(*head.receive(SOON_S))
            if head.has_room:
                self._tell()

    def _tell(self) -> None:
        """Say how it stands, now and then."""
        if self._changed and time.monotonic() > self._told_s + TICK_S:
            self._say(self._stands(exact=False), ())
            self._changed, self._told_s = False, time.monotonic()

    def _stands(self, exact: bool) -> Stands:
        summaries, busy_s = self._tables.summaries(exact), time.process_time() - self._began_s
        rows = sum(one.rows for one in summaries.values())
        return Stands(summaries, RowServer(rows=rows, pulls=self._pulls, busy_s=busy_s, waited_s=self._waited_s))

    def _do(self, message: ToTableServer, descriptors: Sequence[int]) -> None:
        match message:
            case Bells():
                self._bells += descriptors
                return
            case Begin(at_once=at_once, server=server, servers=servers):
                self._tables = RowTables(self._places(message, descriptors), at_once, server, servers)
                self._began_s = time.process_time()
            case Lay(reader, request):
                self._tables.asked(reader, request)
                self._tables.do(Serve(reader, request.number))
                self._pulls += 1
                self._served(message)
            case Vacated(reader):
                self._tables.forget(reader)
            case Ask("summaries"):
                self._say(self._stands(exact=True), ())
                self._say(Answered(), ())
            case Ask(what, args):
                self._answer(what, [*map(from_memory, descriptors), *args])
            case _:
                self._tables.do(message)
        self._changed = True

    def _places(self, begin: Begin, descriptors: Sequence[int]) -> RowSlots:
        return RowSlots.attach(descriptors[0], begin.specs, begin.readers)

    def _served(self, lay: Lay) -> None:
        """The rows lie there: tell who wanted them."""
        self._tables.slots.note_served(lay.reader, lay.request)
        os.eventfd_write(self._bells[lay.reader], 1)
        self._waited_s += time.monotonic() - lay.decided_s

    def _answer(self, what: str, args: Sequence[Any]) -> None:
        """A file cannot be written or read: that ends a checkpoint, and not the run."""
        try:
            value = getattr(self._tables, what)(*args)
        except (OSError, SafetensorError) as error:
            self._say(Answered(error=str(error)), ())
            return
        if what == "hand_over":
            self._say(Answered(), (value,))
            os.close(value)
        else:
            self._say(Answered(value), ())


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of a table server. `descriptors`: engine, server."""
    engine: Channel[object] = Channel.attach(descriptors[0], object, "the engine")
    head: Channel[ToTableServer] = Channel.attach(descriptors[1], ToTableServer, "the server")
    keep_to_itself(descriptors, engine, head)
    with reported_to(engine):
        load_kernels()  # while workers start
        with suppress(ChannelClosedError):  # the server ended first
            TableServer(head.send).run(head)
        engine.send(Finished())
