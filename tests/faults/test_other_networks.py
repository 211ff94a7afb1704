"""Workers in a network of their own, which a link joins with the head's."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from faults.test_remote import begun, joined, meanwhile, same, until
from faults.test_remote_chaos import SAMPLES, visiting, visits
from plesio.transport.certificates import make_certificates
from plesio.transport.limits import LEASE_S
from support import remote
from support.namespaces import OtherHost, other_host
from support.replayed import chancy


@pytest.fixture
def other() -> Iterator[OtherHost]:
    with other_host() as one:
        yield one


def secured(insecure: bool, other: OtherHost, folder: Path) -> dict[str, Any]:
    """How both sides talk."""
    return {"insecure": True} if insecure else {"certs": make_certificates(folder / "certs", [other.address])[0]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "insecure"),
    [("sync_sgd", False), *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("sync_sgd",))],
)
def test_a_worker_of_another_network_gives_the_same_bits(
    strategy: str, insecure: bool, other: OtherHost, tmp_path: Path
) -> None:
    """Nobody says which of the two is on the head's host."""
    train, how = functools.partial(chancy, epochs=1), secured(insecure, other, tmp_path)
    with remote.head(far=False, host=other.address, **how) as head:
        head.fork(train, rank=0, **how)
        head.fork(train, rank=1, enter=other.enter, **how)
        done = head.run(strategy, workers=2)
        assert head.end() == [0, 0]
    assert done.version > 0
    assert same(done, ps.run(train, strategy, workers=2))


@pytest.mark.slow
@pytest.mark.parametrize("insecure", [False, True], ids=["tls", "plain"])
@pytest.mark.parametrize(("down_s", "incarnation"), [(2.0, 1), (LEASE_S + 1.5, 2)])
def test_a_link_that_is_down_loses_and_doubles_nothing(
    down_s: float, incarnation: int, insecure: bool, other: OtherHost, tmp_path: Path
) -> None:
    """For less than the lease nobody notices; else the worker takes its seat again."""
    train, how = functools.partial(visiting, into=tmp_path, epochs=8), secured(insecure, other, tmp_path)
    with remote.head(far=False, rejoin_s=60.0, host=other.address, **how) as head:
        head.fork(train, rank=0, **how)
        head.fork(train, rank=1, enter=other.enter, **how)

        def disconnect() -> None:
            until(lambda: begun(tmp_path, 2))
            other.connect(False)
            time.sleep(down_s)
            other.connect(True)

        with meanwhile(disconnect):
            done = head.run(ps.async_sgd("plain"), workers=2, runs=tmp_path / "runs")
        assert head.end() == [0, 0]
    assert torch.equal(visits(done), torch.full((SAMPLES,), 8.0))
    assert done.batches_unvisited == 0
    assert joined(done)[2:] == [(1, number) for number in range(2, incarnation + 1)]
