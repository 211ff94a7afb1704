"""Serves the process of those who only read: one version at a time, when it asks, and the last one unasked.

A version is a buffer that the server pins until the process asks for the next one. Rows of tables that stepped since it last
asked come as files in memory. They are written in the same turn, so that weights and rows are of one version.
"""

from __future__ import annotations

from contextlib import suppress

from plesio.memory.machine import READERS, Machine
from plesio.protocol.reading import NO_ROWS, VersionGiven, VersionRequest
from plesio.server.snapshots import Standing
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly


class Readings:
    """What the process of readers asked for, and what it was given."""

    def __init__(self, readers: Channel[VersionRequest], standing: Standing) -> None:
        self.readers: Channel[VersionRequest] | None = readers
        self._standing = standing
        self._asked: VersionRequest | None = None
        self._since = NO_ROWS
        self._shown = -1  # the version that it was given last,
        self._with_rows = False  # and whether rows came with it

    def hear(self, timeout_s: float) -> bool:
        """Take its question; False if it is gone."""
        if self.readers is not None:
            with suppress(ChannelClosedError):
                self._asked = self.readers.receive(timeout_s)[0]
                return True
        self.readers = None
        return False

    def wanted(self, version: int) -> bool:
        """Whether this version is to be sent now; the question counts as answered then."""
        asked = self._asked
        if asked is None or (version == self._shown and (asked.since == NO_ROWS or self._with_rows)):
            return False
        self._take()
        return True

    def _take(self) -> None:
        if self._asked is not None:
            self._since, self._asked = self._asked.since, None

    def send(self, built: Machine, final: bool = False) -> None:
        """Send the version as it is; the first time with what the model is like and where versions lie."""
        if self.readers is None:
            return
        self._take()
        time_s, version, samples = self._standing()
        rows, blocks, first = built.rows, built.blocks, self._shown < 0
        files = rows.hand_over(self._since) if rows is not None and self._since != NO_ROWS else ()
        given = VersionGiven(
            built.view(READERS),
            time_s,
            version,
            samples,
            final,
            clock=rows.clock if rows is not None else 0,
            model=blocks.model if first else None,
            tables=rows.specs if rows is not None and first else (),
        )
        self._shown, self._with_rows = version, self._since != NO_ROWS
        try:
            self.readers.send(given, (*((blocks.ring_descriptor, blocks.board.descriptor) if first else ()), *files))
        except ChannelClosedError:
            self.readers = None
        finally:
            close_quietly(*files)
