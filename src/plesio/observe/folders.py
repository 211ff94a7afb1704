"""Folders for what a run leaves behind; here no torch is imported."""

from __future__ import annotations

import fcntl
from itertools import count
from pathlib import Path
from typing import IO, Any


def new_folder(runs: Path, stem: str) -> Path:
    """A folder under `runs` that was not there, called `stem` or with a number behind it."""
    runs.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        break
    return path


def hold(file: IO[Any]) -> bool:
    """Lock an open file until it is closed, or its process or host dies; False: another process has it.

    A process that is forked without starting another program keeps it, too. `OSError` where the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
