"""Workers, server and evaluator have the torch settings of the process that started the run, and may set their own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import plesio as ps
from plesio.config import RunConfig
from plesio.launch.job import Job
from plesio.launch.torch_settings import TorchSettings
from support.programs import PYTHON

Setting = Callable[[], object]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = TorchSettings.of_this_process()
    yield
    before.apply()


def note(folder: Path, who: str) -> None:
    folder.mkdir(exist_ok=True)
    settings = TorchSettings.of_this_process()
    (folder / who).write_text(json.dumps([str(settings), str(torch.ones(1).dtype), torch.is_grad_enabled()]))


class Noting(torch.optim.SGD):
    """Notes what it sees where it steps, that is, at the server."""

    def __init__(self, params: Any, folder: str) -> None:
        self.folder = folder
        super().__init__(params, lr=0.01)
        self.defaults["folder"] = folder

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        note(Path(self.folder), "server")
        super().step()


def train(worker: ps.Worker, folder: Path) -> None:
    note(folder, f"worker{worker.rank}")
    model = nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, Noting(model.parameters(), folder=str(folder)), None)
    for _ in range(4):
        optimizer.zero_grad()
        mse_loss(model(torch.ones(3, 2)), torch.zeros(3, 1)).backward()
        optimizer.step()


def evaluate(model: nn.Module, folder: Path) -> dict[str, float]:
    note(folder, "evaluator")
    return {"loss": float(model(torch.ones(3, 2)).mean())}


def seen(folder: Path) -> ps.Run:
    """A run whose processes note what they see."""
    judge = functools.partial(evaluate, folder=folder)
    return ps.run(
        functools.partial(train, folder=folder), ps.async_sgd("plain"), workers=2, evaluate=judge, timeout_s=60
    )


def assert_all_see(folder: Path, settings: TorchSettings, dtype: str) -> None:
    noted = {one.name: json.loads(one.read_text()) for one in folder.iterdir()}
    assert noted.keys() == {"worker0", "worker1", "server", "evaluator"}
    for who, (there, made, gradients) in noted.items():
        assert there == str(settings), who
        assert made == dtype
        assert gradients or not who.startswith("worker")


SETTINGS: dict[str, Setting] = {
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "deterministic, warns": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "uninitialized": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "float32 precision": lambda: torch.set_float32_matmul_precision("medium"),
    "one backend's": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "mkldnn": lambda: torch.backends.mkldnn.set_flags(_enabled=False, _deterministic=True),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "denormal": lambda: torch.set_flush_denormal(True),
}


@pytest.mark.thorough
def test_default_dtype_reaches_all_processes_of_one_run(tmp_path: Path) -> None:
    before = TorchSettings.of_this_process()
    torch.set_default_dtype(torch.float64)
    run = seen(tmp_path / "first")
    assert_all_see(tmp_path / "first", TorchSettings.of_this_process(), "torch.float64")
    assert run.state_dict["weight"].dtype is torch.float64
    before.apply()
    run = seen(tmp_path / "second")
    assert_all_see(tmp_path / "second", before, "torch.float32")
    assert run.state_dict["weight"].dtype is torch.float32


@pytest.mark.thorough
def test_all_settings_reach_all_processes_of_one_run(tmp_path: Path) -> None:
    before = TorchSettings.of_this_process()
    for name in ("deterministic", "one backend's", "tf32", "mkldnn", "cudnn", "anomaly", "denormal", "uninitialized"):
        SETTINGS[name]()
    there = TorchSettings.of_this_process()
    assert (there.deterministic, there.matmul_precision, there.anomaly, there.flush_denormal) == (
        2, None, (True, False), True,
    )  # fmt: skip
    seen(tmp_path / "first")
    assert_all_see(tmp_path / "first", there, "torch.float32")
    before.apply()
    seen(tmp_path / "second")
    assert_all_see(tmp_path / "second", before, "torch.float32")


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_read_and_restored(name: str) -> None:
    before = TorchSettings.of_this_process()
    SETTINGS[name]()
    set_to = TorchSettings.of_this_process()
    assert set_to != before
    before.apply()
    assert TorchSettings.of_this_process() == before
    set_to.apply()
    assert TorchSettings.of_this_process() == set_to


def test_gradients_are_enabled_in_workers_under_no_grad(tmp_path: Path) -> None:
    with torch.no_grad():
        seen(tmp_path / "first")
    assert_all_see(tmp_path / "first", TorchSettings.of_this_process(), "torch.float32")


SCRIPT = """
import sys
import torch
import plesio as ps

torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_default_dtype(torch.float64)
from helping import MADE


def train(worker):
    model = torch.nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    kinds = (torch.ones(1).dtype, MADE.dtype, model.weight.dtype, torch.get_deterministic_debug_mode())
    with open(f"worker{worker.rank}", "w") as file:
        print(*kinds, torch.get_float32_matmul_precision(), file=file)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    ps.run(train, "async_sgd", workers=2, timeout_s=60)
