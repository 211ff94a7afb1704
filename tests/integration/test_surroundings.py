"""What a run writes down of its command, its script's commit and its machine."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

import plesio as ps
from plesio.observe.surroundings import surroundings
from support import loops


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *own, *arguments], check=True, capture_output=True)


def test_the_commit_says_whether_files_changed_since(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert "commit" not in surroundings(str(script))
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    clean = surroundings(str(script))["commit"]
    assert len(clean) == 12
    script.write_text("changed")
    assert surroundings(str(script))["commit"] == f"{clean}-dirty"


def test_run_toml_and_the_report_say_how_it_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hub-token", "s3cret", "--lr=<b>"])
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=5)
    run = ps.run(train, ps.sync_sgd(), workers=2, runs=tmp_path, timeout_s=30)
    assert run.folder is not None
    written = tomllib.loads((run.folder / "run.toml").read_text())["surroundings"]
    assert written["command"] == "python train.py --hub-token '***' '--lr=<b>'"
    assert written["script"] == str(Path(loops.__file__).resolve())
    assert f"python {sys.version.split()[0]}" in written["packages"]
    page = (run.folder / "report.html").read_text()
    assert "s3cret" not in page
    assert "[\"command\",\"python train.py --hub-token '***' '--lr=\\u003cb>'\"]" in page
    assert '["strategy: gather","round of all"]' in page
