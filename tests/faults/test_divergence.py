"""A model that becomes infinite is reported with the versions between, and kept out of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cli.main import main
from plesio.server.checkpoints import latest

BREAKS_AT = 20


def diverge(worker: Any) -> None:
    """One rate is so large that a finite gradient makes an infinite weight."""
    model = nn.Linear(3, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
    for step in range(2 * BREAKS_AT):
        if step == BREAKS_AT:
            optimizer.param_groups[0]["lr"] = 1e38
        optimizer.zero_grad()
        (1e3 * model(torch.ones(4, 3)).sum()).backward()
        optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [pytest.param(ps.sync_sgd(), marks=pytest.mark.thorough), ps.async_sgd()], ids=lambda one: one.name
)
def test_a_diverged_model_is_reported_and_the_last_finite_checkpoint_kept(
    strategy: ps.Strategy, tmp_path: Path
) -> None:
    often = ps.Checkpoint(tmp_path / "kept", every_s=1e-6)
    run = ps.run(diverge, strategy, workers=2, checkpoint=often, runs=tmp_path / "runs", pace=ps.Pace(0.01))
    told = [one.what for one in run.incidents if "diverged" in one.what]
    assert len(told) == 1
    assert "holds a NaN or an infinity at version" in told[0]
    assert "weight" in told[0] or "bias" in told[0]
    assert not all(value.isfinite().all() for value in run.state_dict.values())
    weights = latest(tmp_path / "kept").weights()
    assert all(value.isfinite().all() for value in weights.values())


def judge(model: nn.Module) -> dict[str, float]:
    return {"zero": 0.0}


def test_divergence_is_reported_where_workers_step() -> None:
    run = ps.run(diverge, ps.hogwild(), workers=2, pace=ps.Pace(0.01), evaluate=judge, evaluate_every_s=0.05)
    assert sum("diverged" in one.what for one in run.incidents) == 1


def test_on_nonfinite_raise_ends_a_diverged_run() -> None:
    with pytest.raises(ps.NonFiniteError, match="diverged"):
        ps.run(diverge, ps.sync_sgd(), workers=1, on_nonfinite="raise", until=ps.Until(steps=BREAKS_AT + 1))


def test_divergence_in_virtual_time_is_reported() -> None:
    """And before everything else."""
    run = ps.run(diverge, ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"))
    assert sum("diverged" in one.what for one in run.incidents) == 1
    assert str(run).startswith("The weights are not usable: the model diverged: ")


@pytest.mark.filterwarnings("ignore:.*a contribution held a NaN")
def test_a_run_with_only_nan_is_told_of_as_that_however_long_it_is() -> None:
    """The advice at the end has no step to go by."""

    def train(worker: Any) -> None:
        model = nn.Linear(1, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.steps(80):
            worker.count(samples=1)
            (model(torch.ones(1, 1)).sum() * float("nan")).backward()
            optimizer.step()

    with pytest.raises(ps.NonFiniteError, match=r"nothing was trained: no contribution was finite \(80 with"):
        ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("one-straggler"))


SPOILT = """
import torch
def train(worker):
    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(200):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)) / (0 if step < {bad} else 1)).sum().backward()
        optimizer.step()
"""


@pytest.mark.filterwarnings("ignore:.*a contribution held a NaN")
@pytest.mark.parametrize(("bad", "code"), [(3, 1), (2, 0)])
def test_more_than_one_in_a_hundred_not_finite_is_a_failure_told_first(
    bad: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SPOILT.format(bad=bad))
    assert main(["simulate", "script.py", "--cluster", "uniform", "--workers", "2", "--strategy", "sync_sgd"]) == code
    lines = capsys.readouterr().out.splitlines()
    words = "The run is spoilt: 6 of 400 contributions held a NaN"
    told = [place for place, line in enumerate(lines) if line.startswith(words)]
    figures = next(place for place, line in enumerate(lines) if line.startswith("sync_sgd: finished"))
    assert len(told) == code
    assert all(place < figures for place in told)
