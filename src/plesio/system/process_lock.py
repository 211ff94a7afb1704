"""A lock between processes that goes with whoever holds it: the kernel takes it from a process that ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import threading


class ProcessLock:
    """The lock of the file `fd`: a record lock of POSIX, and a mutex between threads, which that does not keep apart.

    A process lets go of it when it closes any of its descriptors of the file, so it should have one only.

    >>> from plesio.system.memory import anonymous_file
    >>> lock = ProcessLock(anonymous_file(8, "an example"))
    >>> lock.take(), lock.take()
    (True, False)
    >>> lock.release()
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._process, self._mutex = os.getpid(), threading.Lock()

    def take(self) -> bool:
        """Take it, now or not at all."""
        if self._process != os.getpid():  # a fork, without the thread that may have held the mutex
            self._process, self._mutex = os.getpid(), threading.Lock()
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._mutex.release()
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
        self._mutex.release()
