"""Models that are exchanged in parts, by real processes on other hosts (over TCP) and on this one."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import plesio as ps
from plesio.strategy import Strategy
from support import remote
from support.replayed import chancy

pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
LOCK_STEP = [
    ps.local_sgd(4, fragments=2, overlap=False),
    ps.diloco(6, fragments=3, codec="int4", overlap=False),
    ps.diloco(4, fragments=2, overlap=True),
]


def same(one: ps.Run, other: ps.Run) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", LOCK_STEP[:2], ids=lambda one: one.name)
def test_remote_workers_give_the_same_bits_as_local_ones(strategy: Strategy) -> None:
    train = functools.partial(chancy, epochs=1)
    local, far = ps.run(train, strategy, workers=3), remote.run(train, strategy, workers=3)
    assert far.version == local.version
    assert far.summary.bytes == local.summary.bytes
    assert same(far, local)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy", [*LOCK_STEP[2:], ps.async_local_sgd(4, fragments=2, codec="int8", overlap=True)], ids=str
)
def test_a_run_of_remote_workers_replays(strategy: Strategy, tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=1)
    far = remote.run(train, strategy, workers=2, runs=tmp_path)
    assert far.summary.batches_unvisited == 0
    assert ps.replay(far.folder, train).identical
