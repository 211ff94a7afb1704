"""The way of one contribution through the server stays short enough to be read in one sitting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).parents[2] / "benchmarks" / "walk.py"


@pytest.mark.parametrize(("strategy", "files_max", "changes_max"), [("async_sgd", 17, 46), ("sync_sgd", 19, 44)])
def test_a_contribution_is_answered_within_few_files(strategy: str, files_max: int, changes_max: int) -> None:
    """With SGD and momentum, as most train: under async_sgd that is with look-ahead."""
    done = subprocess.run(
        [sys.executable, str(WALK), strategy], capture_output=True, text=True, timeout=100, check=True
    )
    first = done.stdout.splitlines()[0]
    files, changes = (int(part.split()[0]) for part in first.split(", ")[-2:])
    assert files <= files_max, done.stdout
    assert changes <= changes_max, done.stdout
