"""What one reader of a run is given, over its line: a thread each, in the process that serves them."""

from __future__ import annotations

import hmac
import importlib.metadata
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from plesio.errors import ConfigurationError, PlesioError
from plesio.observe.standing import ReaderNow
from plesio.protocol import reading
from plesio.protocol.coding import ProtocolError, cut
from plesio.reading.difference import Differences
from plesio.reading.line import FarLine, Line, proof_of
from plesio.reading.shelf import Lent, Shelf
from plesio.tensors.arena import Arena, Layout
from plesio.transport.board import Board
from plesio.transport.channel import close_quietly

FRESH_AGE_S = 0.1
"""A copy of weights is as good as new for so long: many readers would have the server make one for each of them."""
FRESH_S = 1.0
"""How long to wait for a copy of the newest version, before an older one is lent."""
FOLLOWS_S = 5.0
"""How long ago a reader may have asked that is waited for at the end."""
IDLE_S = 60.0
"""How long a reader may say nothing. Its line is closed then; it comes back by itself when it wants something."""
METRICS_MAX = 100


class Lender(Protocol):
    """The process that serves all readers, as one of its threads sees it.

    Attributes:
        newest: the run's newest version.
        worker_token: that of those who may say what the run's metrics are.
    """

    shelf: Shelf
    board: Board
    layout: Layout

    @property
    def newest(self) -> int: ...
    @property
    def worker_token(self) -> str: ...
    def name(self, known: Known, name: str) -> None: ...
    def begun(self, line: Line[reading.FromReader]) -> reading.Opened: ...
    def evaluated(self, measured: reading.Measured) -> None: ...


@dataclass(slots=True)
class Known:
    """What is told of a reader."""

    name: str
    version: int = -1
    heard_s: float = 0.0
    nbytes: int = 0
    told_end: bool = False
    judged: int | None = None

    def now(self, now_s: float, newest: int) -> ReaderNow:
        behind = newest - self.version if self.version >= 0 else 0
        return ReaderNow(self.name, self.version, behind, now_s - self.heard_s, self.nbytes, self.judged)

    @property
    def follows(self) -> bool:
        """Whether it asked just now, and was not told that there is no other version."""
        return not self.told_end and time.monotonic() - self.heard_s < FOLLOWS_S


class Service:
    """What one reader is given, over its line."""

    def __init__(self, readers: Lender, line: Line[reading.FromReader], known: Known) -> None:
        self._readers, self._line, self._known = readers, line, known
        self._nonce = secrets.token_bytes(32)
        self._differences: Differences | None = None
        self._does: dict[type, Callable[[Any], None]] = {reading.Open: self._open}

    def run(self) -> None:
        """Until it hangs up, or says nothing for too long."""
        while (message := self._line.hear(IDLE_S)) is not None or self._known.judged is not None:
            if message is None:  # an evaluation takes as long as it takes
                continue
            self._known.heard_s = time.monotonic()
            if type(message) not in self._does:
                raise ProtocolError(f"{type(message).__name__} came before Open")
            try:
                self._does[type(message)](message)
            except PlesioError as error:
                self._line.say(reading.Refused(type(error).__name__, str(error)))
            self._known.nbytes = self._line.said_bytes

    def _open(self, asked: reading.Open) -> None:
        ours = importlib.metadata.version("plesio")
        if (asked.plesio, asked.protocol) != (ours, reading.PROTOCOL):
            raise ConfigurationError(
                f"the reader has plesio {cut(asked.plesio)} (protocol {asked.protocol}), the run {ours} "
                f"({reading.PROTOCOL}): install the same on both sides"
            )
        self._readers.name(self._known, asked.name or self._known.name)
        opened, word = self._readers.begun(self._line), self._readers.board.read_only()
        try:
            self._line.say(replace(opened, nonce=self._nonce), word)
        finally:
            close_quietly(word)
        self._does |= {
            reading.Want: self._want,
            reading.WantRows: self._want_rows,
            reading.Measured: self._measured,
        }

    def _want(self, want: reading.Want) -> None:
        shelf = self._readers.shelf
        than, within_s = want.newer_than, min(max(0.0, want.within_s), reading.WITHIN_MAX_S)  # 0 in place of a NaN
        self._freshen(than, FRESH_AGE_S)
        lent, rows = shelf.newer(than, within_s, want.tables)
        if lent is None:
            final = shelf.final  # first: then the newest version is the last one
            self._line.say(reading.Nothing(self._readers.newest, final))
            self._known.told_end = final
            return
        self._known.version = lent.told.version
        self._lend(want, lent)
        for one in rows:
            self._line.say(one)
        self._known.told_end = lent.told.final

    def _freshen(self, than: int, age_s: float = 0.0) -> None:
        """The copy that there is may be an old one. One of that age will do."""
        shelf, newest = self._readers.shelf, self._readers.newest
        if newest > than and time.monotonic() - shelf.put_s > age_s:
            shelf.newer(newest - 1, FRESH_S, {})

    def _lend(self, want: reading.Want, lent: Lent) -> None:
        given = self._given(lent)
        if isinstance(self._line, FarLine) and want.codec and not lent.told.final:  # the last one is exact
            true = Arena(self._readers.layout, lent.weights.memory)
            if self._differences is None or not self._differences.by(want):
                self._differences = Differences(self._readers.layout, want)
            if (payload := self._differences.to(true, lent.told.version, want.held)) is not None:
                self._line.send(replace(given, packed=True, checksum=self._differences.checksum), payload)
                return
        self._line.lend(given, lent.weights)

    def _given(self, lent: Lent) -> reading.Given:
        told = lent.told
        newest = max(self._readers.newest, told.version)
        checksum = lent.weights.checksum if isinstance(self._line, FarLine) else 0
        return reading.Given(told.version, newest, told.time_s, told.samples, told.final, checksum)

    def _want_rows(self, want: reading.WantRows) -> None:
        """In pieces, each of which fits into a message."""
        shelf = self._readers.shelf
        if want.keys is not None and (len(want.keys) % 8 or len(want.keys) > 8 * reading.KEYS_MAX):
            raise ConfigurationError(f"{len(want.keys)} bytes of keys: 8 each are wanted, {reading.KEYS_MAX:,} at most")
        keys = np.frombuffer(want.keys, np.int64) if want.keys is not None else None
        self._freshen(-1)
        for one in shelf.some_rows(want.table, keys, want.since):
            self._line.say(one)
            self._known.version = one.version

    def _measured(self, measured: reading.Measured) -> None:
        if not hmac.compare_digest(measured.proof, proof_of(self._readers.worker_token, self._nonce)):
            raise ConfigurationError(
                "whoever says what a run's metrics are has to know the token of its workers: set PLESIO_TOKEN"
            )
        if len(measured.metrics) > METRICS_MAX:
            raise ConfigurationError(f"{len(measured.metrics)} metrics: at most {METRICS_MAX} are taken")
        if measured.metrics or self._known.judged is None:
            self._known.judged = measured.version if measured.metrics else -1
        self._readers.evaluated(replace(measured, metrics=cut(measured.metrics)))
        self._line.say(reading.Noted())
