"""Shared memory that nobody has to clean up.

On Linux a block is an anonymous memory file (memfd): it has no name, is passed to other processes as a file descriptor and
is gone with the last of them, however they end. Elsewhere it is a file in /dev/shm or the temporary folder, unlinked as
soon as it is open. What is available is checked before, because a block is only backed by memory when it is touched, and
running out then is a bus error and not an exception.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import resource
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import torch
from rich.filesize import decimal

from plesio.errors import SharedMemoryError

SHM = Path("/dev/shm")
PAGEMAP = Path("/proc/self/pagemap")
_THERE, _FILES = np.uint64(1 << 63 | 1 << 62), np.uint64(1 << 61)
"""Of a page's entry there: it is in memory or swapped; it is a file's or shared."""


class TablePlace(msgspec.Struct, frozen=True):
    """Where a table in shared memory lies: a file that the process `maker` has open. A module has it as its `place`."""

    what: str
    maker: int
    descriptor: int
    device: int
    inode: int
    nbytes: int


class SharedBlock:
    """`nbytes` of memory that processes share: each maps it by a descriptor `fd` of its own, which this takes over.

    >>> block = SharedBlock.create(4096, "an example")
    >>> twin = SharedBlock(os.dup(block.fd), 4096)
    >>> block.memory[7] = 42; int(twin.memory[7])
    42
    >>> block.close(); twin.close()
    """

    _close = staticmethod(os.close)  # which is no longer in `os` when a script ends that has a block among its globals

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.memory = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)

    @classmethod
    def create(cls, nbytes: int, what: str) -> SharedBlock:
        """A new block for `what`, zero at first; `SharedMemoryError` if there is not that much memory to be had."""
        return cls(anonymous_file(nbytes, what), nbytes)

    @classmethod
    def at(cls, place: TablePlace) -> SharedBlock:
        """A table's memory, which has no name, by its maker's descriptor."""
        with contextlib.suppress(OSError):
            mine = os.open(f"/proc/{place.maker}/fd/{place.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            found = os.fstat(mine)
            if (found.st_dev, found.st_ino) == (place.device, place.inode):
                return cls(mine, place.nbytes)
            os.close(mine)
        raise SharedMemoryError(
            f"{place.what} cannot be reached: process {place.maker}, which made it, must run and keep it, on this host, a Linux."
        )

    def close(self) -> None:
        """Let go of the descriptor; the memory goes when the last tensor over it does."""
        if self.fd >= 0:
            self._close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def tables_at(places: dict[str, TablePlace]) -> dict[str, torch.Tensor]:
    """The numbers of tables, where they lie."""
    return {name: SharedBlock.at(place).memory.view(torch.float32) for name, place in places.items()}


class CopyOnWriteView:
    """A block mapped copy-on-write: what others write is seen, and what this process writes nobody else sees, until
    `renew` drops it. The descriptor stays the caller's.

    >>> block = SharedBlock.create(8192, "an example")
    >>> view = CopyOnWriteView(block.fd, 8192)
    >>> view.memory[7] = 42; int(block.memory[7])
    0
    >>> block.memory[7] = 1; view.renew(4096, 0); int(view.memory[7])
    1
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE)
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pages = os.open(PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
        self._faults = 0

    @staticmethod
    def possible() -> bool:
        """Whether this system can tell what a process wrote: Linux can."""
        return PAGEMAP.exists() and hasattr(mmap, "MADV_DONTNEED")

    def renew(self, nbytes: int, part: int) -> None:
        """Drop what this process wrote into a part of it. Each part has `nbytes`, which are whole pages.

        To write is a page fault: where there was none since last time, there is nothing to look for.
        """
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if faults != self._faults and self._written(nbytes, part * nbytes):
            self._map.madvise(mmap.MADV_DONTNEED, part * nbytes, nbytes)
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def _written(self, nbytes: int, start: int) -> bool:
        """Whether a page there is this process's own, and no longer the file's."""
        first = (self.memory.data_ptr() + start) // mmap.PAGESIZE
        pages = np.frombuffer(os.pread(self._pages, 8 * (nbytes // mmap.PAGESIZE), 8 * first), dtype=np.uint64)
        return bool((((pages & _THERE) != 0) & ((pages & _FILES) == 0)).any())


def anonymous_file(nbytes: int, what: str) -> int:
    """The descriptor of a new file in memory for `what`, `nbytes` zeros at first; it is gone with its last descriptor."""
    check_room(nbytes, what)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("plesio", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="plesio-", dir=_folder())
        os.unlink(path)
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EFBIG:
            raise
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        raise SharedMemoryError(
            f"{what} needs {decimal(nbytes)} of shared memory, which counts as a file, and this process may write files "
            f"of {decimal(most)} at most; raise that limit (ulimit -f)"
        ) from error
    return fd


def _folder() -> str:
    return str(SHM) if SHM.is_dir() else tempfile.gettempdir()


def check_room(nbytes: int, what: str) -> None:
    """Raise `SharedMemoryError` unless `nbytes` more of shared memory can be had."""
    for place, free in room().items():
        if nbytes > free:
            raise SharedMemoryError(
                f"{what} needs {decimal(nbytes)} of shared memory and {place} has {decimal(free)} left; "
                "use fewer workers or a smaller model, or give the host (or the container, by --memory) more"
            )


def room() -> dict[str, int]:
    """Free bytes of each thing that shared memory comes out of."""
    found: dict[str, int] = {}
    if not hasattr(os, "memfd_create"):
        free = os.statvfs(_folder())
        found[_folder()] = free.f_bavail * free.f_frsize
    with contextlib.suppress(OSError, ValueError):
        available = re.search(r"^MemAvailable: *(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if available is not None:
            found["the host's memory"] = int(available[1]) * 1024
    limit = _read_number("/sys/fs/cgroup/memory.max")
    used = _read_number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        found["the container's memory limit"] = max(0, limit - used)
    return found


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None  # no such limit, or "max"
