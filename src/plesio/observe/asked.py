"""What people ask of a run under way: a file each in its folder, which the run looks for and takes away."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

ASKED = re.compile(r"stop|checkpoint|advice|switch-\d{1,2}")
"""A phase to switch to is named by its number."""


def ask(folder: Path, what: str) -> None:
    """Ask for something of `ASKED`; an `OSError` says that the folder cannot be written. It follows no link: the folder may be
    another's."""
    with suppress(FileExistsError):  # it was asked already
        (folder / f"asked-{what}").open("x").close()


def taken(folder: Path) -> list[str]:
    """What was asked since the last time."""
    found = []
    for file in folder.glob("asked-*"):
        what = file.name.removeprefix("asked-")
        with suppress(OSError):
            if ASKED.fullmatch(what):  # another file is somebody's own
                file.unlink()
                found.append(what)
    return found
