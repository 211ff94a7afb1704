"""Address space that costs memory as it is used, so that what lies in it never has to move."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.errors import SharedMemoryError

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
_HUGE = 1 << 21  # bytes of a huge page: the system uses them where memory begins at a multiple
ROWS_MAX = 1 << 31
ROWS_LEAST = 1 << 20
SLOTS = 1024
"""Slots of a segment of the index."""
NUMBERS = 9
"""How many numbers a table has besides (`plesio.tables.index`)."""


class Arrays(NamedTuple):
    """The memory of a table. `docs/decisions/0017-tables.md` describes it."""

    directory: NDArray[np.int32]  # by the low bits of a tag: the segment
    segments: NDArray[np.int32]  # of each: how many bits of the tag all its keys share, and how many keys
    slots: NDArray[np.uint64]  # tag and row number + 1; 0: empty
    marks: NDArray[np.uint64]  # of 64 rows each: seen in this fold; folded since the last checksum
    values: NDArray[np.float32]  # the rows, and the same as
    words: NDArray[np.uint32]
    keys: NDArray[np.int64]
    numbers: NDArray[np.int64]  # see index.py; then the same as they were when the last fold began (undo.py)
    spare: NDArray[np.uint64]  # a segment's slots while it is split
    kept: NDArray[np.uint32]  # rows before they changed (undo.py), where the table survives its process; else empty


def reserve(width: int, kept: int = 0, rows: int = ROWS_MAX) -> Arrays:
    """The memory of a table without rows, for `rows` of `width` words each, or fewer where less address space can be had.

    With room for rows that are `kept`, a table survives its process: it lies in memory that this one shares with those that are
    forked from it.
    """
    segments = 4 * max(rows // SLOTS, 1)  # just after a wave of splits they are 7/16 full
    needed = {
        "directory": 4 * 16 * segments,
        "segments": 8 * segments,
        "slots": 8 * SLOTS * segments,
        "marks": 16 * -(-rows // 64),
        "numbers": 2 * 8 * NUMBERS,
        "rows": 4 * width * rows,
        "kept": 4 * (1 + width) * min(kept, 2 * rows),  # a row may be evicted and taken again in one fold
    }
    sizes = {name: -(-nbytes // _HUGE) * _HUGE for name, nbytes in needed.items()}
    rest = sum(nbytes for name, nbytes in sizes.items() if name not in ("rows", "kept"))
    shared = mmap.MAP_SHARED if kept else mmap.MAP_PRIVATE
    try:
        memory = mmap.mmap(-1, sum(sizes.values()), flags=shared | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError as error:
        if rows > ROWS_LEAST:
            return reserve(width, kept, rows // 2)
        raise SharedMemoryError(
            f"a table needs address space for {rows:,} rows of {4 * width} bytes, which this process cannot have: "
            f"{error}; raise its limit (ulimit -v)"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # rows are born side by side: one page a batch to zero; folds take half as long
        memory.madvise(mmap.MADV_NOHUGEPAGE, 0, rest)
        memory.madvise(mmap.MADV_HUGEPAGE, rest)
    start, parts = 0, dict[str, memoryview]()
    for name, nbytes in sizes.items():
        parts[name] = memoryview(memory)[start : start + needed[name]]
        start += nbytes
    numbers = np.frombuffer(parts["numbers"], np.int64)
    numbers[:4] = 0, 1, 0, width
    return Arrays(
        np.frombuffer(parts["directory"], np.int32),
        np.frombuffer(parts["segments"], np.int32),
        np.frombuffer(parts["slots"], np.uint64),
        np.frombuffer(parts["marks"], np.uint64),
        np.frombuffer(parts["rows"], np.float32),
        np.frombuffer(parts["rows"], np.uint32),
        np.frombuffer(parts["rows"], np.int64),
        numbers,
        np.zeros(SLOTS, np.uint64),
        np.frombuffer(parts["kept"], np.uint32) if kept else np.empty(0, np.uint32),
    )
