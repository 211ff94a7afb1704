"""A deputy for a table server of another host: to the server and the readers of this host it is that table server.

What the server says goes over the session in the same order, with the rows that belong to it (`plesio.transport.row_frames`).
Many requests may be on their way. The values that come are received straight into the readers' places.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, convert
from msgspec.structs import replace
from safetensors import SafetensorError

from plesio.launch.job import Job
from plesio.launch.local.stand_in import StandIn
from plesio.observe.totals import RowServer
from plesio.protocol import remote
from plesio.protocol import table_server as messages
from plesio.protocol.coding import ProtocolError, cut, decoder_of
from plesio.protocol.launcher import Failed
from plesio.tables.dealing import share_of
from plesio.tables.file import from_memory, in_memory
from plesio.tables.links import rows_in, write_rows
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly
from plesio.transport.limits import LEASE_S
from plesio.transport.row_frames import RowFrames
from plesio.transport.row_slots import RowSlots
from plesio.transport.session import Pulse, Session
from plesio.transport.wire import ConnectionLostError, Frame, Kind

decode: Callable[[bytes], messages.FromFarServer] = decoder_of(messages.FromFarServer)
decode_failed: Callable[[bytes], Failed] = decoder_of(Failed)
AT_LENGTH = ("begin_from", "hand_over")
"""What may take longer than a lease."""


class TableDeputy(StandIn):
    """Stands in for table server `number`; `line`: its end of the server's line."""

    eager = True
    _begun: messages.Begin
    _slots: RowSlots

    def __init__(
        self, job: Job, number: int, launcher: Channel[remote.ToDeputy], line: Sequence[int], session: Session
    ) -> None:
        super().__init__(job, f"table server {number}", launcher, session)
        self._head: Channel[messages.ToTableServer] = Channel.attach(line[0], messages.ToTableServer, "the server")
        self._listen(self._head.fileno(), self._from_head)
        self._frames = RowFrames()
        self._bells: list[int] = []
        self._names: set[str] = set()  # of tables
        self._waited_s = 0.0
        self._asked: deque[tuple[str, messages.Ask]] = deque()  # as it is asked there, and here

    def run(self) -> None:
        self._tell(messages.Stands({}, RowServer()))
        pulse = Pulse(self._session.beat)  # files may take long
        try:
            super().run()
        finally:
            pulse.close()

    def _tick(self) -> None:
        if not self._asked or self._asked[0][0] not in AT_LENGTH:  # else the server has a deadline
            super()._tick()

    # From the server

    def _from_head(self) -> None:
        try:
            message, descriptors = self._head.receive(LEASE_S)
        except ChannelClosedError:  # the launcher says why
            self._poller.unregister(self._head.fileno())
            self._hears.clear()
            return
        match message:
            case messages.Bells():
                self._bells += descriptors
            case messages.Begin(specs=specs, readers=readers):
                self._begun, self._names = message, {spec.name for spec in specs}
                self._slots = RowSlots.attach(descriptors[0], specs, readers)
                self._frames.begin(self._slots)
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
        for body, payload in self._frames.frames(message, files):
            with suppress(ConnectionLostError):  # it is kept, and the next look finds out
                self._session.send(Kind.CHANNEL, body, payload)

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
        self._asked.append((what, ask))
        self._say(messages.Ask(what, args), files)
        close_quietly(*files)

    # From the table server

    def _from_far(self) -> bool:
        frame = self._session.receive(0.0)
        if frame is None:
            return False
        if frame.kind is not Kind.CHANNEL:
            self._last(frame)
            return not self._parted
        message = decode(frame.body)
        if isinstance(message, messages.Answered | messages.Piece) and not self._asked:
            raise ProtocolError("it answered what nobody asked")
        into = self._frames.place(message, frame.payload_bytes)
        if frame.payload_bytes:
            self._session.read_payload(into)
        lay = self._frames.note(message)
        if lay is not None:
            self._slots.note_served(lay.reader, lay.request)
            os.eventfd_write(self._bells[lay.reader], 1)
            self._waited_s += time.monotonic() - lay.decided_s  # on this host's clock
        elif isinstance(message, messages.Answered):
            self._answered(message, self._frames.take_files())
        elif isinstance(message, messages.Stands):
            self._check(message.summaries)
            if self._head.has_room or self._asked:
                self._tell(replace(message, load=replace(message.load, waited_s=self._waited_s)))
        return True

    def _last(self, frame: Frame) -> None:
        """It failed, or parts after that."""
        if frame.kind is Kind.LAUNCHER:
            self._launcher.send(decode_failed(frame.body))
        self._parted = frame.kind is Kind.SESSION

    def _answered(self, answered: messages.Answered, files: Sequence[int]) -> None:
        what, ask = self._asked.popleft()
        value: Any = None
        try:
            if answered.error:
                raise OSError(cut(answered.error))
            if what == "hand_over":
                rows = from_memory(os.dup(files[0]))
                self._check(rows)
                if ask.what == "write":
                    write_rows(Path(ask.args[0]), ask.args[1], rows, self._begun.server)
            else:
                value = convert(answered.value, messages.RETURNS[what])
            self._tell(messages.Answered(value), files if ask.what == "hand_over" else ())
        except (OSError, SafetensorError) as error:
            self._tell(messages.Answered(error=str(error)))
        except (MsgspecError, ValueError, IndexError) as error:
            raise ProtocolError(f"its answer to {what} is none: {error}") from None
        finally:
            close_quietly(*files)

    def _check(self, of_tables: Mapping[str, object]) -> None:
        if of_tables.keys() != self._names:
            raise ProtocolError(f"it spoke of the tables {cut(sorted(of_tables))}; there are {sorted(self._names)}")
