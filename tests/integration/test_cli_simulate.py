"""`plesio simulate`, and `plesio compare --cluster`: what they print, and how they fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from plesio.cli.main import main
from plesio.launch.ctrl_c import ENDING, CtrlC, stay_deaf
from support.typed import said

SCRIPT = """
from support.loops import FEATURES, CLASSES, data
from support.typed import said
import torch

X, Y = data()


def train(worker):
    model = torch.nn.Linear(FEATURES, CLASSES)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for _ in range(100):
        for x, y in loader:
            with worker.step():
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()


def evaluate(model):
    return {"accuracy": (model(X).argmax(1) == Y).float().mean()}
"""
CLUSTER = Path(__file__).parents[2] / "examples" / "cluster.toml"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("COLUMNS", raising=False)
    Path("script.py").write_text(SCRIPT)
    shutil.copy(CLUSTER, "cluster.toml")


def test_simulate_prints_the_table_and_says_that_time_is_virtual(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategy", "local_sgd", "--set", "every=4", "--workers", "3", "--runs", "here"]
    out = said(capsys, "simulate", "script.py", "--cluster", "one-straggler", *options, "--budget-s", "5")
    assert out.startswith("script.py: 3 workers simulated on one-straggler, all times virtual, at most 5 s\n")
    assert "local_sgd(every 4 steps): 5 seconds were up · 5.00 s" in out
    assert "All times are virtual: 5.00 s of them were simulated in " in out
    (folder,) = Path("here").iterdir()
    assert {"journal.bin", "weights.safetensors"} <= {one.name for one in folder.iterdir()}


@pytest.mark.few(1)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_keeps_the_simulated_part_and_a_second_one_ends_at_once(
    name: str, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second SIGHUP does not count: a terminal that closes may send it twice."""
    in_order = times == 1 or name == "SIGHUP"
    before = signal.getsignal(signal.Signals[name])
    handled = "signal.getsignal(signal.SIGINT) is not signal.default_int_handler"  # not while it is replayed
    press = f"if worker.version > 20 and {handled}: [signal.raise_signal(signal.{name}) for _ in range({times})]"
    script = SCRIPT.replace("with worker.step():", f"with worker.step():\n                {press}")
    Path("script.py").write_text(f"import signal\n{script}")
    typed = "simulate script.py --cluster uniform --workers 3 --runs here --checkpoint-every-s 60"
    assert main(typed.split()) == 128 + signal.Signals[name]
    out, error = capsys.readouterr()
    assert error == f"plesio: {'interrupted' if name == 'SIGINT' else f'ended by {name}'}\n"
    (folder,) = Path("here").iterdir()
    written = {one.name for one in folder.iterdir()}
    assert ("weights.safetensors" in written) == in_order
    if in_order:
        assert "async_sgd: interrupted · " in out
        assert out.endswith(f"\ngo on with: plesio {typed} --resume {folder}\n")
        assert main(["replay", str(folder)]) == 0
        assert "bit-identical: " in capsys.readouterr().out
    assert signal.getsignal(signal.Signals[name]) is before


@pytest.mark.thorough
def test_sigterm_to_compare_shows_the_finished_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """It comes in the second strategy's run; the first one's row and the report are kept."""
    second = 'Path("runs").exists() and len(list(Path("runs").glob("*async_sgd"))) == 1'
    press = f"if worker.version > 20 and {second}: signal.raise_signal(signal.SIGTERM)"
    script = SCRIPT.replace("with worker.step():", f"with worker.step():\n                {press}")
    Path("script.py").write_text(f"import signal\nfrom pathlib import Path\n{script}")
    options = ["--strategies", "sync_sgd,async_sgd", "--budget-s", "5", "--report", "report.html"]
    assert main(["compare", "script.py", "--cluster", "uniform", "--workers", "3", *options]) == 143
    out, error = capsys.readouterr()
    assert error == "plesio: ended by SIGTERM\n"
    assert "\nsync_sgd made " in out
    assert "async_sgd" not in out
    assert "Report: report.html" in out


@pytest.mark.parametrize("number", ENDING)
def test_ignored_signals_stay_ignored(number: int) -> None:
    """As in a shell's background: `nohup plesio simulate ... &`."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with CtrlC() as ctrl_c:
            signal.raise_signal(number)
        assert ctrl_c.pressed == 0
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def _child_ends_by(number: int) -> int:
    """What a forked process that gets this signal ends by."""
    heard, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready, b".")
        time.sleep(60.0)
        os._exit(0)
    os.read(heard, 1)  # what comes before Python is ready in a new process is lost
    os.close(heard)
    os.close(ready)
    os.kill(child, number)
    return -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forked_processes_of_a_run_are_ended_by_sigterm() -> None:
    """`multiprocessing.Pool.terminate` waits for them."""
    with CtrlC() as ctrl_c:
        assert _child_ends_by(signal.SIGTERM) == signal.SIGTERM
    assert ctrl_c.pressed == 0


def test_a_deaf_process_forks_processes_that_hear() -> None:
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        stay_deaf()
        signal.raise_signal(signal.SIGTERM)
        assert _child_ends_by(signal.SIGTERM) == signal.SIGTERM
        assert _child_ends_by(signal.SIGHUP) == signal.SIGHUP
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cluster", "more", "workers"),
    [
        ("cluster.toml", "--workers 5", 5),
        ("uniform", "--workers 40", 40),
        pytest.param("cluster.toml", "", 8, marks=pytest.mark.thorough),
        pytest.param("uniform", "", 8, marks=pytest.mark.thorough),
    ],
)
def test_the_number_of_workers_is_the_clusters_or_as_given(
    cluster: str, more: str, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, "simulate", "script.py", "--cluster", cluster, "--until", "steps=200", *more.split())
    assert f"script.py: {workers} workers simulated on {cluster}," in out
    assert ("of 40 workers the 8 slowest and the 8 fastest are shown" in out) is (workers == 40)
    assert sum(line.startswith("│") for line in out.splitlines()) == min(workers, 16)


@pytest.mark.thorough
def test_compare_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workers", "40", "--until", "accuracy=0.8", "--strategies", "sync_sgd,async_sgd"]
    files = ["--json", "table.json", "--report", "report.html"]
    out = said(capsys, "compare", "script.py", "--cluster", "heavy-tail", *options, *files)
    assert "40 workers simulated on heavy-tail, all times virtual, until accuracy 0.8, at most 30 s" in out
    assert "All times are virtual: " in out
    assert [row["strategy"] for row in json.loads(Path("table.json").read_text())["rows"]] == ["sync_sgd", "async_sgd"]
    page = Path("report.html").read_text()
    assert "script.py under 2 strategies, 40 workers in virtual time" in page
    assert 2 < page.count('"whole":') <= 32
