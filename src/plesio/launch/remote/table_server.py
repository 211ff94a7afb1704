"""`ps.join_server`: a process on another host holds rows of a run's tables."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from plesio.entry import entry
from plesio.errors import ConfigurationError, ServerLostError, is_own, traceback_of, words_of
from plesio.launch.local.table_server import TICK_S, TableServer
from plesio.launch.remote.addresses import Addresses
from plesio.launch.remote.find import LOOPBACK, addresses_in, token_of
from plesio.launch.remote.join import REJOIN_S
from plesio.launch.remote.link import Reseated, RunOver, WorkerLink, persist
from plesio.protocol import remote
from plesio.protocol import table_server as messages
from plesio.protocol.coding import encode
from plesio.protocol.launcher import Failed
from plesio.tables import load_kernels
from plesio.transport import secure
from plesio.transport.connect import connect
from plesio.transport.routes import Spans
from plesio.transport.row_frames import FROM_FAR, TO_FAR, RowDialogue
from plesio.transport.row_slots import RowSlots
from plesio.transport.wire import Frame, FrameKind, Wire

log = logging.getLogger("plesio")


class FarTableServer(TableServer):
    """A table server whose proxy is at the other end of `link`. Its places for rows are its own."""

    _came: Any  # with the last frame

    def __init__(self, link: WorkerLink) -> None:
        super().__init__(self._send)
        self._link = link
        self._dialogue = RowDialogue()

    def serve(self) -> None:
        """Do what comes, until `RunOver` or `Reseated`."""
        while True:
            if self._link.receive(TICK_S, self._place) is not None:
                TO_FAR.note(self._dialogue, self._came)
                if not isinstance(self._came, messages.Piece):  # of the file that the next message needs
                    self._do(self._came, self._dialogue.take_files())
            self._tell()

    def _place(self, frame: Frame) -> Spans:
        self._came = TO_FAR.decoded(frame)
        return TO_FAR.into(self._dialogue, self._came, frame.payload_bytes)

    def _send(self, message: messages.FromFarServer, files: Sequence[int] = ()) -> None:
        for frame in self._dialogue.frames(FROM_FAR, message, files):
            self._link.send(*frame)

    def _places(self, begin: messages.Begin, descriptors: Sequence[int]) -> RowSlots:
        slots = RowSlots.create(begin.specs, begin.readers)
        self._dialogue.begin(slots)
        return slots

    def _served(self, lay: messages.Lay) -> None:
        self._send(messages.ValuesServed())


@entry("argument of ps.join_server", ConfigurationError)
def join_server(
    address: str | None = None,
    *,
    token: str | None = None,
    certs: str | Path | None = None,
    insecure: bool = False,
    rejoin_s: float = REJOIN_S,
) -> None:
    """Hold rows of a run's tables, on another host than the run's head. Returns when the run is over.

    The head waits for it: `plesio serve --servers 3 --servers-join 2`. `plesio join HOST:PORT --server` is the same on the
    command line. What happens is logged ("plesio", INFO).

    Args:
        address, token, certs, insecure: as for `ps.join`; without an address PLESIO_JOIN has it.
        rejoin_s: how long to try again when the head cannot be reached: one that is started again may need this server.

    Raises:
        ConfigurationError: the run needs no table server, or no more.
        ServerLostError: the head cannot be reached for `rejoin_s`.

    >>> try:
    ...     ps.join_server("node1", token="a token of some length")
    ... except ps.ConfigurationError as error:
    ...     print(error)
    address='node1': HOST:PORT was wanted, such as 10.0.0.1:7070
    """
    given = address or os.environ.get("PLESIO_JOIN", "")
    addresses = Addresses(addresses_in(given, "address="))
    credentials, secret = (
        secure.credentials(certs or os.environ.get("PLESIO_CERTS"), insecure, LOOPBACK),
        token_of(token),
    )
    who, version = f"{socket.gethostname()}:{os.getpid()}", importlib.metadata.version("plesio")
    load_kernels()  # before the run waits for it

    def dial(ticket: bytes) -> Wire:
        return addresses.at_one(
            lambda host, port, timeout_s: connect(host, port, secret, credentials, ticket, timeout_s)
        )

    def enter() -> WorkerLink:
        knock = remote.Knock(who, version, holds_rows=True)
        return WorkerLink(dial, knock, rejoin_s)

    link = persist(enter, lambda: rejoin_s, f"the head at {addresses}")
    try:
        while True:
            log.info("table server %d of the run at %s:%d", link.seated.worker, *addresses.now)
            with suppress(Reseated):  # the head is another
                FarTableServer(link).serve()
    except RunOver:
        log.info("the run is over")
    except ServerLostError:
        raise
    except Exception as error:
        link.hasten()
        link.part(
            FrameKind.LAUNCHER,
            encode(Failed(type(error).__name__, words_of(error), traceback_of(error), is_own(error))),
        )
        raise
    finally:
        link.close()
