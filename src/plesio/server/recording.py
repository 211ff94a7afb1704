"""Keeps the journal of a run: what the sequencer was told, and what was done of it."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from plesio.core.events import Discard, Effect, Event, Evict, Fold, Ticked
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.server.assembly import Assembly
from plesio.tensors.checksum import weights_hash, window_checksum


class Recorder:
    """Writes the journal of one run, if it has one.

    Args:
        writer: where to; None keeps no journal.
        built: gives the run's memory, once there is some.
        failed: told when the journal cannot be written any more. It is readable up to there, and training goes on without
            it; where nobody is to be told, the error is raised.
    """

    def __init__(
        self,
        writer: JournalWriter | None = None,
        built: Callable[[], Assembly] | None = None,
        failed: Callable[[JournalError], None] | None = None,
    ) -> None:
        self._writer = writer
        self._built = built
        self._failed = failed
        self.loss = nan
        """What the worker that is heard next last logged."""

    def _keep(self, write: Callable[..., None], *what: object) -> None:
        try:
            write(*what)
        except JournalError as error:
            self._writer = None
            if self._failed is None:
                raise
            self._failed(error)

    def _memory(self) -> Assembly:
        assert self._built is not None, "who keeps a journal says of what"
        return self._built()

    def told(self, event: Event, now_s: float) -> None:
        """The sequencer is about to be told this."""
        if self._writer is not None and not isinstance(event, Ticked):
            self._keep(self._writer.event, event, now_s, self.loss)

    def done(self, effect: Effect, now_s: float) -> None:
        """This was done."""
        writer = self._writer
        if writer is None:
            return
        if isinstance(effect, Fold):
            self._keep(writer.fold, effect, window_checksum(self._memory().current.memory, effect.version))
        elif isinstance(effect, Discard):
            self._keep(writer.discard, effect)
        elif isinstance(effect, Evict):
            self._keep(writer.evict, effect, now_s)

    def note(self, text: str, now_s: float, worker: int | None = None) -> None:
        """Something a reader will want to know."""
        if self._writer is not None:
            self._keep(self._writer.note, text, now_s, worker)

    def resumed(self, version: int, now_s: float) -> None:
        """The run goes on from a checkpoint."""
        if self._writer is not None:
            self._keep(self._writer.resumed, version, now_s)

    @property
    def position(self) -> int:
        """The byte up to which the journal reaches; 0 without one."""
        return self._writer.position if self._writer is not None else 0

    def flush(self, durable: bool = False) -> None:
        """Hand on what gathered; `durable`: and wait until the disk has it."""
        if self._writer is not None:
            self._keep(self._writer.flush, durable)

    def close(self) -> None:
        """Let go of the journal; it is readable up to here, also of a run that did not end in order."""
        if self._writer is not None:
            self._keep(self._writer.close)

    def end(self, version: int, now_s: float) -> None:
        """The run ended in order."""
        if self._writer is not None:
            self._keep(self._writer.end, version, weights_hash(self._memory().current.memory), now_s)
