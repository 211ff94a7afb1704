"""What a worker's process prints and logs, for the person at the terminal.

What C code writes does not pass here, and has no prefix.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from typing import Any, TextIO


class _Prefixed:
    """A stream each of whose lines begins with whose it is. Whole lines are written, for others write there, too."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._kept = ""  # the beginning of a line that is not whole yet
        self._begun = False  # a line whose beginning is written

    def write(self, text: str) -> int:
        *lines, self._kept = re.split(r"(?<=[\r\n])", self._kept + text)
        for line in lines:
            self._stream.write(self._marked(line))
            self._begun = False
        return len(text)

    def flush(self) -> None:
        """Write also what is no whole line, as of `print(..., end="", flush=True)`."""
        if self._kept:
            self._stream.write(self._marked(self._kept))
            self._kept, self._begun = "", True
        self._stream.flush()

    def _marked(self, line: str) -> str:
        return line if self._begun else f"{self._prefix}{line}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def speak_as(worker: int, workers: int, log_level: int | None, rank: int = 0, ranks: int = 1) -> None:
    """Begin each line that this process prints with its worker's number and its rank, if there are several; and print what it
    logs from `log_level` on, as the handlers of the process that called `ps.run` are not here."""
    if workers * ranks > 1:
        warnings.filterwarnings("ignore", "This DataLoader will create")  # all workers' are warned of together
        prefix = f"[{named(worker, rank, ranks)}] "
        for name in "stdout", "stderr":
            if getattr(sys, name) is not None:  # the caller may have closed it
                setattr(sys, name, _Prefixed(getattr(sys, name), prefix))
    if log_level is not None and not logging.getLogger().handlers:
        logging.basicConfig(level=log_level)


def named(worker: int, rank: int, ranks: int) -> str:
    """A worker's process, in words.

    >>> named(1, 0, 1), named(1, 0, 2)
    ('worker 1', 'worker 1 rank 0')
    """
    return f"worker {worker} rank {rank}" if ranks > 1 else f"worker {worker}"


def log_level() -> int | None:
    """The level from which this process logs; None if nobody has configured that."""
    root = logging.getLogger()
    return root.level if root.handlers else None
