"""What a PyTorch user expects to keep working inside the loop, and what a run leaves behind."""

from __future__ import annotations

import errno
import inspect
import json
import os
import pickle
import subprocess
import tomllib
import warnings
from functools import partial, wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from plesio.cluster import Constant, Group
from plesio.observe.summary import Summary
from plesio.tensors.arena import PAGE, Layout
from plesio.tensors.model import describe
from support import loops
from support.long_forms import but_thorough
from support.programs import PYTHON

SGDS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "Adadelta": torch.optim.Adadelta,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adafactor": torch.optim.Adafactor,
}
SMALL = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=3)
SIMULATED = ps.Simulated("uniform")


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = SGDS[name](model.parameters())
    return made


WARNED = """
from functools import partial
import torch
from support import loops
import plesio as ps

def nadam(model):
    return torch.optim.NAdam(model.parameters())

if __name__ == "__main__":
    train = partial(loops.follow, build=loops.mlp, optimizers=nadam, steps=3)
    ps.run(train, ps.async_sgd(), workers=2)
    ps.run(train, ps.async_sgd("plain"), workers=2)
"""


@pytest.mark.thorough
def test_momentum_without_look_ahead_warns_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WARNED)
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    script = [*PYTHON, str(tmp_path / "script.py")]
    said = subprocess.run(script, env=paths, capture_output=True, text=True, timeout=60, check=True).stderr
    assert said.count("NAdam: no look-ahead is known for it, so async_sgd folds it plainly") == 1


OPTIONS = """
import argparse

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--lr", type=float)
PARSER.add_argument("--data")
GIVEN = PARSER.parse_args()
"""
PARSING = """
import os, torch
import options
import plesio as ps

def train(worker):
    given = options.PARSER.parse_args()
    assert os.fsencode(given.data) == b"caf\\xe9"
    model = torch.nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=given.lr), None)
    model(torch.ones(1, 2)).sum().backward()
    worker.log(lr=optimizer.param_groups[0]["lr"])
    optimizer.step()

def evaluate(model):
    return {"lr": options.GIVEN.lr}

if __name__ == "__main__":
    run = ps.run(train, "sync_sgd", workers=1, evaluate=evaluate)
    print(run.logged[0].metrics["lr"], run.history[-1].metrics["lr"])
"""


@pytest.mark.thorough
def test_sys_argv_reaches_train_evaluate_and_their_imports(tmp_path: Path) -> None:
    """Arguments outside UTF-8, too."""
    (tmp_path / "script.py").write_text(PARSING)
    (tmp_path / "options.py").write_text(OPTIONS)
    script = [*PYTHON, str(tmp_path / "script.py"), "--lr", "0.25", "--data", os.fsdecode(b"caf\xe9")]
    assert subprocess.run(script, capture_output=True, text=True, timeout=60, check=True).stdout == "0.25 0.25\n"


def usual_loop(worker: Any, steps: int) -> None:
    """Two parameter groups, a scheduler, two backward passes a step, clipping: as in any training script."""
    run_loop(steps, lambda model, optimizer: worker.prepare(model, optimizer))


