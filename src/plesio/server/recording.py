"""Keeps the journal of a run: what the sequencer was told, and what was done of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Any, Concatenate, ParamSpec

from plesio.core.events import Discard, Effect, Event, Evict, Fold, Ticked
from plesio.memory.port import Memory
from plesio.protocol.journal import Decision, JournalError, JournalWriter

P = ParamSpec("P")
KEPT = {Fold, Discard, Evict}


class Recorder:
    """Writes the journal of one run, if it has one. If that cannot be written any more, `failed` is told, and training goes on
    without it; where nobody is to be told, the error is raised."""

    def __init__(
        self, writer: JournalWriter | None = None, failed: Callable[[JournalError], None] | None = None
    ) -> None:
        self._writer = writer
        self._failed = failed
        self.memory = Memory()
        """What versions are in."""

    def keep(self, write: Callable[Concatenate[JournalWriter, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._writer is None:
            return
        try:
            write(self._writer, *args, **kwargs)
        except JournalError as error:
            self._writer = None
            if self._failed is None:
                raise
            self._failed(error)

    def told(self, event: Event, effects: Sequence[Effect], now_s: float, loss: float = nan) -> None:
        """The sequencer was told `event`, and `effects` are done; `loss` is what the worker that says it last logged."""
        if self._writer is None or (isinstance(event, Ticked) and not effects):
            return
        kept: list[Any] = [effect for effect in effects if type(effect) in KEPT]
        checksums = [self.memory.checksum(effect.version) for effect in kept if type(effect) is Fold]
        decision = Decision(now_s, event, tuple(kept), tuple(checksums), None if isnan(loss) else loss)
        self.keep(JournalWriter.keep, decision)

    def flush(self) -> None:
        self.keep(JournalWriter.flush)

    @property
    def position(self) -> int:
        """The byte up to which the journal reaches; 0 without one."""
        return self._writer.position if self._writer is not None else 0

    def end(self, version: int, now_s: float) -> None:
        if self._writer is not None:
            self.keep(JournalWriter.end, version, self.memory.digest(), now_s)
