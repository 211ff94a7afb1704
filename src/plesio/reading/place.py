"""Where a run can be read, and how one gets there."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field

from plesio.protocol.reading import ToReader
from plesio.reading.line import FarLine, Line, NearLine
from plesio.transport.connect import connect, connect_here
from plesio.transport.secure import Credentials, ProofError


@dataclass(frozen=True, slots=True)
class ReadingPlace:
    """`token`: that of readers; `worker_token`: that of workers, for who says what the run's metrics are; `far`: to go over the
    network though the run is on this host; `others`: where it may be read, too, as at a standby that is head by now."""

    host: str
    port: int
    token: str = field(repr=False)
    worker_token: str = field(repr=False)
    credentials: Credentials | None = None
    far: bool = False
    others: tuple[tuple[str, int], ...] = ()

    @property
    def _places(self) -> tuple[tuple[str, int], ...]:
        return ((self.host, self.port), *self.others)

    def __str__(self) -> str:
        return f"the run that is read at {' or '.join(f'{host}:{port}' for host, port in self._places)}"

    def dial(self) -> Line[ToReader]:
        """A line with the process that serves readers. Raises OSError, or ProofError for another token."""
        *others, last = self._places
        for host, port in others:
            with suppress(OSError):
                return self._dial(host, port)
        return self._dial(*last)

    def _dial(self, host: str, port: int) -> Line[ToReader]:
        try:
            near = self._near(host, port)
            if near is None:
                wire = connect(host, port, self.token, self.credentials, bytes(16))
                near = self._near(host, port)  # again: the run may have begun to listen between these two
                if near is None:
                    return FarLine(wire, ToReader)
                wire.close()
            return NearLine(near.detach(), ToReader, str(self))
        except ProofError as error:
            what = "a reader's token is token=, PLESIO_READ_TOKEN, or follows from PLESIO_TOKEN or ~/.plesio/token"
            raise ProofError(f"{error}; {what}") from None

    def _near(self, host: str, port: int) -> socket.socket | None:
        return None if self.far else connect_here(host, port, self.token)
