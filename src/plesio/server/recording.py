"""Keeps the journal of a run: what the sequencer was told, and what was done of it."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import torch

from plesio.core.events import Discard, Event, Evict, Fold, Ticked
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.server.assembly import Assembly
from plesio.tensors.checksum import weights_hash, window_checksum


class Recorder:
    """Writes the journal of one run, if it has one.

    Args:
        writer: where to; None keeps no journal.
        failed: told when the journal cannot be written any more. It is readable up to there, and training goes on without
            it; where nobody is to be told, the error is raised.
    """

    def __init__(
        self, writer: JournalWriter | None = None, failed: Callable[[JournalError], None] | None = None
    ) -> None:
        self._writer = writer
        self._failed = failed
        self.memory: Assembly | None = None
        """What versions are in, once there is some."""

    def _keep(self, write: Callable[..., None], *what: object) -> None:
        """Have the writer `write` it, if there is one."""
        if self._writer is None:
            return
        try:
            write(self._writer, *what)
        except JournalError as error:
            self._writer = None
            if self._failed is None:
                raise
            self._failed(error)

    def weights(self) -> torch.Tensor:
        """The parameters as the last fold left them."""
        assert self.memory is not None, "versions are made of something"
        return self.memory.current.memory

    def told(self, event: Event, now_s: float, loss: float = nan) -> None:
        """The sequencer was told this; `loss` is what the worker that says it last logged."""
        if not isinstance(event, Ticked):
            self._keep(JournalWriter.event, event, now_s, loss)

    def folded(self, fold: Fold, now_s: float) -> None:
        """A version was made; it is current."""
        if self._writer is not None:
            self._keep(JournalWriter.fold, fold, window_checksum(self.weights(), fold.version))

    def discarded(self, discard: Discard, now_s: float) -> None:
        """A contribution does not count."""
        self._keep(JournalWriter.discard, discard)

    def evicted(self, evict: Evict, now_s: float) -> None:
        """A worker was."""
        self._keep(JournalWriter.evict, evict, now_s)

    def note(self, text: str, now_s: float, worker: int | None = None) -> None:
        """Something a reader will want to know."""
        self._keep(JournalWriter.note, text, now_s, worker)

    def resumed(self, version: int, now_s: float) -> None:
        """The run goes on from a checkpoint."""
        self._keep(JournalWriter.resumed, version, now_s)

    @property
    def position(self) -> int:
        """The byte up to which the journal reaches; 0 without one."""
        return self._writer.position if self._writer is not None else 0

    def flush(self, durable: bool = False) -> None:
        """Hand on what gathered; `durable`: and wait until the disk has it."""
        self._keep(JournalWriter.flush, durable)

    def close(self) -> None:
        """Let go of the journal; it is readable up to here, also of a run that did not end in order."""
        self._keep(JournalWriter.close)

    def end(self, version: int, now_s: float) -> None:
        """The run ended in order."""
        if self._writer is not None:
            self._keep(JournalWriter.end, version, weights_hash(self.weights()), now_s)