def run_loop(steps: int, prepare: Any) -> nn.Module:
    inputs, labels = loops.data()
    model = loops.mlp()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}], lr=0.2, momentum=0.9
    )
    model, optimizer = prepare(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for half in (slice(0, 16), slice(16, 32)):
            (cross_entropy(model(inputs[half]), labels[half]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "strategy",
    but_thorough([ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(every=1), ps.hogwild()], {"async_sgd", "hogwild"}),
    ids=str,
)
def test_schedules_groups_accumulation_and_clipping_match_plain_pytorch(strategy: ps.Strategy) -> None:
    """Bit for bit with one worker."""
    got = ps.run(partial(usual_loop, steps=10), strategy, workers=1).state_dict
    want = run_loop(10, lambda model, optimizer: (model, optimizer)).state_dict()
    assert all(torch.equal(got[name], value) for name, value in want.items())


def warm(model: nn.Module, name: str, steps: int = 3) -> torch.optim.Optimizer:
    """An optimizer that holds state, as one that was loaded from a file does."""
    optimizer = optimizer_of(model, name)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()
    return optimizer


def goes_on_as_without_plesio(name: str, strategy: ps.Strategy, begun: int = 3, **settings: Any) -> None:
    optimizers = partial(warm, name=name, steps=begun)
    train = partial(loops.follow, build=loops.mlp, optimizers=optimizers, steps=8)
    got = ps.run(train, strategy, **settings).state_dict
    for key, value in loops.plain_pytorch(loops.mlp, optimizers, 8, batch=8 * settings["workers"]).items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("begun", [0, 3])
@pytest.mark.parametrize("name", SGDS)
def test_any_optimizer_runs_at_the_server_and_brings_its_state(name: str, begun: int) -> None:
    """Elementwise ones over flat tensors, per-tensor ones (Adafactor) through views."""
    strategy = ps.async_sgd() if begun else ps.sync_sgd()
    goes_on_as_without_plesio(name, strategy, begun, workers=1, engine=SIMULATED)


REAL = [ps.async_sgd(), ps.sync_sgd(), ps.local_sgd(every=1), ps.allreduce("torch"), ps.hogwild()]


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", but_thorough(REAL, {"async_sgd", "hogwild", ps.allreduce("torch").name}), ids=str)
def test_initial_optimizer_state_is_kept_by_every_strategy(strategy: ps.Strategy) -> None:
    """AMSGrad keeps three tensors per parameter, more than a ring for one worker has free."""
    goes_on_as_without_plesio("AdamW", strategy, workers=1)


@pytest.mark.parametrize("name", ["SGD with momentum", "AdamW"])
def test_rounds_start_from_worker_0s_optimizer_state(name: str) -> None:
    goes_on_as_without_plesio(name, ps.sync_sgd(), workers=3, engine=ps.Simulated("uniform"))


@pytest.mark.thorough
def test_shared_memory_matches_the_formula() -> None:
    """N + 2 versions (one more to evaluate), N slots, and the state of optimizer and correction. To the run those that all-reduce
    by torch are one worker."""
    model = loops.mlp()
    described, _ = describe(model, loops.momentum(model))
    whole = Layout(described.specs).nbytes
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=3)
    via_server = ((ps.sync_sgd(), 3 + 2 + 3 + 1), (ps.async_sgd(), 3 + 2 + 3 + (3 + 1)))
    for strategy, copies in (*via_server, (ps.hogwild(), 1), (ps.allreduce("torch"), 1 + 2 + 1)):
        run = ps.run(train, strategy, workers=3)
        slots_at_least = PAGE if strategy.via.in_shared_memory else 0
        assert run.shared_bytes == copies * whole + PAGE + slots_at_least, strategy.name


def accuracy(model: nn.Module) -> dict[str, float]:
    inputs, labels = loops.data()
    assert not model.training
    return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}


@pytest.mark.thorough
def test_a_run_folder_holds_every_file(tmp_path: Path) -> None:
    train = partial(loops.endless, pause_s=0.001)
    run = ps.run(
        train,
        ps.async_sgd(),
        workers=2,
        evaluate=accuracy,
        evaluate_every_s=0.05,
        until=ps.Until(accuracy=0.8, seconds=20),
        runs=tmp_path,
    )
    assert run.ended == "accuracy 0.8 reached"
    assert run.start_up_s > 0
    assert run.folder.parent == tmp_path
    assert tomllib.loads((run.folder / "run.toml").read_text())["strategy"]["gather"] == "each"
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert any("accuracy" in line for line in lines)
    assert any("loss" in line for line in lines)
    assert [line["time_s"] for line in lines] == sorted(line["time_s"] for line in lines)
    told = (run.folder / "summary.json").read_bytes()
    shares = {"steps_per_s": run.steps_per_s, "ideal_share": run.ideal_share, "waiting_share": run.waiting_share}
    assert shares.items() <= json.loads(told).items()
    assert msgspec.json.decode(told, type=Summary) == run.summary
    weights = load_file(run.folder / "weights.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in loops.mlp().state_dict().items()
    }
    loops.mlp().load_state_dict(weights)  # plain PyTorch takes them
    assert '"name":"accuracy"' in (run.folder / "report.html").read_text()


