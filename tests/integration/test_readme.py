"""What the README and the pages choose, start and simulate show runs as it is pasted, in a clone; comparisons get less time."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import PYTHON

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/choose.md", "docs/start.md", "docs/simulate.md")
SHOWN = "".join((ROOT / page).read_text() for page in PAGES)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", SHOWN, re.DOTALL | re.MULTILINE)
SCRIPT, FIRST = (
    next(text for language, text in BLOCKS if language == "python" and word in text) for word in ("spirals", "ps.Kill")
)
LINES = [line for _, text in BLOCKS for line in text.replace("\\\n", "").splitlines()]
COMMANDS = [line for line in LINES if line.startswith("plesio ") and "serve" not in line]
SEVERAL_MACHINES = next(text for _, text in BLOCKS if text.startswith("# train.py"))


@pytest.mark.thorough
def test_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("async_sgd: finished")
    accuracy = re.search(r"accuracy (\d\.\d+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9  # the README says 97% to 99%


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=pytest.mark.slow if "compare" in one else pytest.mark.thorough) for one in COMMANDS],
)
def test_a_command_runs(tmp_path: Path, command: str) -> None:
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    typed = shlex.split(command, comments=True)[1:] + (["--budget-s", "3"] if "compare" in command else [])
    program = *PYTHON, "-c", "from plesio.cli import app; app()"
    done = subprocess.run([*program, *typed], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


def of_several_machines(folder: Path, typed: str) -> str:
    """What a shell prints that runs what was typed, in a folder with the two scripts of start.md."""
    (folder / "first.py").write_text(FIRST)
    (folder / "train.py").write_text(SEVERAL_MACHINES)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", typed],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_torchrun_starts_the_workers(tmp_path: Path) -> None:
    (command,) = [line for line in LINES if line.startswith("torchrun ")]
    assert "async_sgd: finished" in of_several_machines(tmp_path, command)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_workers_join_a_head(tmp_path: Path) -> None:
    (serve,) = [line for line in LINES if line.startswith("plesio serve")]
    (joins,) = [line for line in LINES if line.startswith("PLESIO_JOIN=")]
    typed = f"{serve} &\n" + f"{joins.partition('#')[0]} &\n" * 4 + "wait -n; " * 4 + "wait -n"
    assert "async_sgd: finished" in of_several_machines(tmp_path, typed)


def test_commands_are_found() -> None:
    assert [one.split()[1] for one in COMMANDS] == ["compare", "strategies", "run", "compare", "compare"]
