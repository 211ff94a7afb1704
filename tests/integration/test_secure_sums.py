"""Secure sums in whole runs: the weights are those of a plain run, the head sees masks, and what cannot be right is refused."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Restart
from plesio.masking.numbers import trained
from plesio.masking.words import MASKING
from plesio.memory.masked_sums import MaskedSums
from plesio.protocol.worker import Contribution
from plesio.worker.clients import Clients

SITES, ROUNDS = 8, 4
SECURE = ps.SecureSums(threshold=5, clip=0.5)
MACHINES = Cluster((Group(6, Constant(0.1)), Group(2, Constant(0.15))))


def build() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3))


def site(worker: ps.Worker, build: Callable[[], nn.Module] = build, rounds: int = ROUNDS, same: bool = False) -> None:
    """Each site has data of its own; or the `same` as all others."""
    generator = torch.Generator().manual_seed(0 if same else worker.rank)
    inputs = torch.randn(20 if same else 20 + 3 * worker.rank, 20, generator=generator)
    labels = inputs[:, :3].argmax(1)
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while worker.version < rounds:
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        worker.contribute(samples=len(inputs))


def run(
    strategy: ps.Strategy, train: Callable[..., None] = site, machines: Cluster = MACHINES, **settings: Any
) -> ps.Run:
    return ps.run(train, strategy, workers=machines.workers, engine=ps.Simulated(machines), **settings)


def furthest(one: ps.Run, other: ps.Run) -> float:
    return max(float((one.state_dict[name] - other.state_dict[name]).abs().max()) for name in one.state_dict)


@pytest.mark.parametrize(
    "recipe",
    [ps.fedavg, functools.partial(ps.fedopt, "adam", lr=0.01), functools.partial(ps.fedprox, 0.1)],
    ids=["fedavg", "fedopt", "fedprox"],
)
def test_the_weights_are_those_of_a_plain_run(recipe: Callable[..., ps.Strategy]) -> None:
    secure, plain = run(recipe(secure=SECURE)), run(recipe())
    assert furthest(secure, plain) < ROUNDS * SECURE.clip * 2.0**-16
    assert secure.version == plain.version == ROUNDS
    assert secure.samples == plain.samples > 0


def test_in_processes_too_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    first = functools.partial(site, rounds=2)
    settings: dict[str, Any] = {"workers": 3, "checkpoint": ps.Checkpoint(every_s=60.0), "runs": tmp_path}
    strategy = ps.fedavg(secure=ps.SecureSums(threshold=2, clip=0.5))
    half = ps.run(first, strategy, **settings)
    whole = ps.run(site, strategy, **settings, resume=half.folder)
    assert furthest(whole, ps.run(site, ps.fedavg(), workers=3)) < ROUNDS * 0.5 * 2.0**-16
    with pytest.raises(ps.ReplayError, match="nobody knows what a single site sent"):
        ps.replay(half.folder, first)


@pytest.mark.filterwarnings("ignore:the head says that site 1 has a new process")
def test_two_of_eight_sites_die_and_one_comes_back() -> None:
    faults = (Crash(worker=1, at_s=0.5), Crash(worker=7, at_s=0.95), Restart(worker=1, at_s=1.0))
    machines = Cluster(MACHINES.groups, faults=faults)
    secure, plain = run(ps.fedavg(secure=SECURE), machines=machines), run(ps.fedavg(), machines=machines)
    assert [one.worker for one in secure.summary.incidents if "died" in one.what] == [1, 7]
    assert furthest(secure, plain) < ROUNDS * SECURE.clip * 2.0**-16


# What the head sees


def test_nothing_that_the_head_receives_tells_of_a_single_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that comes to it, words and numbers, of sites that all send the same."""
    masked: dict[int, list[np.ndarray]] = defaultdict(list)
    words: list[bytes] = []
    came = MaskedSums.came

    def seen(sums: MaskedSums, worker: int, made: Contribution) -> None:
        words.append(bytes(made.riders[MASKING]))
        if made.aside is not None and made.aside.part == -1:
            masked[worker].append(trained(sums._slots[worker]).view(np.uint32).copy())
        assert not made.absent
        came(sums, worker, made)

    monkeypatch.setattr(MaskedSums, "came", seen)
    start = build().state_dict()
    done = run(ps.fedavg(secure=SECURE), functools.partial(site, rounds=1, same=True))
    moved = torch.cat([(start[name] - done.state_dict[name]).flatten() for name in start]).numpy()
    assert (len(words), len(masked)) == (4 * SITES, SITES)
    numbers = np.concatenate([one for (one,) in masked.values()])
    for one in range(SITES):
        for other in range(one):
            assert (masked[one][0] == masked[other][0]).mean() < 0.01
    counts = np.bincount(numbers >> 27, minlength=32)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 75  # chi-squared of 31: 5 sigma is 71
    whole = b"".join([*words, numbers.tobytes()])
    assert not [number for number in moved if number and number.tobytes() in whole]
    plain = np.rint(moved / SITES / SECURE.clip * 2**30).astype(
        np.int32
    )  # what a site sends without masks, but for the order
    assert not [number for number in plain if abs(number) > 1000 and number.tobytes() in numbers.tobytes()]
    assert furthest(done, run(ps.fedavg(), functools.partial(site, rounds=1, same=True))) < SECURE.clip * 2.0**-16


