"""Rivals of hogwild.py that need packages of their own, run in the virtualenv .venv-rivals.

`install` makes it. `Rivals.ask` runs one of them in a process of its own (_hogwild_rival_process.py) and hands arrays over by
`.npz` files; the seconds that come back are of the rival's fit alone, taken inside that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-rivals"
PYTHON = HOME / "bin" / "python"
REQUIREMENTS = Path(__file__).with_name("hogwild-requirements.txt")
PROCESS = Path(__file__).with_name("_hogwild_rival_process.py")
LIMIT_S = 600
# LIBMF's own makefile compiles with these; its package on PyPI would leave them out and be several times slower.
_FLAGS = "-O3 -march=native -DUSEAVX -DUSEOMP -fopenmp"
FLAGS = {"CFLAGS": _FLAGS, "CXXFLAGS": _FLAGS, "LDFLAGS": "-fopenmp"}

Arrays = Mapping[str, NDArray[Any]]


class RivalMissingError(RuntimeError):
    """A rival is not installed or failed; the message says which, and the last lines it wrote."""


def install() -> None:
    """Make .venv-rivals; a package that cannot be had is said, and is skipped later."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    wanted = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    for requirement in wanted:  # one by one: one that fails to build must not cost the others
        command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        own_build = ["--no-cache-dir"] if requirement.startswith("libmf") else []
        done = subprocess.run(
            [*command, *own_build], env={**os.environ, **FLAGS}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"rival {requirement} could not be had: {done.stderr.strip().splitlines()[-1:]}")


def questions() -> Path | None:
    """The analogy questions that gensim's package holds, if it is installed."""
    found = sorted(HOME.glob("lib/*/site-packages/gensim/test/test_data/questions-words.txt"))
    return found[0] if found else None


class Rivals:
    """Runs rivals and keeps what they need in one temporary folder, gone at the end of the `with` block."""

    def __enter__(self) -> Rivals:
        self._folder = tempfile.TemporaryDirectory(prefix="plesio-rivals-")
        self._number = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def deposit(self, arrays: Arrays) -> Path:
        """Write arrays for several calls of `ask`."""
        path = self._next("data")
        np.savez(path, **arrays)
        return path

    def ask(self, name: str, data: Path, **settings: Any) -> dict[str, NDArray[Any]]:
        """What rival `name` makes of a deposit: its arrays, "seconds" of its fit among them. Raises RivalMissingError."""
        if not PYTHON.exists():
            raise RivalMissingError(f"{name}: {HOME.name} is not there; python benchmarks/hogwild.py --setup makes it")
        answer = self._next("answer")
        order = json.dumps({"name": name, "data": str(data), "answer": str(answer), "settings": settings})
        threads = {"OMP_NUM_THREADS": str(settings.get("threads", 1)), "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [str(PYTHON), str(PROCESS), order],
                env={**os.environ, **threads},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RivalMissingError(f"{name}: not done after {LIMIT_S} s") from None
        if done.returncode:
            raise RivalMissingError(f"{name}: " + " / ".join(done.stderr.strip().splitlines()[-3:]))
        with np.load(answer) as file:
            result = dict(file)
        answer.unlink()
        return result

    def _next(self, name: str) -> Path:
        self._number += 1
        return Path(self._folder.name, f"{name}-{self._number}.npz")
