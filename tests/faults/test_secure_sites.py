"""Secure sums between sites over TCP, some of which are killed: the sum is right, or its round given up, and the next goes on."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from faults.test_remote import meanwhile, until
from plesio.secure_sums.site import Site
from support import remote
from support.long_forms import but_thorough

SITES, ROUNDS, FAULT_AT = 5, 4, 1
SECURE = ps.SecureSums(threshold=3, clip=0.5)
METHODS = {"shares": "shares", "sum": "mask", "open": "open"}
"""What a site does just before it speaks in a phase."""


def steady(worker: ps.Worker, site: int, rounds: int = ROUNDS, pause_s: float = 0.0) -> None:
    """The weights of site k move by (k + 1) / 100 a round, on k + 1 samples."""
    model = torch.nn.Linear(20, 50, bias=False)
    torch.nn.init.zeros_(model.weight)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    while worker.version < rounds:
        time.sleep(pause_s)
        model.weight.grad = torch.full_like(model.weight, (site + 1) / 100)
        optimizer.step()
        worker.contribute(samples=site + 1)


def mean(sites: set[int]) -> float:
    return sum((k + 1) / 100 * (k + 1) for k in sites) / sum(k + 1 for k in sites)


def dies_in(phase: str) -> None:
    """In this process a site is killed, in the second round, just before it speaks in that phase."""
    method, rounds = METHODS[phase], iter(range(ROUNDS))
    real: Callable[..., Any] = getattr(Site, method)

    def killed(*given: Any) -> Any:
        if next(rounds) == FAULT_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given)

    setattr(Site, method, killed)


def weight(done: ps.Run) -> float:
    (value,) = done.state_dict["weight"].unique().tolist()
    return -value


@pytest.mark.thorough
@pytest.mark.parametrize("phase", but_thorough(METHODS, {"shares"}))
def test_sites_that_are_killed_in_a_phase_are_in_the_sum_if_their_numbers_came(phase: str, tmp_path: Path) -> None:
    killed = {1, 3}
    with remote.head(rejoin_s=30.0) as head:
        for site in range(SITES):
            enter = functools.partial(dies_in, phase) if site in killed else lambda: None
            head.fork(functools.partial(steady, site=site), enter=enter, rank=site)
        done = head.run(ps.fedavg(secure=SECURE), workers=SITES, runs=tmp_path)
        assert head.end() == [-signal.SIGKILL if site in killed else 0 for site in range(SITES)]
    everybody, left = set(range(SITES)), set(range(SITES)) - killed
    came = everybody if phase == "open" else left
    expected = FAULT_AT * mean(everybody) + mean(came) + (ROUNDS - FAULT_AT - 1) * mean(left)
    assert weight(done) == pytest.approx(expected, abs=ROUNDS * 0.5 * 2**-16)
    with pytest.raises(ps.ReplayError, match="nobody knows what a single site sent"):
        ps.replay(done.folder, functools.partial(steady, site=0))


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["sum", "open"])
def test_a_round_below_the_threshold_is_given_up_aloud_and_the_next_one_goes_on(phase: str, tmp_path: Path) -> None:
    """Three of five sites die, and others take their seats, with keys of their own."""
    killed = {0, 2, 3}
    with remote.head(rejoin_s=30.0) as head:
        for site in range(SITES):
            enter = functools.partial(dies_in, phase) if site in killed else lambda: None
            head.fork(functools.partial(steady, site=site, pause_s=0.2), enter=enter, rank=site)

        def replace() -> None:
            until(lambda: "was given up" in head.warnings() or phase == "open")
            until(lambda: Path(f"/proc/{head.pids[0]}/stat").read_text().split()[2] == "Z")
            for site in killed:
                head.fork(functools.partial(steady, site=site, pause_s=0.2), rank=site)

        with meanwhile(replace):
            done = head.run(ps.fedavg(secure=SECURE), workers=SITES, runs=tmp_path)
        assert head.end() == [-signal.SIGKILL if site in killed else 0 for site in range(SITES)] + [0] * len(killed)
    incidents = [one.what for one in done.summary.incidents]
    said = {
        "sum": "2 of 5 sites sent their numbers, and it takes 3",
        "open": "2 of 5 sites opened the sum, and it takes 3",
    }
    assert any(said[phase] in one for one in incidents), incidents
    rounds = [mean({1, 4} | more) for more in ({0}, {2}, {3}, {0, 2}, {0, 3}, {2, 3}, killed)]
    moved = combinations_with_replacement(rounds, ROUNDS - FAULT_AT - (phase == "open"))
    assert any(
        weight(done) == pytest.approx(mean({1, 4} | killed) + sum(one), abs=ROUNDS * 0.5 * 2**-16) for one in moved
    )


@pytest.mark.slow
def test_a_site_that_freezes_in_a_round_is_named_and_the_round_goes_on_without_it(tmp_path: Path) -> None:
    def freezes() -> None:
        real = Site.mask

        def frozen(*given: Any) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            real(*given)

        Site.mask = frozen  # type: ignore[method-assign]

    with remote.head(rejoin_s=30.0) as head:
        for site in range(SITES):
            head.fork(functools.partial(steady, site=site), enter=freezes if site == 2 else lambda: None, rank=site)
        done = head.run(ps.fedavg(secure=SECURE), workers=SITES, runs=tmp_path, timeout_s=4.0)
        os.kill(head.pids[2], signal.SIGKILL)
        head.end()
    assert weight(done) == pytest.approx(ROUNDS * mean({0, 1, 3, 4}), abs=ROUNDS * 0.5 * 2**-16)
    assert any("worker 2" in one.what for one in done.summary.incidents)
