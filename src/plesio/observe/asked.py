"""What people ask of a run under way: a file each in its folder, which the run looks for and takes away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ASKED = ("stop", "checkpoint", "advice")


def ask(folder: Path, what: str) -> None:
    """Ask for one of `ASKED`; an `OSError` says that the folder cannot be written."""
    (folder / f"asked-{what}").touch()


def taken(folder: Path) -> list[str]:
    """What was asked since the last time."""
    found = []
    for what in ASKED:
        with suppress(OSError):
            (folder / f"asked-{what}").unlink()
            found.append(what)
    return found
