"""Serves the evaluator: one consistent snapshot at a time, when it asks, and the last one unasked.

A snapshot is a version that the server pins, with the rows of tables as they are then. Where workers fold by themselves it is
what they write into meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from plesio.memory.machine import EVALUATOR, Machine
from plesio.memory.row_servers import RowServers
from plesio.protocol.evaluator import Asked, Judged, Snapshot, SnapshotRequest
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.protocol.table_server import Reading
from plesio.transport.channel import Channel, ChannelClosedError, readable

Standing = Callable[[], tuple[float, int, int]]
"""The time in seconds since training began, the version, and the samples so far."""


class Snapshots:
    """What the evaluator asked for, and what it was given; `look` is shown the parameters of each snapshot, `due` says whether
    another one is."""

    def __init__(
        self, evaluator: Channel[Asked] | None, standing: Standing, look: Callable[[], object], due: Callable[[], bool]
    ) -> None:
        self.evaluator = evaluator
        self._standing = standing
        self._look, self._due = look, due
        self._asked = self._ahead = self._shown = False
        self._rows: RowServers | None = None

    def hear(self, timeout_s: float) -> bool:
        """Take its question; False if it is gone."""
        if self.evaluator is not None:  # else seen when it was last answered
            with suppress(ChannelClosedError):
                self._take(self.evaluator, self.evaluator.receive(timeout_s)[0])
                return True
        self.evaluator = None
        self._read(Reading(False))
        return False

    def _take(self, evaluator: Channel[Asked], asked: Asked) -> None:
        match asked:
            case SnapshotRequest():
                self._asked, self._ahead = not self._ahead, False
            case Judged():
                self._read(Reading(False))
            case RowsRequest():
                assert self._rows is not None, "it was given tables"
                self._rows.read(asked)
                if self._rows.answers:
                    evaluator.send(RowsServed())

    def _read(self, reading: Reading) -> None:
        if self._rows is not None:
            self._rows.do(reading)

    def see_out(self, timeout_s: float) -> None:
        """The evaluator judges the last snapshot, and wants rows of tables for it."""
        while self.evaluator is not None and readable(self.evaluator.fileno(), timeout_s):
            self.hear(timeout_s)

    def begin(self, built: Machine) -> None:
        """Show the first version, also to an evaluator that is late to ask: its first question is answered then."""
        self._ahead = not self._asked and built.rows is None
        self._asked = self._asked or self._ahead
        if self.wanted():
            self.send(built, final=False)

    def wanted(self) -> bool:
        """Whether a snapshot is to be sent now; it counts as answered then."""
        if not self._asked or self.evaluator is None or not self._due():
            return False
        self._asked = False
        return True

    def send(self, built: Machine, final: bool) -> None:
        """Send the parameters as they are; the first time with the model and the ring's descriptor."""
        if self.evaluator is None:
            return
        lies = built.view(EVALUATOR, final)
        self._look()
        snapshot = Snapshot(lies, *self._standing(), final)
        descriptors: tuple[int, ...] = ()
        if not self._shown:
            blocks = built.blocks
            self._shown, descriptors = True, (blocks.ring_descriptor,)
            snapshot = msgspec.structs.replace(snapshot, model=blocks.model, structure=blocks.structure)
            if built.rows is not None:
                snapshot = msgspec.structs.replace(snapshot, tables=built.rows.specs, reader=built.rows.reader)
                snapshot = msgspec.structs.replace(snapshot, servers=len(built.rows.slots))
                descriptors += (*(one.fd for one in built.rows.slots), *blocks.bell_of(built.rows.reader))
                self._rows = built.rows
        if not final:  # no row steps after the last one, which the evaluator may be given while it reads for another
            self._read(Reading(True))
        try:
            self.evaluator.send(snapshot, descriptors)
        except ChannelClosedError:
            self.evaluator = None
