"""A page of counters that all processes of a run see: for what is read at every step and must not cost a message.

Each cell has one writer, so nothing is lost; a reader may see a value that is a moment old. The server writes stop and mirror.
Worker w writes how many steps it folded, and how much data they used: this outlives w.

    folding(w, n, data used by steps 1 to n)     before step n goes into anybody's parameters
    folded(w, n)                                 after it

A worker can die between any two of its writes. So the data of the last two steps is kept: that of step n-1 stays valid until
step n is known to be folded.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

from plesio.system.memory import SharedBlock
from plesio.tensors.arena import PAGE

_FOLDS = 8
"""The first cell of the workers' folds."""
_LINE = 5
"""Cells of a worker besides its folds: the step it folds, then (batches, samples) of its last even and last odd step."""


class _Cell:
    """One of the server's numbers, as an attribute of the board."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, board: Board, kind: type[Board]) -> int:
        return board._cells[self._place]

    def __set__(self, board: Board, value: int) -> None:
        board._cells[self._place] = value


class Board:
    """The counters over a shared block.

    Attributes:
        stopped: 1 once the run is to end.
        version: where somebody reads the run, its newest one.
        mirror_wanted: the number of the copy of the parameters that is asked for, counted from 1; 0: none is.

    >>> board = Board(SharedBlock.create(PAGE, "the board"), workers=2)
    >>> board.folding(1, 1, batches=2, samples=64); board.folded(1, 1); board.folds
    1
    >>> board.folding(1, 2, batches=3, samples=96)
    >>> board.folds_of(1), board.data_of(1, 1), board.folding_of(1), board.data_of(1, 2)
    (1, (2, 64), 2, (3, 96))
    """

    stopped = _Cell(0)
    mirror_wanted = _Cell(1)
    version = _Cell(2)

    def __init__(self, block: SharedBlock, workers: int) -> None:
        self._block = block
        self._cells = block.memory.numpy().data.cast("q")  # ten times quicker than numpy for single numbers
        self._folds = self._cells[_FOLDS : _FOLDS + workers]
        self._lines = self._cells[_FOLDS + workers : _FOLDS + workers + workers * _LINE]

    @staticmethod
    def watched(descriptor: int) -> Callable[[], int]:
        """What gives the newest version, for one that may only read; takes the descriptor over."""
        cells = memoryview(mmap.mmap(descriptor, PAGE, prot=mmap.PROT_READ)).cast("q")
        os.close(descriptor)
        return lambda: cells[2]

    def read_only(self) -> int:
        """A descriptor of it by which nobody can write."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    @classmethod
    def attach(cls, descriptor: int, workers: int) -> Board:
        return cls(SharedBlock(descriptor, PAGE), workers)

    @property
    def descriptor(self) -> int:
        return self._block.fd

    @property
    def folds(self) -> int:
        """Folds of all workers so far: the version, where there is no server to count it."""
        return sum(self._folds)

    def folding(self, worker: int, number: int, batches: int, samples: int) -> None:
        """`worker` is about to fold its step `number`; its steps up to that one used so many batches and samples."""
        lines, line = self._lines, worker * _LINE
        row = line + 1 + 2 * (number & 1)
        lines[row] = batches
        lines[row + 1] = samples
        lines[line] = number  # last: whoever reads the number finds its data

    def folded(self, worker: int, number: int) -> None:
        self._folds[worker] = number

    def folding_of(self, worker: int) -> int:
        return self._lines[worker * _LINE]

    def folds_of(self, worker: int) -> int:
        return self._folds[worker]

    def data_of(self, worker: int, number: int) -> tuple[int, int]:
        """Batches and samples that `worker`'s steps up to `number` used: its last step, or the one before."""
        row = worker * _LINE + 1 + 2 * (number & 1)
        return self._lines[row], self._lines[row + 1]
