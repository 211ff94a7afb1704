"""Which tests run first: those of the files that commits changed most often, for what breaks often is changed often."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMITS = 1000


def changes() -> Counter[Path]:
    """How many of the last commits changed each test file; none are known where git does not know this folder."""
    command = ["git", "log", f"-{COMMITS}", "--format=", "--name-only", "--relative", "--", "tests", "packages"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return Counter()
    return Counter(ROOT / name for name in listed.stdout.splitlines())


def sort(items: list[pytest.Item]) -> None:
    """The files in that order, dealt to the processes: each begins with a block of the list that is as long as the others'."""
    often = changes()
    files = sorted({item.path for item in items}, key=lambda path: (-often[path], path))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = {path: (turn % processes, turn) for turn, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])