"""
HELPING = "import torch\nMADE = torch.ones(1)\n"


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["python", pytest.param("plesio run", marks=pytest.mark.slow)])
def test_settings_of_a_script_reach_workers_and_their_imports(command: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helping.py").write_text(HELPING)
    started = {
        "python": [*PYTHON, "script.py"],
        "plesio run": [*PYTHON, "-m", "plesio", "run", "script.py", "--workers", "2", "--strategy", "async_sgd"],
    }[command]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(started, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    precision = "high" if command == "python" else "highest"
    for rank in range(2):
        assert (tmp_path / f"worker{rank}").read_text() == f"{'torch.float64 ' * 3}1 {precision}\n"


INSIDE = """
import torch
import torch._dynamo.config
import plesio as ps
from torch.backends import mkldnn
from torch.backends.cuda import matmul

opt_einsum, aten = torch.backends.opt_einsum, torch.ops.aten


class Net(torch.nn.Linear):
    def forward(self, inputs):
        with torch.backends.cudnn.flags(enabled=True):
            return aten.relu(super().forward(inputs))


def train(worker):
    import torch.backends.cudnn as cudnn

    torch.backends.cudnn.deterministic = cudnn.benchmark = True
    torch._dynamo.config.suppress_errors = matmul.allow_tf32 = True
    mkldnn.enabled = opt_einsum.enabled = torch.utils.deterministic.fill_uninitialized_memory = False
    model = Net(2, 1)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), after_step=lambda parameters: cudnn.version())
    import torch as there

    kept = there.backends.cudnn, there._dynamo.config, there.backends.cuda.matmul, there.backends.mkldnn
    assert kept[0].deterministic and kept[0].benchmark and kept[1].suppress_errors and kept[2].allow_tf32
    assert not (kept[3].enabled or there.backends.opt_einsum.enabled or there.utils.deterministic.fill_uninitialized_memory)
    print("as set")


if __name__ == "__main__":
    evaluate = lambda model: {"seen": float(model(torch.ones(1, 2)).sum())}
    ps.run(train, "sync_sgd", workers=1, timeout_s=60, evaluate=evaluate)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["notebook", pytest.param("plesio run", marks=pytest.mark.slow)])
def test_a_training_function_may_set_them(command: str, tmp_path: Path) -> None:
    """Also one without a file, as in a notebook: all that it refers to is sent."""
    (tmp_path / "script.py").write_text(INSIDE)
    run = ["-m", "plesio", "run", "script.py", "--workers", "1"] if command == "plesio run" else ["-"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    given: dict[str, Any] = {"input": INSIDE, "capture_output": True, "text": True, "timeout": 90}
    done = subprocess.run([*PYTHON, *run], cwd=tmp_path, env=environment, **given)
    assert done.returncode == 0, done.stderr
    assert "as set" in done.stdout


def doubled(worker: ps.Worker) -> None:
    model = nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(1, 2)).sum().backward()
        optimizer.step()


def test_a_replay_uses_the_settings_of_its_run(tmp_path: Path) -> None:
    """Settings made under `if __name__ == "__main__"` are not made in a replay."""
    here = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    run = ps.run(doubled, "async_sgd", workers=2, runs=tmp_path, timeout_s=60.0)
    torch.set_default_dtype(here)
    assert run.folder is not None
    again = ps.replay(run.folder, doubled)
    assert again.identical
    assert torch.get_default_dtype() == here


def threads_of(worker: ps.Worker) -> int:
    model = nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("strategy", "workers", "threads", "here", "has"),
    [
        (ps.async_sgd(), 1, None, 4, 4),
        (ps.sync_sgd(), 2, None, 4, 2),
        (ps.async_sgd(), 2, None, 4, 1),
        (ps.local_sgd(8), 2, None, 4, 2),
        (ps.async_sgd(), 2, 3, 4, 3),
        (ps.sync_sgd(), 4, None, 1, 1),
    ],
    ids=["one worker", "rounds", "the server works, too", "local steps", "asked for", "one in all"],
)
def test_workers_share_the_threads_of_the_process_that_runs_them(
    strategy: ps.Strategy, workers: int, threads: int | None, here: int, has: int
) -> None:
    config = RunConfig(strategy=strategy, workers=workers, threads=threads)
    assert Job(config=config, train=threads_of, evaluate=None, threads_here=here).threads == has


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_no_threads_are_refused(threads: Any) -> None:
    with pytest.raises(ps.ConfigurationError, match=r"threads=.*: a whole number from 1"):
        RunConfig(strategy="async_sgd", workers=2, threads=threads)


def test_a_worker_has_as_many_threads_as_were_asked_for() -> None:
    assert ps.run(threads_of, ps.sync_sgd(), workers=1, threads=3).returned == [3]
