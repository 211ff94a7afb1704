"""What a newcomer types first: help, `version`, `demo`, and the tab key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plesio.cli import demo
from plesio.cli.main import ORDER, main
from support.programs import PYTHON

ROOT = Path(__file__).parents[2]


def test_the_help_lists_commands_by_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^│ ([a-z][a-z-]*) ", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(ORDER)
    assert listed[:4] == ["run", "compare", "demo", "simulate"]


def test_version_is_a_command_and_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == main(["--version"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == said[1]
    assert said[0].startswith("plesio 0.")


@pytest.mark.thorough
def test_the_demo_is_a_comparison_and_takes_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its strategies reach 95%."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["demo", "--strategies", "first_of,async_sgd", "--json", "table.json"]) == 0
    command, work, *_, last = capsys.readouterr().out.splitlines()
    assert command == f"plesio compare {demo.script()} {demo.OPTIONS} --strategies first_of,async_sgd --json table.json"
    assert work.startswith(f"{demo.script()}: 4 workers, worker 0 slowed down 10 times, at least 20 ms a step, until")
    assert last == "Report: demo.html"
    assert Path("demo.html").is_file()
    rows = json.loads(Path("table.json").read_text())["rows"]
    assert all(row["time_to_target_s"] is not None for row in rows), rows
    assert main(["demo", "--worker", "2"]) == 2
    assert "No such option: --worker" in capsys.readouterr().err


def test_the_demo_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_the_demo_lies_in_the_wheel_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["examples/digits.py"] == "plesio/examples/digits.py"
    assert demo.PLACES == (ROOT / "src/plesio", ROOT)
    monkeypatch.chdir(ROOT)
    assert demo.script() == Path("examples/digits.py")


@pytest.mark.thorough
def test_the_tab_key_completes_commands_options_and_names(tmp_path: Path) -> None:
    """In bash, by what `--install-completion` wrote, in a new shell."""
    program = tmp_path / "bin" / "plesio"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m plesio "$@"\n')
    program.chmod(0o755)
    home = {**os.environ, "HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    told = subprocess.run(
        ["bash", "-c", "plesio --install-completion; exit $?"],
        env=home, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert told.startswith(f"bash completion installed in {tmp_path}/.bash_completions/plesio.sh\n")

    typed = ["plesio com", "plesio run --strateg", "plesio run --strategy elas", "plesio compare --data ''"]
    ask = "".join(
        f'COMP_WORDS=({line}); COMP_CWORD={line.count(" ")}; _plesio_completion plesio; echo "${{COMPREPLY[@]}}"; '
        for line in typed
    )
    done = subprocess.run(
        ["bash", "-c", f"source ~/.bashrc; {ask}"], env=home, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["compare", "--strategy", "elastic_averaging", "leases shards new"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shell", "file"), [("zsh", ".zfunc/_plesio"), ("fish", ".config/fish/completions/plesio.fish")]
)
def test_completion_is_there_for_other_shells(shell: str, file: str, tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    asked = [*PYTHON, "-m", "plesio", "--install-completion", shell]
    told = subprocess.run(asked, env=home, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.startswith(f"{shell} completion installed in {tmp_path / file}\n")
    assert f"_PLESIO_COMPLETE=complete_{shell}" in (tmp_path / file).read_text()


@pytest.mark.thorough
def test_a_home_that_cannot_be_written_is_told_in_a_line() -> None:
    home = {**os.environ, "HOME": "/proc", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    asked = [*PYTHON, "-m", "plesio", "--install-completion", "bash"]
    done = subprocess.run(asked, env=home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(
        r"plesio: completion cannot be installed: .*; --show-completion prints the script\n", done.stderr
    )
