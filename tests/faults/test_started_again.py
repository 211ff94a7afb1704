"""A command that is killed and started again by the same line, and one that is asked to end while it starts."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from plesio.errors import ServerLostError
from plesio.launch.remote.head import HeadAddress
from plesio.server.checkpoints import latest
from support.processes import descendants, gone_within
from support.programs import PYTHON, behind
from support.remote import TOKEN

PLESIO = (*PYTHON, "-c", "from plesio.cli import app; app()")
OPTIONS = ("--strategy", "async_sgd", "--workers", "2", "--checkpoint-every-s", "0.2", "--resume", "newest")
SAMPLES, BATCH = 8000, 4
SCRIPT = f"""
import os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
import plesio as ps

def train(worker):
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.ones({SAMPLES}, 2)), batch_size={BATCH}, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001), loader)
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        print("stepped", os.getpid(), flush=True)
        time.sleep(0.002)

def prepares_long(worker):
    print("preparing", flush=True)
    time.sleep(60)

if __name__ == "plesio_script" and "waits" in sys.argv:
    print("loading", flush=True)
    time.sleep(60)
if __name__ == "__main__":
    keep = {{"runs": "runs", "checkpoint": ps.Checkpoint(every_s=0.2), "resume": "newest"}}
    print(ps.run(train, ps.async_sgd(), workers=2, **keep).folder)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLESIO_TOKEN", TOKEN)
    Path("script.py").write_text(SCRIPT)


def begun(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said_until(program: subprocess.Popen[str], word: str) -> str:
    assert program.stdout is not None
    said = ""
    while word not in said:
        said += (line := program.stdout.readline())
        assert line, said
    return said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "word", "doing"),
    [
        (["run", "script.py", *OPTIONS, "--", "waits"], "loading", r"script\.py was being loaded"),
        (
            ["run", "script.py", *OPTIONS, "--function", "prepares_long"],
            "preparing",
            "starting 2 workers: they run; training begins when all have called worker.prepare and the server is ready",
        ),
        (["serve", *OPTIONS, "--listen", "127.0.0.1:0"], "begins", "waiting for workers: 0 of 2 were there"),
    ],
)
def test_sigterm_while_it_starts_says_what_was_done_and_leaves_nothing(
    command: list[str], word: str, doing: str
) -> None:
    with begun(*PLESIO, *command) as program:
        said_until(program, word)
        processes = descendants(behind(program.pid))
        program.send_signal(signal.SIGTERM)
        rest = program.communicate(timeout=30)[0]
    assert program.returncode == 128 + signal.SIGTERM
    assert re.search(f"plesio: ended by SIGTERM while {doing}", rest), rest
    assert gone_within(processes, 5.0)


@pytest.mark.thorough
def test_a_script_that_sigterm_ends_has_its_checkpoint_and_status_143() -> None:
    with begun(*PYTHON, "script.py") as program:
        said_until(program, "stepped")
        processes = descendants(behind(program.pid))
        program.send_signal(signal.SIGTERM)
        rest = program.communicate(timeout=30)[0]
    assert program.returncode == 128 + signal.SIGTERM
    (folder,) = Path("runs").iterdir()
    assert re.search(rf"plesio: ended by SIGTERM: interrupted at version \d+; written to {folder}; go on with", rest)
    assert "Traceback" not in rest
    assert {"summary.json", "weights.safetensors", "checkpoints"} <= {one.name for one in folder.iterdir()}
    assert gone_within(processes, 5.0)


@pytest.mark.parametrize(("status", "raises"), [(143, SystemExit), (1, ServerLostError)])
def test_whoever_waits_for_a_head_that_sigterm_ended_ends_so_too(status: int, raises: type[BaseException]) -> None:
    head = os.fork()
    if not head:
        os._exit(status)
    with pytest.raises(raises) as ended:
        HeadAddress("127.0.0.1", 1, TOKEN, head, socket.gethostname()).wait()
    assert getattr(ended.value, "code", 1) == status


def newest_checkpoint() -> int:
    """The samples in the newest checkpoint of all runs: what no later start does again."""
    folders = [one for one in Path("runs").glob("*") if any(one.glob("checkpoints/version-*"))]
    return max((latest(one).manifest.samples for one in folders), default=0)


def kill_within(command: Sequence[str], rng: random.Random) -> None:
    """Start it, and kill the head after some steps, of which a worker may have died at one."""
    with begun(*command) as program:
        assert program.stdout is not None
        at, worker_at, steps = rng.randrange(80), rng.randrange(160), 0
        said_until(program, "plesio: ")
        while steps < at:
            line = program.stdout.readline()
            assert line, f"it ended by itself, with {program.wait()}"
            steps += "stepped" in line
            if "stepped" in line and steps == worker_at:
                os.kill(int(line.split()[-1]), signal.SIGKILL)
        os.kill(behind(program.pid), rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        program.communicate(timeout=60)
    assert program.returncode in (-signal.SIGKILL, 128 + signal.SIGTERM)


@pytest.mark.parametrize(
    "command", [(*PYTHON, "script.py"), pytest.param((*PLESIO, "run", "script.py", *OPTIONS), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.thorough), pytest.param(19, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)
def test_one_command_line_that_is_killed_again_and_again_finishes(command: Sequence[str], kills: int) -> None:
    """Each sample counts once. Nothing is done again but what came after the last checkpoint before a kill."""
    rng, kept = random.Random(kills), 0
    for _ in range(kills):
        kill_within(command, rng)
        assert (before := kept) <= (kept := newest_checkpoint()), f"from {before}: no start goes back"
    last = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert last.stdout.count("stepped") == (SAMPLES - kept) // BATCH, "what was left, and nothing else"
    folder = max(Path("runs").iterdir(), key=lambda one: (one / "run.toml").stat().st_mtime_ns)
    assert latest(folder).manifest.samples == SAMPLES
    assert json.loads((folder / "summary.json").read_text())["batches_unvisited"] == 0
    over = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"{folder}, has finished: nothing is left to do" in over.stderr
    assert "stepped" not in over.stdout
