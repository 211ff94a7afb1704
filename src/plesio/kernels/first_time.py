"""The first time kernels are wanted on a machine they are compiled: by one process, which says so."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SAY_S = 5.0
"""Kernels that are in Numba's cache are loaded sooner."""
WORDS = "plesio: compiling kernels for this machine; it takes up to a minute, once"
HOW = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def one_compiles() -> Iterator[None]:
    """Load kernels within it: other processes wait meanwhile, and find them in Numba's cache."""
    lock = -1
    saying = threading.Timer(SAY_S, print, [WORDS], {"file": sys.stderr, "flush": True})
    saying.daemon = True
    try:
        with suppress(OSError):  # without a place for the lock, several may compile at once
            lock = os.open(os.path.join(tempfile.gettempdir(), f"plesio-kernels-{os.getuid()}"), HOW, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        saying.start()
        yield
    finally:
        saying.cancel()
        with suppress(OSError):
            os.close(lock)
