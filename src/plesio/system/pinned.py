"""Page-locked ("pinned") memory: a CUDA device copies to and from it at full speed, and without anybody waiting."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress

import torch
from rich.filesize import decimal

PORTABLE, REGISTERED = 1, 712
"""`cudaHostRegisterPortable`: pinned for every CUDA context of this process. `cudaErrorHostMemoryAlreadyRegistered`."""


class Pinned:
    """Pins pieces of this process's memory until `close`; what is pinned already stays as it is. Pinned pages are in RAM, also
    those that nobody touched before, and are not swapped.

    Attributes:
        trouble: why not all is pinned, in words; empty if it is.
    """

    def __init__(self, pieces: Sequence[torch.Tensor], device: torch.device) -> None:
        self.trouble = ""
        pinned: list[torch.Tensor] = []
        cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):  # else CUDA would begin on its first device, too
            for piece in pieces:
                error = int(cuda.cudaHostRegister(piece.data_ptr(), piece.nbytes, PORTABLE))
                if not error:
                    pinned.append(piece)
                    continue
                with suppress(RuntimeError):  # CUDA reports an error once more, to whoever calls it next
                    torch.zeros(1, device=device)
                if error != REGISTERED:  # `is_pinned` could not tell: it looks at the storage's first byte
                    self.trouble = f"CUDA did not pin {decimal(piece.nbytes)} of shared memory (cudaError {error})"
                    break
        # It holds the pieces: memory that is unmapped while it is registered stays locked.
        self._end = weakref.finalize(self, _unpin, pinned, device)
        self._end.atexit = False  # the process's end unpins, and by then CUDA may be gone

    def close(self) -> None:
        """Unpin what this pinned, once nothing is copied any more."""
        self._end()


def _unpin(pieces: list[torch.Tensor], device: torch.device) -> None:
    if not pieces:
        return
    with suppress(RuntimeError):  # of a device that failed
        torch.cuda.synchronize(device)
    with torch.cuda.device(device):
        for piece in pieces:
            torch.cuda.cudart().cudaHostUnregister(piece.data_ptr())  # type: ignore[no-untyped-call]
