"""A page of counters that all processes of a run see: for what is asked at every step and must not cost a message.

Each cell has one writer, so nothing is lost; a reader may see a value that is a moment old. On a cell the writer is:
stop, mirror, broken: the server; folds of worker w: worker w.
"""

from __future__ import annotations

from plesio.tensors.arena import PAGE
from plesio.transport.memory import SharedBlock

_STOP, _MIRROR, _BROKEN, _FOLDS = 0, 1, 2, 8


class Board:
    """The counters over a shared block.

    >>> board = Board(SharedBlock.create(PAGE, "the board"), workers=2)
    >>> board.count_fold(1); board.folds
    1
    """

    def __init__(self, block: SharedBlock, workers: int) -> None:
        self._block = block
        self._cells = block.memory.numpy().data.cast("q")  # ten times quicker than numpy for single numbers
        self._folds = self._cells[_FOLDS : _FOLDS + workers]

    @classmethod
    def attach(cls, descriptor: int, workers: int) -> Board:
        """The board behind a descriptor."""
        return cls(SharedBlock.attach(descriptor, PAGE), workers)

    @property
    def descriptor(self) -> int:
        """What another process attaches it by."""
        return self._block.fd

    @property
    def stopped(self) -> bool:
        """Whether the run is to end."""
        return bool(self._cells[_STOP])

    def stop(self) -> None:
        """Let the run end."""
        self._cells[_STOP] = 1

    @property
    def mirror_wanted(self) -> int:
        """How many copies of the parameters have been asked for so far."""
        return int(self._cells[_MIRROR])

    def want_mirror(self) -> int:
        """Ask for a copy of the parameters; its number."""
        self._cells[_MIRROR] += 1
        return int(self._cells[_MIRROR])

    @property
    def broken(self) -> int:
        """The latest generation of the workers' group that is known to be broken."""
        return int(self._cells[_BROKEN])

    def break_group(self, generation: int) -> None:
        """A member said that this generation is broken, or died."""
        self._cells[_BROKEN] = generation

    @property
    def folds(self) -> int:
        """Folds of all workers so far: the version, where there is no server to count it."""
        return sum(self._folds)

    def count_fold(self, worker: int) -> None:
        """Worker `worker` folded once more."""
        self._folds[worker] += 1
