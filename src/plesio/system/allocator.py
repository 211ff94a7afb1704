"""The C library's allocator in a process that trains."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 1 << 30
_OLD = 1 << 25  # what a glibc before 2.35 takes at most


def keep_freed_memory() -> None:
    """From now on this process keeps memory that it frees, and takes it again.

    Each step frees its gradients and makes new ones. By itself glibc gives blocks above 32 MB back to the system, which then
    clears every page of the next one. What was free until now is given back, and so are blocks above 1 GiB. Without glibc
    nothing changes.

    Source: mallopt(3).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    library.malloc_trim(0)
    if not library.mallopt(_MMAP_THRESHOLD, KEPT):
        library.mallopt(_MMAP_THRESHOLD, _OLD)
    library.mallopt(_TRIM_THRESHOLD, KEPT)