@pytest.mark.thorough
def test_snapshots_are_consistent_and_the_last_is_evaluated() -> None:
    """The last evaluation is of the returned weights."""
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=40)
    run = ps.run(train, ps.async_sgd(), workers=3, evaluate=weight_sum, evaluate_every_s=0.02)
    total = sum(value.double().sum().item() for value in run.state_dict.values())
    assert run.history[-1].metrics["sum"] == total
    assert run.history[-1].version == run.version == 120
    assert [one.version for one in run.history] == sorted(one.version for one in run.history)


def weight_sum(model: nn.Module) -> dict[str, float]:
    return {"sum": sum(value.double().sum().item() for value in model.state_dict().values())}


@pytest.mark.thorough
def test_a_straggler_holds_the_others_under_sync_sgd_only() -> None:
    """Waiting and staleness show each strategy's cost."""
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=1000)
    slow = ps.Cluster((Group(1, Constant(0.08)), Group(2, Constant(0.01))))
    settings: dict[str, Any] = {"workers": 3, "engine": ps.Simulated(slow), "until": ps.Until(seconds=1.5)}
    sync, free = ps.run(train, ps.sync_sgd(), **settings), ps.run(train, ps.async_sgd(), **settings)
    assert min(one.waiting_share for one in sync.workers[1:]) > 0.6
    assert max(one.waiting_share for one in free.workers) < 0.1
    assert free.steps > 1.5 * sync.steps
    assert free.staleness.max >= 4
    assert sync.staleness.max == 0


