"""Folders for what a run leaves behind; here no torch is imported."""

from __future__ import annotations

from itertools import count
from pathlib import Path


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
