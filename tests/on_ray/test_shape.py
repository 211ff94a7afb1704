"""What plesio uses of Ray's developer API is as it was: where Ray changes it, this says what."""

from __future__ import annotations

import inspect

import pytest

import plesio as ps

pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

WHERE = "src/plesio/launch/remote/ray_backend.py is what to adapt"


def test_ray_train_has_what_the_backend_uses() -> None:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
    from ray.train.v2._internal.execution.controller.controller import TrainController
    from ray.train.v2._internal.execution.worker_group import ReplicaGroup, WorkerGroup

    assert Backend.has_replica_groups is False, (
        f"Backend.has_replica_groups, by which a worker is replaced alone; {WHERE}"
    )
    for name in ("on_start", "on_shutdown"):
        uses = ["self", "worker_group", "backend_config"]
        assert list(inspect.signature(getattr(Backend, name)).parameters) == uses, f"Backend.{name}; {WHERE}"
    for name in ("backend_cls", "train_func_context"):
        assert isinstance(inspect.getattr_static(BackendConfig, name), property), f"BackendConfig.{name}; {WHERE}"
    for group in (WorkerGroup, ReplicaGroup):
        assert callable(group.execute), f"{group.__name__}.execute; {WHERE}"
        assert callable(group.__len__), f"len({group.__name__}); {WHERE}"
        assert callable(group.get_workers), f"{group.__name__}.get_workers; {WHERE}"
    assert "before_replica_group_shutdown" in inspect.getsource(ReplicaGroup.shutdown), (
        f"who calls on_shutdown before a worker is replaced; {WHERE}"
    )
    assert "_manages_replica_groups" in inspect.getsource(TrainController), f"who replaces single workers; {WHERE}"
    assert "on_start" in inspect.getsource(BackendSetupCallback.after_execution_group_start), (
        f"who calls on_start; {WHERE}"
    )


def test_rays_trainer_takes_the_backend() -> None:
    taken = inspect.signature(ps.ray.DataParallelTrainer.__init__).parameters
    for name in ("train_loop_per_worker", "backend_config", "scaling_config", "run_config"):
        assert name in taken, f"DataParallelTrainer({name}=); {WHERE}"


@pytest.mark.parametrize("option", ["engine", "faults", "pace", "watch"])
def test_what_is_impossible_on_ray_is_refused(option: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=f"{option}= is not possible on Ray"):
        ps.ray.PlesioConfig("async_sgd", **{option: 1})


def test_options_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(ps.StrategyError, match="async_sdg"):
        ps.ray.PlesioConfig("async_sdg")
