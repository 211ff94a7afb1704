"""Where workers meet for collectives of `torch.distributed` in their own loops."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.protocol.worker import GroupGiven
from plesio.server.lines import Line
from plesio.transport.collective import rendezvous_store


class Meeting:
    """The store by which they find each other, once somebody asks, and who is left of those at `lines`."""

    def __init__(self, lines: Sequence[Line | None]) -> None:
        self._lines = lines
        self._port = 0

    @property
    def has_begun(self) -> bool:
        """Whether anybody asked."""
        return self._port > 0

    def group(self, awaited: bool, stopping: bool) -> GroupGiven:
        """For a worker; `awaited`: others wait for its contribution."""
        if not self._port:
            self._store = rendezvous_store()
            self._port = self._store.port
        lines = [line for line in self._lines if line is not None]
        died = tuple(line.worker for line in lines if line.gone and not line.finished)
        ended = tuple(line.worker for line in lines if line.finished)
        return GroupGiven(self._port, died, ended, awaited, stopping)