def test_printing_a_run_shows_its_figures() -> None:
    run = ps.run(partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=5), ps.buffered(2), workers=2)
    words = str(run)
    for part in ("buffered(k=2)", "version 5", "steps/s", "waiting", "staleness", "shared memory", "loss"):
        assert part in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 1, "servers": None}, r"servers=None: a whole number from 1 to 64"),
        ({"workers": 0}, r"workers=0: a whole number from 1 to"),
        ({"workers": 2, "engine": "slurm"}, r"engine='slurm': 'local', ps\.Ray\(\)"),
        ({"workers": 2, "engine": ps.Simulated}, r"engine=<class .*>: 'local', ps\.Ray\(\)"),
        ({"workers": 2, "engine": ps.Cluster.preset("uniform", 2)}, r"'local', ps\.Ray\(\)"),
        ({"workers": 2, "faults": ps.Slow(worker=0, factor=2)}, r"faults=Slow\(.*\): a list of ps\.Slow"),
        ({"workers": 2, "watch": 1}, r"watch=1: a function that takes the state of the run"),
        ({"workers": 2, "runs": True}, r"runs=True: a folder for run folders, such as 'runs'"),
        ({"workers": 2, "strategy": "asynch"}, r"unknown strategy 'asynch'; known: .*sync_sgd.* did you mean"),
        ({"workers": 2, "strategy": ps.first_of(3)}, r"the first 3 of 2 workers will never come; allowed: 1 to 2"),
        ({"workers": 2, "until": ps.Until(accuracy=0.9)}, r"needs evaluate=, a function of the model that returns"),
        (
            {"workers": 2, "evaluate_every": ps.Rounds(5)},
            r"evaluate_every=Rounds\(rounds=5\) needs evaluate=, a function",
        ),
        ({"workers": 2, "faults": [ps.Slow(worker=5, factor=2)]}, r"there are workers 0 to 1"),
        ({"workers": 2, "data": "split"}, r"unknown data 'split'; known: leases, new, shards"),
        ({"workers": 2, "timeout_s": 0}, r"timeout_s=0: a number of seconds above 0"),
        ({"workers": 2, "timeout_s": float("inf")}, r"timeout_s=inf: a number .* at most 1,000,000"),
        ({"workers": 2, "evaluate_every_s": 3e6}, r"evaluate_every_s=3000000\.0: a number .* at most 1,000,000"),
        ({"workers": 2, "evaluate_every_s": True}, r"evaluate_every_s=True: a number of seconds"),
        ({"workers": 2, "evaluate_every": 5}, r"evaluate_every=5: such as ps\.Rounds\(5\)"),
        (
            {"workers": 2, "evaluate_every": ps.Rounds(2), "evaluate_every_s": 1},
            r"evaluate_every and evaluate_every_s=1 both say",
        ),
        ({"workers": 2, "pace": "fast"}, r"pace='fast': seconds a step, such as 0\.02, or ps\.Pace\(step_s=0\.02"),
        ({"workers": 2, "pace": True}, r"Pace\(step_s=True\): step_s must be a number"),
        ({"workers": 2, "pace": -0.02}, r"Pace\(step_s=-0\.02\): step_s must be a number of seconds of at least 0"),
        ({"workers": 2, "pace": float("inf")}, r"Pace\(step_s=inf\): step_s must be a number of seconds"),
        ({"workers": 2, "seed": -1}, r"seed=-1"),
        ({"workers": 2, "seed": 2**63}, r"seed=9223372036854775808: a whole number from 0 to"),
        ({"workers": 2, "on_nonfinite": "ignore"}, r"unknown on_nonfinite 'ignore'; known: discard, raise"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ps.ConfigurationError, ps.StrategyError), match=words):
        ps.run(loops.endless, **{"strategy": ps.async_sgd(), **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"worker": 2},
            r"^unknown argument of ps\.run 'worker'; known: acknowledge, .*; did you mean 'workers'\?$",
        ),
        ({"workers": 2, "num_workers": 2}, r"unknown argument of ps\.run 'num_workers'; .* did you mean 'workers'\?"),
        ({"workers": 2, "gpus": 2}, r"unknown argument of ps\.run 'gpus'; .* did you mean 'workers'\?"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_closest(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(loops.endless, **arguments)
    with pytest.raises(
        ps.ConfigurationError, match=words.replace("run", "join").replace("known: checkpoint", "known: address")
    ):
        ps.join(**arguments)


def test_a_run_without_a_strategy_is_async_sgd() -> None:
    assert ps.run(SMALL, workers=2, engine=SIMULATED).strategy == "async_sgd"


def many(args: Any, model: Any, device: Any = None) -> None:
    """As in PyTorch's examples."""


def decorated(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any) -> None:
        SMALL(args[0])

    return call


@pytest.mark.parametrize("train", [many, partial(many, device="cpu"), lambda: None])
def test_a_training_function_that_does_not_take_a_worker_is_refused(train: Any) -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"^(many|<lambda>)\(.* cannot be the training function: plesio calls it"
    ):
        ps.run(train, workers=2)


@pytest.mark.parametrize("train", [partial(SMALL, steps=2), lambda worker, more=1: SMALL(worker), decorated(many)])
def test_a_training_function_may_have_more_arguments_that_need_no_value(train: Any) -> None:
    assert ps.run(train, workers=2, engine=SIMULATED).version > 0


def test_signatures_are_as_they_are_written() -> None:
    """Editors and type checkers see them; unknown arguments are looked at before."""
    assert list(inspect.signature(ps.run).parameters)[:3] == ["train", "strategy", "workers"]
    assert list(inspect.signature(ps.join).parameters)[-1] == "options"
    assert str(inspect.signature(ps.local_sgd)).startswith("(every: 'int | str | Every' = 16, weigh:")
    assert pickle.loads(pickle.dumps([ps.run, ps.local_sgd])) == [ps.run, ps.local_sgd]


def test_an_unknown_target_metric_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="unknown metric 'acuracy'; known: accuracy; did you mean"):
        ps.run(loops.endless, ps.async_sgd(), workers=1, evaluate=accuracy, until=ps.Until(acuracy=0.9, seconds=20))


