"""The rows of tables in checkpoints: a chain of files, of which each holds the rows that stepped since the one before.

    version-00000100/   table-0.safetensors                            all rows
    version-00000200/   table-0.safetensors   table-0.1.safetensors    the same file, and the rows that stepped since
    version-00000300/   table-0.safetensors   table-0.1.safetensors   table-0.2.safetensors

Where several servers hold the tables, each writes files of its own: `table-0-2.1.safetensors` is from server 2.

A file that was in the checkpoint before is a hard link, or a copy where the file system has none. So each folder is whole by
itself, whichever of the others are deleted. All tables begin a new chain together: when the later files have grown beyond
half of the first ones, or are `LINKS`, or a file of the checkpoint before is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plesio.tables.links import numbers_in

LINKS = 100
"""Files of a table after its first, at most."""
WORN = 0.5
"""When these have so many times the bytes of the first, the next checkpoint has all rows again."""


class Chain(msgspec.Struct, frozen=True):
    """What a checkpoint that was written holds of tables.

    Attributes:
        folder: where it is.
        checksums: of its files of tables.
        clock: how often rows had stepped (`plesio.memory.row_tables`).
    """

    folder: Path = Path()
    checksums: Mapping[str, str] = {}
    clock: int = -1

    @property
    def links(self) -> int:
        """How many files each table has after its first; -1: not even that."""
        return max((numbers_in(name)[1] for name in self.checksums), default=-1)

    @property
    def since(self) -> int:
        """Which rows the next checkpoint needs: those that stepped after this clock; -1: all."""
        first, later = 0, 0  # bytes
        try:
            for name in self.checksums:
                nbytes = (self.folder / name).stat().st_size
                first, later = (first, later + nbytes) if numbers_in(name)[1] else (first + nbytes, later)
        except FileNotFoundError:
            return -1
        return -1 if self.links in (-1, LINKS) or later > WORN * first else self.clock

    def link_into(self, folder: Path) -> int:
        """Go on in another folder; the number of the files that are to follow there."""
        for name in self.checksums:
            _link(self.folder / name, folder / name)
        return self.links + 1


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links, or too many of this file
        shutil.copyfile(old, new)
