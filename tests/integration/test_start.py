"""What a start imports, and what it says."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from plesio.kernels import first_time
from plesio.kernels.first_time import one_compiles
from plesio.launch.local import starting
from plesio.launch.local.starting import Starting
from plesio.launch.local.uncompiled import leave_out_compiler

SCRIPT = """
import sys

import torch

import plesio as ps

HEAVY = ("numba", "greenlet", "rich.console", "plesio.launch.simulated.virtual", "plesio.tables.store", "plesio.worker.worker")


def train(worker):
    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in worker.steps(4):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()
    return "torch._dynamo" in sys.modules


if __name__ == "__main__":
    ps.run
    print([one for one in HEAVY if one in sys.modules])
    for strategy in ps.async_sgd(), ps.local_sgd(every=2):
        print(ps.run(train, strategy, workers=2).returned)
"""


@pytest.mark.thorough
def test_a_run_imports_neither_the_simulator_nor_kernels_nor_torchs_compiler_where_nobody_uses_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == ["[]", "[False, False]", "[True, True]"], done.stderr


def test_an_optimizer_does_the_same_before_and_after_somebody_imports_torchs_compiler() -> None:
    leave_out_compiler()
    import torch._dynamo

    leave_out_compiler()  # the next call finds the compiler there
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert optimizer.param_groups[0]["params"][0].grad is None
    assert optimizer.param_groups[0]["params"][0].item() == pytest.approx(0.9)


def test_a_start_says_once_a_second_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10.0]
    monkeypatch.setattr(starting.time, "monotonic", lambda: now_s[0])
    said: list[str] = []
    start = Starting(2, said.append)
    for now_s[0] in (10.5, 11.0, 11.5, 12.5):
        start.waits_for("this")
    assert said == ["starting 2 workers: this (1 s)", "starting 2 workers: this (2 s)"]


def test_one_process_compiles_kernels_while_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_time.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(first_time, "SAY_S", 0.0)
    said = threading.Event()
    monkeypatch.setattr("builtins.print", lambda *words, **_: words == (first_time.WORDS,) and said.set())
    place = tmp_path / f"plesio-kernels-{os.getuid()}"
    with one_compiles():
        assert said.wait(60)
        with place.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with place.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_kernels_are_loaded_where_there_is_no_place_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_time.tempfile, "gettempdir", lambda: "/nowhere")
    with one_compiles():
        loaded = True
    assert loaded