class MeasuresThisThenThat:
    """Its metrics take turns."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.calls += 1
        return {"accuracy": 0.1} if self.calls % 2 else {"auc": 0.5 + 0.1 * self.calls}


def test_evaluations_may_return_different_metrics() -> None:
    run = ps.run(
        partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=100),
        ps.async_sgd(),
        workers=1,
        engine=ps.Simulated("uniform"),
        evaluate=MeasuresThisThenThat(),
        evaluate_every_s=1.0,
        until=ps.Until(accuracy=0.9, seconds=4.5),
    )
    assert run.ended == "4.5 seconds were up"
    assert [list(one.metrics) for one in run.history[:3]] == [["accuracy"], ["auc"], ["accuracy"]]


def half(model: nn.Module) -> float:
    return 0.5


class Tires:
    """An evaluation that raises the third time."""

    times = 0

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.times += 1
        if self.times == 3:
            raise ValueError("no more")
        return {"times": float(self.times)}


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["local", "simulated"])
def test_an_evaluation_that_raises_ends_the_run_and_keeps_its_results(
    engine: str | ps.Simulated, tmp_path: Path
) -> None:
    """Message, line, weights, figures and earlier evaluations are in the exception and on disk."""
    train = partial(loops.endless, pause_s=0.002) if engine == "local" else loops.follow
    if engine != "local":
        train = partial(loops.follow, build=loops.mlp, optimizers=partial(optimizer_of, name="SGD"), steps=400)
    options: dict[str, Any] = {"evaluate": Tires(), "evaluate_every_s": 0.2, "until": ps.Until(times=9, seconds=60)}
    with pytest.raises(ps.EvaluateError, match=r"^evaluate raised ValueError: no more; what was trained") as caught:
        ps.run(train, ps.async_sgd(), workers=2, engine=engine, runs=tmp_path, **options)
    run = caught.value.run
    assert run.folder is not None
    assert f"version {run.version}, is in {run.folder}\nTraceback" in str(caught.value)
    assert 'raise ValueError("no more")' in str(caught.value)
    assert [one.metrics for one in run.history] == [{"times": 1.0}, {"times": 2.0}]
    assert [one.what for one in run.incidents] == [
        "evaluate raised ValueError: no more; nothing is evaluated from here on"
    ]
    assert run.ended == "evaluate raised ValueError"
    assert run.version > 0
    kept = load_file(run.folder / "weights.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in run.state_dict.items())
    assert json.loads((run.folder / "summary.json").read_text())["version"] == run.version
    assert "evaluate raised ValueError: no more" in (run.folder / "report.html").read_text()
    assert "no more" not in (run.folder / "metrics.jsonl").read_text()


def leaves(model: nn.Module) -> dict[str, float]:
    raise SystemExit("no such file: labels.csv")


def test_an_evaluation_that_exits_ends_the_run() -> None:
    with pytest.raises(ps.EvaluateError, match=r"evaluate raised SystemExit: no such file: labels\.csv"):
        ps.run(loops.endless, ps.async_sgd(), workers=1, evaluate=leaves, until=ps.Until(seconds=20))


def test_without_a_folder_the_exception_holds_the_run() -> None:
    seen: list[dict[str, float]] = []
    words = r"evaluate returned 0\.5; it is to return names and numbers.* is in this exception's \.run$"
    with pytest.raises(ps.EvaluateError, match=rf"(?s){words}") as caught:
        ps.run(loops.endless, ps.async_sgd(), workers=1, evaluate=half, watch=lambda live: seen.append(live.metrics))
    assert caught.value.run.state_dict
    assert not any(seen), "what was raised is no metric"


@pytest.mark.parametrize("name", ["seconds", "samples", "steps", "accuracy"])
def test_until_refuses_booleans(name: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=rf"Until\({name}=True\)"):
        ps.Until(**{name: True})


def test_a_training_function_without_prepare_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"no worker called worker\.prepare"):
        run = ps.run(loops.idle, ps.async_sgd(), workers=2)
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert run.state_dict == {}


def test_an_unwritable_run_folder_keeps_the_result_in_memory(tmp_path: Path) -> None:
    def block(_: object) -> None:
        for folder in tmp_path.iterdir():
            (folder / "summary.json").mkdir(exist_ok=True)

    train = partial(loops.endless, pause_s=0.002)
    with pytest.warns(RuntimeWarning, match=r"the run folder .* cannot be written: .*run\.state_dict has the weights"):
        run = ps.run(train, ps.async_sgd(), workers=2, runs=tmp_path, watch=block, until=ps.Until(steps=20))
    assert run.version > 0
    assert run.state_dict
    assert {one.name for one in run.folder.iterdir() if one.is_file()} == {
        *("run.toml", "live.jsonl", "journal.bin"), *("weights.safetensors", "metrics.jsonl", "report.html"),
    }  # fmt: skip


def test_on_a_full_disk_the_weights_are_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partly written file is deleted."""

    def full(path: Path, data: bytes) -> int:
        path.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        patch.setattr("plesio.observe.files.write_report", lambda path, *_, **__: full(path, b""))
        with pytest.warns(
            RuntimeWarning, match=r"lacks summary\.json, metrics\.jsonl, report\.html \(No space left on device\); make"
        ):
            run = ps.run(SMALL, "sync_sgd", workers=1, runs=tmp_path, engine=SIMULATED)
    assert {one.name for one in run.folder.iterdir()} == {
        "run.toml",
        "live.jsonl",
        "journal.bin",
        "weights.safetensors",
    }


