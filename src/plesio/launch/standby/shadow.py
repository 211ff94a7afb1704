"""A standby's copy of a head's memory: it does what that does, in the same order, and compares checksums of versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from plesio.core.events import Fold
from plesio.errors import PlesioError
from plesio.memory.blocks import Blocks
from plesio.memory.machine import Machine
from plesio.protocol.payloads import Payloads, cut
from plesio.protocol.replication import Came, Did, Followed, RowsCame
from plesio.server.checkpoints import FOLDER, CheckpointStore, Manifest
from plesio.server.standby_state import take_state
from plesio.strategy import Strategy
from plesio.tensors.checksum import window_checksum
from plesio.transport.row_slots import Laid

decode_manifest = msgspec.msgpack.Decoder(Manifest).decode


class Shadow:
    """Of the head that said `followed`. In `folder` there is a checkpoint; `journal`: the head's so far.

    Attributes:
        manifest: of when the memory changed last, as a checkpoint of it would have it.
        version: the newest that this copy has.
    """

    def __init__(self, followed: Followed, folder: Path, journal: Path) -> None:
        terms, self._folder, self._journal = followed.terms, folder, journal
        strategy = Strategy.from_data(terms.name, terms.strategy)
        blocks = Blocks(strategy, terms.workers, [followed.hello], evaluates=False, seats=terms.seats, holds=False)
        self._machine = machine = Machine(blocks, in_one_process=True)
        self.manifest = take_state(folder, machine, followed.workers, followed.read, followed.optimizers)
        self._payloads = Payloads(blocks.layout, strategy)
        self._coming = Laid.empty(0, 0)  # rows

    @property
    def version(self) -> int:
        return self.manifest.version

    def place(self, came: Came | RowsCame) -> list[memoryview]:
        """Where the tensors, or rows, of a contribution belong."""
        if isinstance(came, Came):
            return cut(self._machine.blocks.slots[came.worker].bytes, self._payloads.spans(came.made))
        self._coming = Laid.empty(came.count, self._machine.blocks.first.tables[came.table].dim)
        return self._coming.stepping

    def came(self, came: Came | RowsCame) -> None:
        """They are there."""
        if isinstance(came, Came):
            self._machine.told(came.worker, came.made)
        elif self._machine.rows is not None:
            self._machine.rows.gives(came.worker, came.number, came.table, self._coming)

    def did(self, did: Did) -> None:
        """Do what the head did.

        Raises:
            PlesioError: the version that comes of it is another.
        """
        rows = self._machine.rows
        for effect in did.effects:
            self._machine.do(effect)
            if rows is not None and isinstance(effect, Fold):
                rows.take_checksum()
        if did.journal:
            with open(self._journal, "ab") as file:
                file.write(did.journal)
        if did.manifest:
            self.manifest = decode_manifest(did.manifest)
            others = did.rows and rows is not None and rows.stepped != did.rows
            if others or window_checksum(self._machine.folded.bytes, did.version) != did.checksum:
                raise PlesioError(f"version {did.version} is not the head's")

    def write(self) -> Path:
        """A checkpoint of the newest version; the folder that a run goes on from."""
        kept = self._machine.kept()
        manifest = self.manifest.with_memory(kept.layout, kept.numbers)
        if manifest.journal:
            manifest = msgspec.structs.replace(manifest, journal=str(self._journal.resolve()))
        rows = self._machine.rows.write if self._machine.rows is not None else None
        place = self._folder / "elected"  # beside what it began from, which is good until this is whole
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        CheckpointStore(place / FOLDER, keep=1).save(manifest, kept.weights, kept.tensors, write_rows=rows)
        return place
