"""Standard output, as the program needs it: it prints on any terminal, and says in one line that it cannot."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OutputLostError(OSError):
    """Standard output takes no more: its disk is full, for example."""


class Output(io.TextIOWrapper):
    """Prints a question mark for a character outside the encoding, and marks its own failures.

    A closed pipe stays a `BrokenPipeError`: its reader has seen enough.
    """

    def write(self, text: str, /) -> int:
        with _told_apart():
            return super().write(text)

    def flush(self) -> None:
        with _told_apart():
            super().flush()


@contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLostError(error.errno, error.strerror) from error


def prepare_output() -> None:
    """Print through `Output` from here on.

    A standard descriptor that the caller closed (`>&-`) leads nowhere: else a file of the run would get its number.
    """
    for descriptor, flags, name in ((0, os.O_RDONLY, "stdin"), (1, os.O_WRONLY, "stdout"), (2, os.O_WRONLY, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, flags)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)
            file = os.fdopen(descriptor, "w" if flags else "r", closefd=False)
            setattr(sys, name, file)
            setattr(sys, f"__{name}__", file)  # keeps its buffer open, as that of any other
    old = sys.stdout
    if isinstance(old, io.TextIOWrapper):
        old.flush()
        sys.stdout = Output(
            old.buffer, old.encoding, "replace", line_buffering=old.line_buffering, write_through=old.write_through
        )


def give_up_output() -> None:
    """Let what is left to print go nowhere: the interpreter would try again at its end, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
