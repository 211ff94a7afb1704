"""Where figures go while a run is under way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.observe.sinks import feed
from support import loops


def train(worker: ps.Worker) -> None:
    loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=60)


def evaluate(model: torch.nn.Module) -> dict[str, float]:
    return {"accuracy": 0.5}


def run(*sinks: Any, **options: Any) -> ps.Run:
    given = {"workers": 2, "evaluate": evaluate, "evaluate_every_s": 0.02, "pace": 0.005, "timeout_s": 30, **options}
    return ps.run(train, ps.async_sgd(), sinks=sinks, **given)


class Kept:
    """Keeps what it is told."""

    def __init__(self, on: Mapping[str, Callable[[], object]] | None = None) -> None:
        self.on = on or {}
        self.heard: list[Any] = []
        self.threads: set[int] = set()

    def _hears(self, what: str, *heard: Any) -> None:
        self.on.get(what, lambda: None)()
        self.threads.add(threading.get_ident())
        self.heard.append((what, *heard))

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._hears("begin", name, settings)

    def tell(self, told: ps.sinks.Told) -> None:
        self._hears("tell", told)

    def end(self, summary: Any) -> None:
        self._hears("end", summary)


def fails() -> None:
    raise OSError("no room on the disk")


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["real", "simulated"])
def test_a_sink_hears_the_beginning_the_figures_and_the_end(engine: Any) -> None:
    sink = Kept()
    options = {"pace": None, "evaluate_every_s": 0.5} if engine != "local" else {}
    done = run(sink, engine=engine, **options)
    (_, name, settings), *told, (_, summary) = sink.heard
    if engine != "local":  # each evaluation is told, however fast they come
        assert {one.time_s for one in done.history} <= {one.time_s for _, one in told}
    assert name.endswith("-async_sgd")
    assert settings["run"]["workers"] == 2
    assert summary.steps == done.steps == 120
    assert [one for one, *_ in told] == ["tell"] * len(told)
    last = told[-1][1]
    assert last.steps == done.steps
    assert {"accuracy", "loss", "run/steps"} <= last.numbers.keys()
    assert sink.threads == {*sink.threads} - {threading.get_ident()}


def test_a_sink_that_raises_is_dropped_with_one_warning() -> None:
    """It leaves no thread."""
    good, bad = Kept(), Kept({"tell": fails})
    with pytest.warns(
        RuntimeWarning, match="sink Kept was dropped: OSError: no room on the disk; training goes on"
    ) as seen:
        assert run(bad, good).steps == 120
    assert len([one for one in seen if "was dropped" in str(one.message)]) == 1
    assert [one for one, *_ in bad.heard] == ["begin"]
    assert good.heard[-1][0] == "end"
    assert not [one for one in threading.enumerate() if one.name == "plesio sink Kept"]


@pytest.mark.thorough
def test_a_sink_that_hangs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "END_S", 0.2)
    goes_on = threading.Event()
    with pytest.warns(RuntimeWarning, match="it did not end within 0.2 s"):
        assert run(Kept({"begin": goes_on.wait})).steps == 120
    goes_on.set()


def test_a_sink_that_hangs_in_a_call_is_dropped_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "HANGS_S", 0.1)
    goes_on = threading.Event()
    with pytest.warns(RuntimeWarning, match="it hangs: a call has taken 0.1 s; training goes on"):
        assert run(Kept({"begin": goes_on.wait})).steps == 120
    goes_on.set()


@pytest.mark.thorough
def test_a_slow_sink_hears_less_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "WAITING_MAX", 2)
    slow, quick = Kept({"tell": lambda: time.sleep(0.2)}), Kept()
    run(slow, quick)
    assert 2 < len(slow.heard) < len(quick.heard)
    assert slow.heard[-1][0] == "end"


@pytest.mark.thorough
def test_a_sink_with_many_calls_waiting_is_told_the_last_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "END_S", 2.0)
    slow = Kept({"tell": lambda: time.sleep(0.3)})
    done = run(slow, engine=ps.Simulated("uniform"), pace=None, evaluate_every_s=0.1)  # tens of evaluations, at once
    assert slow.heard[-2][1].steps == done.steps
    assert slow.heard[-1][0] == "end"


def test_a_run_that_fails_ends_its_sinks() -> None:
    sink = Kept()
    with pytest.raises(ps.WorkerError):
        ps.run(fails_at_once, ps.async_sgd(), workers=1, sinks=[sink], timeout_s=30)
    assert sink.heard[-1] == ("end", None)


def fails_at_once(worker: ps.Worker) -> None:
    raise ValueError("no data")


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"sinks: 'tb' is no sink: it needs begin\(name, settings\)"):
        run("tb")
    with pytest.raises(ps.ConfigurationError, match=r"pip install 'plesio\[tensorboard\]'"):
        feed.needs("TensorBoard", "no_such_package", "tensorboard")


def test_tensorboard_has_curves_by_samples(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = run(ps.sinks.TensorBoard(tmp_path))
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert events.Scalars("accuracy")[-1].value == 0.5
    assert 0 < events.Scalars("run/steps")[-1].step <= done.steps
    assert events.Scalars("run/ideal_share")[-1].value == pytest.approx(done.ideal_share)


@pytest.mark.thorough
def test_wandb_logs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    run(ps.sinks.WandB("plesio", mode="offline", dir=str(tmp_path)))
    until = time.monotonic() + 60  # W&B's own service writes the file, now and then after `finish` returned
    while not any(b"accuracy" in file.read_bytes() for file in tmp_path.rglob("*.wandb")):
        assert time.monotonic() < until, f"no accuracy in {list(tmp_path.rglob('*'))}"
        time.sleep(0.1)
    wandb.teardown()  # its service would outlive the test, in whose process others look for processes that were left


@pytest.mark.thorough
def test_mlflow_logs_into_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    done = run(ps.sinks.MLflow("digits", (tmp_path / "store").as_uri()))
    client = MlflowClient((tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.data.params["run.workers"] == "2"
    assert kept.data.metrics["accuracy"] == 0.5
    assert (kept.info.status, kept.data.tags["ended"]) == ("FINISHED", done.ended)


def test_prometheus_finds_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "there" / "plesio.prom"
    run(ps.sinks.Prometheus(file))
    lines = file.read_text().splitlines()
    assert lines[lines.index("# TYPE plesio_accuracy gauge") + 1].endswith('-async_sgd"} 0.5')
    assert all(line.startswith(("# HELP plesio_", "# TYPE plesio_", "plesio_")) for line in lines)
    assert [one.name for one in file.parent.iterdir()] == ["plesio.prom"]


def test_perfetto_has_a_lane_for_each_worker(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = run(ps.sinks.Perfetto(file), faults=[ps.Kill(worker=1, after_s=0.1)])
    events = json.loads(file.read_text())["traceEvents"]
    lanes = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert lanes == {"worker 0", "worker 1"}
    computed = (
        sum(one["dur"] for one in events if one["ph"] == "X" and one["name"] == "compute" and one["tid"] == 0) / 1e6
    )
    assert computed == pytest.approx(done.workers[0].compute_s, rel=0.1)
    assert any(one["ph"] == "i" and "worker 1 died" in one["name"] for one in events)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: ps.sinks.Prometheus(folder / "plesio.prom"),
        lambda folder: ps.sinks.TensorBoard(folder),
        lambda folder: ps.sinks.OpenTelemetry(),
        lambda folder: ps.sinks.MLflow("odd", (folder / "store").as_uri()),
    ],
    ids=["prometheus", "tensorboard", "opentelemetry", "mlflow"],
)
def test_odd_names_of_metrics_are_taken(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    metrics = {"top-5 accuracy": 0.5, "top@5": 0.4, "top 5": 0.3, "a/b": 0.2, "\u00e9": float("nan")}
    run(make(tmp_path), engine=ps.Simulated("uniform"), pace=None, evaluate=lambda model: metrics, evaluate_every_s=1.0)
    if (file := tmp_path / "plesio.prom").exists():
        kinds = [line for line in file.read_text().splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len({*kinds})
