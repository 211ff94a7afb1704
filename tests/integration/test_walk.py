"""The way of one contribution through the server stays short enough to be read in one sitting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WALK = Path(__file__).parents[2] / "benchmarks" / "walk.py"
FILES_MAX, CHANGES_MAX = 12, 25


def test_a_contribution_is_answered_within_few_files() -> None:
    done = subprocess.run([sys.executable, str(WALK)], capture_output=True, text=True, timeout=100, check=True)
    first = done.stdout.splitlines()[0]
    files, changes = (int(part.split()[0]) for part in first.split(", ")[-2:])
    assert files <= FILES_MAX, done.stdout
    assert changes <= CHANGES_MAX, done.stdout
