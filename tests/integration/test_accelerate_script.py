"""Accelerate's own checks (`accelerate test`), in lock step under plesio's Accelerator."""

from __future__ import annotations

import inspect
from functools import partial

import pytest

import plesio as ps
from support.accelerate_script import CHECKS, NOT_RUN, STAGES, checks, training

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STRATEGIES = ["allreduce", "sync_sgd"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_samplers_and_collectives(strategy: str) -> None:
    pytest.importorskip("accelerate")
    assert ps.run(checks, strategy, workers=2).returned == [list(CHECKS)] * 2


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("stage", "seedable"), [("plain", False), ("plain", True), ("bf16", True), ("fp16", True)])
def test_training_gives_the_weights_of_one_process(stage: str, seedable: bool, strategy: str) -> None:
    pytest.importorskip("accelerate")
    made, other = ps.run(partial(training, stage=stage, seedable=seedable), strategy, workers=2).returned
    if stage not in made:
        pytest.skip(f"Accelerate has no {stage} on this machine")
    assert tuple(made) == tuple(other) == STAGES[: len(made)]


def test_batches_cut_among_processes_are_refused() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(
        ps.PlesioError, match="Accelerate with split_batches=True: plesio gives each worker whole batches"
    ):
        ps.run(partial(training, stage="split_batches", seedable=False), "allreduce", workers=2)


def test_each_check_of_the_script_is_run_or_has_a_reason_why_not() -> None:
    script = pytest.importorskip("accelerate.test_utils.scripts.test_script")
    called = inspect.getsource(script.main).partition("\n")[2]
    there = {name for name, one in vars(script).items() if inspect.isfunction(one) and f" {name}(" in called}
    there -= {name for name, one in vars(script).items() if getattr(one, "__module__", "") != script.__name__}
    assert there == {*CHECKS, *NOT_RUN, "training_check"}
