"""Two hosts' worth of Ray on this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver="RAY_TALK" in os.environ)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)
