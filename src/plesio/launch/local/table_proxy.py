"""The proxy of a table server of another host: to the server and the readers of this host it is that table server.

What the server says goes over the session in the same order, with the rows that belong to it (`plesio.transport.row_frames`).
Many requests may be on their way. The values that come are received straight into the readers' places.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from safetensors import SafetensorError

from plesio.launch.job import Job
from plesio.launch.local.proxy import Launcher, Proxy
from plesio.observe.totals import RowServer
from plesio.protocol import table_server as messages
from plesio.protocol.coding import ProtocolError, cut
from plesio.tables.dealing import share_of
from plesio.tables.file import from_memory, in_memory
from plesio.tables.links import rows_in, write_rows
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly
from plesio.transport.row_frames import FROM_FAR, TO_FAR, RowDialogue
from plesio.transport.row_slots import RowSlots
from plesio.transport.session import Pulse, Session
from plesio.transport.wire import ConnectionLostError, Frame

AT_LENGTH = ("begin_from", "hand_over")
"""What may take longer than a lease."""


class TableProxy(Proxy[RowDialogue]):
    """Of table server `number`; `line`: its end of the server's line."""

    eager = True
    _begun: messages.Begin
    _slots: RowSlots

    def __init__(self, job: Job, number: int, launcher: Launcher, line: Sequence[int], session: Session) -> None:
        super().__init__(job, f"table server {number}", launcher, session, FROM_FAR, RowDialogue())
        self._head: Channel[messages.ToTableServer] = Channel.attach(line[0], messages.ToTableServer, "the server")
        self._attend(self._head, self._from_head)
        self._bells: list[int] = []
        self._waited_s = 0.0
        self._asked: deque[messages.Ask] = deque()  # as it is asked here

    def run(self) -> None:
        self._tell(messages.Stands({}, RowServer()))
        pulse = Pulse(self._session.beat)  # files may take long
        try:
            super().run()
        finally:
            pulse.close()

    def _tick(self) -> None:
        if self._dialogue.awaited not in AT_LENGTH:  # else the server has a deadline
            super()._tick()

    # From the server

    def _from_head(self, message: Any, descriptors: Sequence[int]) -> None:
        match message:
            case messages.Bells():
                self._bells += descriptors
            case messages.Begin(specs=specs, readers=readers):
                self._begun = message
                self._slots = RowSlots.attach(descriptors[0], specs, readers)
                self._dialogue.begin(self._slots)
                self._say(message)
            case messages.Ask():
                self._ask(message, descriptors)
            case _:
                self._say(message)

    def _tell(self, message: messages.FromTableServer, files: Sequence[int] = ()) -> None:
        """Tell the server, unless it is gone."""
        with suppress(ChannelClosedError):
            self._head.send(message, files)

    def _say(self, message: messages.ToFarServer, files: Sequence[int] = ()) -> None:
        for frame in self._dialogue.frames(TO_FAR, message, files):
            with suppress(ConnectionLostError):  # it is kept, and the next look finds out
                self._session.send(*frame)

    def _ask(self, ask: messages.Ask, descriptors: Sequence[int]) -> None:
        """Pass it on; files of rows and of checkpoints are on this host."""
        what, args, files = ask.what, ask.args, descriptors
        own = partial(share_of, server=self._begun.server, servers=self._begun.servers)
        try:
            if what == "restore":
                folder, names, clock = args
                files = [in_memory(rows_in(Path(folder), names, own))]
                what, args = "begin_from", (clock,)
            elif what == "write":
                what, args = "hand_over", args[2:]
        except (OSError, SafetensorError) as error:
            self._tell(messages.Answered(error=str(error)))
            return
        self._asked.append(ask)
        self._say(messages.Ask(what, args), files)
        close_quietly(*files)

    # From the table server

    def _pass_on(self, frame: Frame, message: Any, noted: Any) -> None:
        match message:
            case messages.ValuesServed():
                lay: messages.Lay = noted
                self._slots.note_served(lay.reader, lay.request)
                os.eventfd_write(self._bells[lay.reader], 1)
                self._waited_s += time.monotonic() - lay.decided_s  # on this host's clock
            case messages.Answered():
                self._answered(message, noted, self._dialogue.take_files())
            case messages.Stands() if self._head.has_room or self._asked:
                self._tell(replace(message, load=replace(message.load, waited_s=self._waited_s)))
            case _:
                super()._pass_on(frame, message, noted)

    def _answered(self, answered: messages.Answered, what: str, files: Sequence[int]) -> None:
        ask = self._asked.popleft()
        try:
            if answered.error:
                raise OSError(cut(answered.error))
            if what == "hand_over":
                rows = from_memory(os.dup(files[0]))
                self._dialogue.are_all(rows)
                if ask.what == "write":
                    write_rows(Path(ask.args[0]), ask.args[1], rows, self._begun.server)
            self._tell(messages.Answered(answered.value), files if ask.what == "hand_over" else ())
        except (OSError, SafetensorError) as error:
            self._tell(messages.Answered(error=str(error)))
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"its answer to {what} is none: {error}") from None
        finally:
            close_quietly(*files)
