"""What a training function returns, on its way to `run.returned`: a copy, as cloudpickle makes it, of a size with a limit.

It goes from a process of the run to the one that started it, both on one host. Nothing from a network is unpickled.
"""

from __future__ import annotations

import io

import cloudpickle

from plesio.errors import words_of
from plesio.worker.warn import warn_at_end

BYTES_MAX = 16 * 1024 * 1024
"""Enough for figures, histories and predictions. Weights are in `run.state_dict` anyway."""


class _Bounded(io.BytesIO):
    """Stops a value that is too large before all of it is copied."""

    def write(self, piece: object, /) -> int:
        if self.tell() + memoryview(piece).nbytes > BYTES_MAX:  # type: ignore[arg-type]
            raise ValueError(f"it is larger than {BYTES_MAX >> 20} MiB")
        return super().write(piece)  # type: ignore[arg-type]


def packed(value: object, worker: int) -> bytes:
    """What `worker` returned, as bytes; none for None, or, with a warning, for what cannot travel."""
    if value is None:
        return b""
    file = _Bounded()
    try:
        cloudpickle.dump(value, file)
    except Exception as error:
        warn_at_end(
            f"what worker {worker} returned, a {type(value).__name__}, is not kept in run.returned: {words_of(error)}; "
            "return less, or write it to a file"
        )
        return b""
    return file.getvalue()


def unpacked(value: bytes, worker: int) -> object:
    """The value again; None, with a warning, where its class cannot be found in this process."""
    try:
        return cloudpickle.loads(value) if value else None
    except Exception as error:
        warn_at_end(
            f"what worker {worker} returned cannot be read here and is not kept in run.returned: {words_of(error)}"
        )
        return None
