"""Islands of Ray's workers: two hosts' worth of Ray, and ranks that are killed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from support import joined_islands as islands

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
RANKS = 2


def on_ray(train: Any, strategy: ps.Strategy, placement: str = "PACK") -> ps.Run:
    ray.cloudpickle.register_pickle_by_value(islands)
    engine = ps.Ray(placement=placement)
    return ps.run(train, strategy, workers=2, ranks=RANKS, seed=3, timeout_s=120.0, engine=engine)


def test_islands_on_ray_have_the_bits_of_islands_here(cluster: Any) -> None:
    """Placed so that the ranks of an island are on two hosts."""
    train = partial(islands.train, inside="fsdp")
    run = on_ray(train, ps.local_sgd(4), placement="SPREAD")
    here = ps.run(train, ps.local_sgd(4), workers=2, ranks=RANKS, seed=3)
    assert (run.version, run.steps, run.samples) == (here.version, here.steps, here.samples)
    assert run.state_dict.keys() == here.state_dict.keys()
    assert all(torch.equal(value, here.state_dict[name]) for name, value in run.state_dict.items())


def test_a_killed_rank_has_its_island_replaced_once(cluster: Any, tmp_path: Path) -> None:
    run = on_ray(partial(islands.train_or_die, folder=tmp_path, victim=1), ps.async_local_sgd(2))
    assert [one.what.split(";")[0] for one in run.summary.incidents if "died" in one.what] == ["worker 1 died"]
    assert any("is back" in one.what for one in run.summary.incidents)
    assert run.samples == islands.EPOCHS * islands.SAMPLES, "each batch was folded once"
    assert all(one.folded for one in run.summary.workers)


def whole(worker: ps.Worker) -> None:
    raise AssertionError("it is not to come to that")


def test_ray_workers_that_make_no_whole_islands_are_refused(cluster: Any) -> None:
    from ray.train import ScalingConfig

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    trainer = ps.ray.DataParallelTrainer(
        whole,
        backend_config=ps.ray.PlesioConfig("async_sgd", ranks=RANKS),
        scaling_config=ScalingConfig(num_workers=3),
    )
    with pytest.raises(Exception, match="num_workers=3 of Ray are no whole islands of ranks=2"):
        trainer.fit()
