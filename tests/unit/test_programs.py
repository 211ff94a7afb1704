"""Programs of `support.programs` do as those of a fresh interpreter."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import plesio as ps
from support.programs import PYTHON

SEEN = """
import atexit, os, signal, sys, neighbour

print(sys.argv, sys.path, sys.orig_argv[-3:], __name__, globals().get("__file__"), sys.modules["__main__"].__dict__ is globals())
print(os.getcwd(), sorted(os.environ.items()), len(os.listdir("/proc/self/task")))
print([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)], sys.warnoptions)
print([(one.encoding, one.errors, one.line_buffering) for one in (sys.stdin, sys.stdout, sys.stderr)])
print(neighbour.__file__, sys.stdin.read())
atexit.register(print, "over")
"""
ENDS = (
    "raise SystemExit(3)",
    "def f():\n    raise ValueError('wrong')\nf()",
    "def (",
    "raise KeyboardInterrupt",
    "class Mine(KeyboardInterrupt): pass\nraise Mine",
    "print('é')",
)


def both(folder: Path, *arguments: str, given: str = "", **environment: str) -> list[tuple[int, str, str]]:
    """What comes of it: its code, and what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept |= {"LC_ALL": "C.UTF-8", "PYTHONPATH": f"{folder}/more:{Path(ps.__file__).parents[1]}", **environment}
    ended = [
        subprocess.run(
            [*python, *arguments], cwd=folder, env=kept, input=given, capture_output=True, text=True, timeout=60
        )
        for python in (PYTHON, [sys.executable])
    ]
    return [(one.returncode, one.stdout, one.stderr) for one in ended]


@pytest.mark.parametrize("how", [("script.py",), ("-c", SEEN), ("-m", "script"), ("-",)], ids=lambda how: how[0])
def test_a_program_finds_what_it_would(how: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SEEN)
    (tmp_path / "neighbour.py").write_text("")
    warm, fresh = both(tmp_path, *how, "a b", "é", given=SEEN if how == ("-",) else "given")
    assert warm[1].splitlines() == fresh[1].splitlines()
    assert (warm[0], warm[2]) == (fresh[0], fresh[2]) == (0, "")


@pytest.mark.few(2)
@pytest.mark.parametrize("code", ENDS)
def test_a_program_ends_as_it_would(code: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(code)
    warm, fresh = both(tmp_path, "script.py", PYTHONIOENCODING="ascii")
    assert warm == fresh


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_reaches_a_program(number: int) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [*PYTHON, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        gone = os.pidfd_open(int(program.stdout.readline()))
        program.send_signal(number)
        assert program.wait(30) == -number
    assert select.select([gone], [], [], 30.0)[0]
    os.close(gone)
