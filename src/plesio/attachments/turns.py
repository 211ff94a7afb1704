"""Which folder has what the clients of a contribution are to keep (`plesio.transport.client_states`)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from plesio.attachments.attachment import Attachment, Half, Pushing

Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9_]{1,32}$")]


class ClientTurns(Attachment):
    """What each worker said with the contribution that came last. Whether it counts the sequencer says."""

    name = "turns"
    said = Name

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._came: dict[int, str] = {}

    def told(self, worker: int, value: str) -> None:
        self._came[worker] = value

    def taken(self, worker: int) -> str:
        """What came now; empty if nothing did."""
        return self._came.pop(worker, "")

    def kept(self) -> None:
        """Nothing: what was not folded is done again."""

    def restore(self, kept: None) -> None:
        self._came.clear()


class Turning(Half):
    """A worker's: the folder for the contribution under way, if it has one."""

    heard = None

    def __init__(self) -> None:
        self.coming = ""

    def take(self, pushing: Pushing) -> str | None:
        coming, self.coming = self.coming, ""
        return coming or None

    def lost(self) -> None:
        self.coming = ""