# What is refused


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (with_batch_norm, "1.running_mean, 1.running_var, 1.num_batches_tracked would be sent as they are"),
        (lambda: nn.Linear(20, 3).double(), "weight, bias would be sent as they are"),
    ],
)
def test_what_is_not_masked_is_refused(build: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=why):
        run(ps.fedavg(secure=SECURE), functools.partial(site, build=build))


def says_no_samples(worker: ps.Worker) -> None:
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
    worker.contribute()


def has_clients(worker: ps.Worker) -> None:
    model, data = build(), torch.utils.data.TensorDataset(torch.zeros(8, 20))
    clients = Clients(data, ps.splits.iid(8, 8), per_round=8, rounds=1, batch_size=1)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), clients)


@pytest.mark.parametrize(
    ("train", "why"),
    [(says_no_samples, "says no samples"), (has_clients, "clients of one process cannot hide from it")],
)
def test_loops_that_cannot_be_summed_are_refused(train: Callable[..., None], why: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=why):
        run(ps.fedavg(secure=SECURE), train)


def test_a_server_that_survives_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="what the sites of a round have agreed on dies with the server"):
        ps.run(site, ps.fedavg(secure=SECURE), workers=8, durability="process")


def test_what_moves_further_than_clip_is_cut_off_and_told() -> None:
    with pytest.warns(RuntimeWarning, match=r"a parameter moved by .* and is cut off at clip=0.0001"):
        done = run(ps.fedavg(secure=ps.SecureSums(5, 1e-4)), functools.partial(site, rounds=1))
    start = build().state_dict()
    assert max(float((start[name] - done.state_dict[name]).abs().max()) for name in start) == pytest.approx(
        1e-4, rel=1e-3
    )


def rests(worker: ps.Worker) -> None:
    """One of the sites has no step to tell of in the second round."""
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for round in range(2):
        for one in model.parameters():
            one.grad = torch.full_like(one, 1.0 + worker.rank)
        if worker.rank != 7 or round == 0:
            optimizer.step()
        worker.contribute(samples=1)


@pytest.mark.filterwarnings("ignore:worker.contribute.samples=1. without an optimizer.step")
def test_a_site_without_a_step_counts_for_nothing() -> None:
    done, plain = run(ps.fedavg(secure=ps.SecureSums(5, 2.0)), rests), run(ps.fedavg(), rests)
    assert done.version == 2
    assert furthest(done, plain) < 2 * 2.0 * 2.0**-16
    assert furthest_from(build().state_dict(), done, 0.45 + 0.4) < 2 * 2.0 * 2.0**-16


def few_have_samples(worker: ps.Worker) -> None:
    """In the first round alone all sites have some."""
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for round in range(3):
        for one in model.parameters():
            one.grad = torch.full_like(one, 0.1)
        optimizer.step()
        worker.contribute(samples=int(worker.rank < 4 or not round))


def test_a_sum_of_few_sites_is_not_opened_and_the_run_goes_on() -> None:
    with pytest.warns(RuntimeWarning, match="4 of 8 sites have samples, and it takes 5"):
        done = run(ps.fedavg(secure=SECURE), few_have_samples)
    assert done.version == 1
    assert any("4 of 8 sites have samples" in one.what for one in done.incidents)


def diverges_once(worker: ps.Worker) -> None:
    """One of the sites sends a NaN in the first round."""
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for round in range(2):
        for one in model.parameters():
            one.grad = torch.full_like(one, float("nan") if worker.rank == 2 and round == 0 else 0.1)
        optimizer.step()
        worker.contribute(samples=1)


def test_a_site_whose_numbers_are_not_finite_is_left_out_of_its_round() -> None:
    with pytest.warns(RuntimeWarning, match="worker 2: a contribution held a NaN"):
        done = run(ps.fedavg(secure=SECURE), diverges_once)
    start = build().state_dict()
    assert done.version == 2
    assert furthest_from(start, done, 0.02) < 2 * SECURE.clip * 2.0**-16


def furthest_from(start: dict[str, torch.Tensor], done: ps.Run, moved: float) -> float:
    return max(float((start[name] - done.state_dict[name] - moved).abs().max()) for name in start)
