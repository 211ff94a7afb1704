"""The way of one contribution stays short enough to be read in one sitting: the worker's step, and the way through the server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.programs import PYTHON

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BOTH = """
import sys, walk
if __name__ == "__main__":
    for sys.argv[1:] in (["async_sgd"], ["sync_sgd"]):
        walk.main()
"""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What `walk.py` prints."""
    done = subprocess.run(
        [*PYTHON, "-c", BOTH], cwd=BENCHMARKS, capture_output=True, text=True, timeout=280, check=True
    )
    return done.stdout.splitlines()


def walked(lines: list[str], what: str) -> tuple[int, int]:
    """Files and changes of file."""
    (line,) = (one for one in lines if one.startswith(what))
    files, changes = (int(part.split()[0]) for part in line.split(", ")[-2:])
    return files, changes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "server", "worker"), [("async_sgd", (12, 28), (13, 20)), ("sync_sgd", (16, 42), (13, 20))]
)
def test_a_contribution_goes_through_few_files(
    strategy: str, server: tuple[int, int], worker: tuple[int, int], lines: list[str]
) -> None:
    """With SGD and momentum, as most train: under async_sgd that is with look-ahead. Under sync_sgd the way to the answer of the
    other worker is in it, which is made first and sent last."""
    for (files_max, changes_max), what in ((server, "until it is answered"), (worker, "the worker's step")):
        files, changes = walked(lines, f"{strategy}, {what}")
        assert files <= files_max, lines
        assert changes <= changes_max, lines