def test_a_failing_report_keeps_all_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.observe.files.write_report", lambda *_, **__: 1 / 0)
    with pytest.warns(RuntimeWarning, match=r"it lacks report\.html \(ZeroDivisionError: division by zero\)"):
        run = ps.run(SMALL, "sync_sgd", workers=1, runs=tmp_path, engine=SIMULATED)
    assert run.state_dict
    assert {"weights.safetensors", "summary.json", "metrics.jsonl"} < {one.name for one in run.folder.iterdir()}
    assert run.lacking == ["report.html"]
    assert f"writtento{run.folder},withoutreport.html" in "".join(str(run).split()), "wherever a long path is wrapped"


def logs(worker: ps.Worker, name: str) -> None:
    model = nn.Linear(1, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    worker.log(**{name: 1.0})


@pytest.mark.parametrize("engine", ["local", SIMULATED])
def test_metric_names_outside_utf8_are_escaped(engine: Any, tmp_path: Path) -> None:
    name, written = "\ud800x", "\\ud800x"

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {name: 2.0}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = ps.run(partial(logs, name=name), "async_sgd", workers=1, runs=tmp_path, evaluate=evaluate, engine=engine)
    assert run.history[-1].metrics == {written: 2.0}
    assert run.summary.logged[0].metrics == {written: 1.0}
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line[written] for line in lines} == {1.0, 2.0}
    assert f"{written}, evaluated on".replace("\\", "\\\\") in (run.folder / "report.html").read_text()


def logs_in_both_ways(worker: ps.Worker) -> None:
    model = nn.Linear(1, 1)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    worker.log({"val/loss": 2.0, "loss": torch.tensor(1.0)}, seen=3)


def test_a_dict_of_numbers_is_logged_like_keywords() -> None:
    with pytest.warns(RuntimeWarning, match="no worker called step"):
        run = ps.run(logs_in_both_ways, "sync_sgd", workers=1)
    assert run.logged[0].metrics == {"val/loss": 2.0, "loss": 1.0, "seen": 3.0}
    assert {"logged", "history", "steps_per_s", "summary", "state_dict"} <= set(dir(run))


def compiles(worker: ps.Worker) -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 1)), backend="eager")
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.thorough
def test_weights_of_a_compiled_model_have_the_names_of_the_plain_one() -> None:
    assert set(ps.run(compiles, "sync_sgd", workers=1).state_dict) == {"0.weight", "0.bias"}
