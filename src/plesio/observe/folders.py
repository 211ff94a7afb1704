"""Folders for what a run leaves behind; here no torch is imported."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def new_folder(runs: Path, stem: str) -> Path:
    """A folder under `runs` that was not there, called `stem` or with a number behind it.

    Raises:
        OSError: it cannot be made.
    """
    make_folder(runs)
    for attempt in range(1000):
        path = runs / (stem if attempt == 0 else f"{stem}-{attempt + 1}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise OSError(f"{runs} holds a thousand folders called {stem}")


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there.

    Raises:
        OSError: it cannot be made; of a link to nowhere that is said.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        in_the_way = Path(error.filename)
        if in_the_way.is_symlink() and not in_the_way.exists():
            raise FileNotFoundError(
                errno.ENOENT, f"it is a link to {os.readlink(in_the_way)}, which is not there", str(in_the_way)
            ) from error
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(in_the_way)) from error
