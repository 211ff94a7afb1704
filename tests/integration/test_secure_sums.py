"""Secure sums in whole runs: the weights are those of a plain run, the head sees masks, and what cannot be right is refused."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from plesio.cli.settings import strategy_of
from plesio.cluster import Cluster, Constant, Crash, Group, Restart
from plesio.memory.masked_sums import MaskedSums
from plesio.protocol.worker import Contribution
from plesio.secure_sums.noise import NORMALS
from plesio.secure_sums.numbers import trained
from plesio.secure_sums.site import Site
from plesio.secure_sums.words import MASKING, AllKeys, RoundOpened, Shares, SitesCame
from plesio.strategy import Strategy
from plesio.strategy.answers import BySamples
from plesio.worker.budget import Budget
from plesio.worker.clients.description import Clients
from support import loops

SITES, ROUNDS = 8, 4
SECURE = ps.SecureSums(threshold=5, clip=0.5)
PRIVACY = ps.Privacy(1.0, 1.0, 1e-5)
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
            loops.descend(optimizer, cross_entropy(model(inputs), labels))
        worker.contribute(samples=len(inputs))


def run(
    strategy: ps.Strategy, train: Callable[..., None] = site, machines: Cluster = MACHINES, **settings: Any
) -> ps.Run:
    return ps.run(train, strategy, workers=machines.workers, engine=ps.Simulated(machines), **settings)


def furthest(one: ps.Run, other: ps.Run) -> float:
    return max(float((one.state_dict[name] - other.state_dict[name]).abs().max()) for name in one.state_dict)


@pytest.mark.few(1)
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


@pytest.mark.thorough
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


@pytest.mark.filterwarnings(
    "ignore:what site 2 sealed for this one cannot be read", "ignore:the secure sum of this round"
)
@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ("keys", "site 2 is left out of each round in which it says this: the keys of site 2 are not signed"),
        ("shares", "site 2 lies, and is left out from here on: it is at odds with the sites 0, 1, 3, 4"),
        ("open", "site 2 lies, and is left out from here on: it opens a sum with other parts than it was given"),
    ],
)
def test_a_site_that_lies_ends_nobody_elses_script(lies: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, shares, opened = Site.__init__, Site.shares, Site.open

    def keys_of_another(self: Site, *what: Any) -> None:
        made(self, *what)
        if self.me == 2:
            self.keys = msgspec.structs.replace(self.keys, signature=bytes(64))

    def sealed_nothing(self: Site, told: AllKeys) -> Shares:
        said = shares(self, told)
        for site in said.sealed.keys() - {2} if self.me == 2 else ():
            said.sealed[site] = bytes(146)
        return said

    def wrong_parts(self: Site, told: SitesCame) -> RoundOpened:
        said = opened(self, told)
        return said if self.me != 2 else RoundOpened(dict.fromkeys(said.seeds, bytes(33)), said.keys)

    name, lie = {
        "keys": ("__init__", keys_of_another), "shares": ("shares", sealed_nothing), "open": ("open", wrong_parts),
    }[lies]  # fmt: skip
    monkeypatch.setattr(Site, name, lie)
    done = run(ps.fedavg(secure=SECURE))
    assert done.version == ROUNDS
    assert [one.left for one in done.workers] == ["finished"] * SITES
    assert words in [one.what[: len(words)] for one in done.incidents]


@pytest.mark.filterwarnings("ignore:what site 2 sealed for this one cannot be read")
def test_a_site_that_one_other_lies_to_sits_all_rounds_out_and_its_script_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = Site.shares

    def sealed_nothing(self: Site, told: AllKeys) -> Shares:
        said = shares(self, told)
        if self.me == 2 and 0 in said.sealed:
            said.sealed[0] = bytes(146)
        return said

    monkeypatch.setattr(Site, "shares", sealed_nothing)
    done = run(ps.fedavg(secure=SECURE))
    assert done.version == ROUNDS
    assert [one.left for one in done.workers] == ["finished"] * SITES
    assert [one.what for one in done.incidents] == ["site 0 cannot read what site 2 sealed for it: one of the two lies"]


# What the head sees


def test_nothing_that_the_head_receives_tells_of_a_single_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that comes to it, words and numbers, of sites that all send the same."""
    masked: dict[int, list[np.ndarray]] = defaultdict(list)
    words: list[bytes] = []
    told = MaskedSums.told

    def seen(sums: MaskedSums, worker: int, made: Contribution) -> None:
        words.append(bytes(made.attachments[MASKING]))
        if made.aside is not None and made.aside.part == -1:
            masked[worker].append(trained(sums._slots[worker]).view(np.uint32).copy())
        assert not made.absent
        told(sums, worker, made)

    monkeypatch.setattr(MaskedSums, "told", seen)
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
    # What a site sends without masks, but for the order of tensors. Of two numbers, for one may be there by chance.
    plain = np.rint(moved / SITES / SECURE.clip * 2**30).astype(np.int32)
    assert not [two for two in sliding_window_view(moved, 2) if all(two) and two.tobytes() in whole]
    assert not [two for two in sliding_window_view(plain, 2) if min(abs(two)) > 1000 and two.tobytes() in whole]
    assert furthest(done, run(ps.fedavg(), functools.partial(site, rounds=1, same=True))) < SECURE.clip * 2.0**-16


# What is refused


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ps.fedavg(first=3, secure=SECURE), "what is folded could be a single site's"),
        (lambda: replace(ps.fedbuff(3), send=ps.fedavg(secure=SECURE).send), "what is folded could be a single site's"),
        (
            lambda: ps.fedavg(privacy=ps.Privacy(1.0, 1.0, 1e-5, 10), secure=SECURE),
            "per_round is of clients, and sites are in each round",
        ),
        (lambda: ps.fedavg(privacy=PRIVACY), "Privacy without per_round is for sites"),
        (
            lambda: replace(ps.fedavg(secure=SECURE, privacy=PRIVACY), weigh=BySamples()),
            r"sites weigh before they add up; use weigh=Equal\(\)",
        ),
        (
            lambda: ps.fedavg(secure=SECURE, privacy=PRIVACY, codec="int8"),
            "masks cancel in sums of whole numbers, which no codec keeps",
        ),
        (
            lambda: ps.fedavg(secure=SECURE, privacy=PRIVACY, combine="median"),
            "leave codec, privacy and secure sums out",
        ),
        (lambda: ps.fedavg(codec="int8", secure=SECURE), "which no codec keeps"),
        (lambda: ps.fedavg(codec=ps.strategy.answers.TopK(0.1), secure=SECURE), "which no codec keeps"),
        (lambda: ps.fedavg(overlap=True, secure=SECURE), "leave overlap out"),
        (lambda: replace(ps.diloco(), send=ps.fedavg(secure=SECURE).send), "secure sums are over sites"),
        (lambda: ps.fedavg(secure=5), "secure must be ps.SecureSums"),
        (lambda: ps.SecureSums(1, 1.0), "the sum of one site is what it sent"),
        (lambda: ps.SecureSums(5, 0.0), "clip must be a number above 0"),
        (lambda: ps.fedavg(secure=SECURE).check_workers(4), "4 sites, and a round takes 5"),
        (lambda: ps.fedavg(secure=SECURE).check_workers(10), "threshold=5 is not more than half of them"),
        (lambda: strategy_of("fedavg(secure=5)", 8), "write THRESHOLD:CLIP, such as secure=5:0.1"),
    ],
)
def test_strategies_that_would_show_a_site_are_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ps.StrategyError, match=why):
        make()


def test_as_words_of_the_command_line_and_as_data() -> None:
    secure = strategy_of("fedopt(secure=5:0.5)", 8)
    assert secure == ps.fedopt(secure=SECURE)
    assert ps.Strategy.from_data(secure.name, secure.as_data()) == secure


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


def moves(
    worker: ps.Worker,
    by: Callable[[int, int], float | None] = lambda rank, version: 0.1,
    samples: Callable[[int, int], int | None] = lambda rank, version: 1,
    rounds: int = 2,
    log: bool = False,
) -> None:
    """Every number has the gradient `by`, by rank and round; None: no step."""
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for version in range(rounds):
        if (gradient := by(worker.rank, version)) is not None:
            for one in model.parameters():
                one.grad = torch.full_like(one, gradient)
            optimizer.step()
        worker.contribute(samples=samples(worker.rank, version))
        if log:
            worker.log(loss=1.0)


says_no_samples = functools.partial(moves, samples=lambda rank, version: None)
rests = functools.partial(moves, by=lambda rank, version: None if rank == 7 and version else 1.0 + rank)
few_have_samples = functools.partial(moves, samples=lambda rank, version: int(rank < 4 or not version), rounds=3)
diverges_once = functools.partial(moves, by=lambda rank, version: 0.1 if rank != 2 or version else float("nan"))
"""Site 7 has no step to tell of in the second round; all sites have samples in the first round alone; site 2 sends a NaN in the
first."""


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


@pytest.mark.filterwarnings("ignore:worker.contribute.samples=1. without an optimizer.step")
def test_a_site_without_a_step_counts_for_nothing() -> None:
    done, plain = run(ps.fedavg(secure=ps.SecureSums(5, 2.0)), rests), run(ps.fedavg(), rests)
    assert done.version == 2
    assert furthest(done, plain) < 2 * 2.0 * 2.0**-16
    assert furthest_from(build().state_dict(), done, 0.45 + 0.4) < 2 * 2.0 * 2.0**-16


def test_a_sum_of_few_sites_is_not_opened_and_the_run_goes_on() -> None:
    with pytest.warns(RuntimeWarning, match="4 of 8 sites have samples, and it takes 5"):
        done = run(ps.fedavg(secure=SECURE), few_have_samples)
    assert done.version == 1
    assert any("4 of 8 sites have samples" in one.what for one in done.incidents)


def test_a_site_whose_numbers_are_not_finite_is_left_out_of_its_round() -> None:
    with pytest.warns(RuntimeWarning, match="worker 2: a contribution held a NaN"):
        done = run(ps.fedavg(secure=SECURE), diverges_once)
    start = build().state_dict()
    assert done.version == 2
    assert furthest_from(start, done, 0.02) < 2 * SECURE.clip * 2.0**-16


def furthest_from(start: dict[str, torch.Tensor], done: ps.Run, moved: float) -> float:
    return max(float((start[name] - done.state_dict[name] - moved).abs().max()) for name in start)


# With noise

NORM = 5.0
CUT = NORM / 771**0.5  # as far as each of the 771 parameters moves, if all do alike


def private(noise: float = 1.0, **settings: Any) -> ps.Strategy:
    privacy = ps.Privacy(**{"clip": NORM, "noise": noise, "delta": 1e-3, **settings})
    return ps.fedavg(secure=ps.SecureSums(5, 2.0), privacy=privacy)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.secure_sums.noise.normals", lambda key: repeat(np.zeros(NORMALS)))


@pytest.mark.usefixtures("no_noise")
@pytest.mark.filterwarnings("ignore:worker.contribute.samples=1. without an optimizer.step")
def test_private_sites_count_alike_and_one_that_rests_takes_part() -> None:
    """Site k moves by (k + 1) / 10, and all but the first further than the norm; nothing tells what they trained on."""
    done = run(private(), rests)
    assert furthest_from(build().state_dict(), done, (0.1 + 7 * CUT) / 8 + (0.1 + 6 * CUT) / 8) < 1e-5
    assert (done.version, done.samples, done.steps) == (2, 2 * SITES, 2 * SITES)


@pytest.mark.usefixtures("no_noise")
def test_a_private_site_whose_numbers_are_not_finite_counts_as_one_that_did_not_move() -> None:
    with pytest.warns(RuntimeWarning, match="worker 2: a contribution held a NaN"):
        done = run(private(), diverges_once)
    assert furthest_from(build().state_dict(), done, 0.01 * 7 / 8 + 0.01) < 1e-5


@pytest.mark.thorough
def test_versions_have_noise_of_the_sites_alone() -> None:
    """8 runs: 3,084 differences; 8% are six deviations."""
    ends = [run(private(0.1), functools.partial(rests, rounds=1)).state_dict for _ in range(8)]
    flat = [torch.cat([value.flatten().double() for value in one.values()]) for one in ends]
    differences = torch.cat([one - other for one, other in zip(flat[::2], flat[1::2], strict=True)]) / 2**0.5
    assert float(differences.std()) == pytest.approx(0.1 * NORM * (SITES / 5) ** 0.5 / SITES, rel=0.08)


def goes_on(worker: ps.Worker, rounds: int = 1000) -> None:
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while worker.version < rounds:
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        worker.contribute(samples=1 + worker.rank)


def test_the_last_round_is_the_one_whose_next_would_spend_too_much() -> None:
    budget = Budget(ps.Privacy(NORM, 4.0, 1e-3, epsilon=2.0))
    assert budget.spent(budget.rounds) <= 2.0 < budget.spent(budget.rounds + 1)
    whys = [budget.after(budget.rounds + more)[1] for more in (-1, 0)]
    assert whys[0] == ""
    assert whys[1].endswith(f"of 2 at delta 0.001 is spent, after {budget.rounds} rounds")


@pytest.mark.thorough
def test_a_private_run_ends_before_its_epsilon_is_spent() -> None:
    done = run(private(4.0, epsilon=2.0), goes_on)
    epsilon = [Budget(ps.Privacy(NORM, 4.0, 1e-3)).spent(rounds) for rounds in (done.version, done.version + 1)]
    assert epsilon[0] <= 2.0 < epsilon[1]
    assert re.search(rf"epsilon {epsilon[0]:.3g} of 2 at delta 0.001 is spent, after {done.version} rounds", done.ended)
    assert done.logged[-1].metrics["epsilon"] == pytest.approx(epsilon[0])
    assert done.samples == SITES * done.version, "no site sent more"
    with pytest.raises(
        ps.ConfigurationError, match=r"one round spends .* at delta 0.001; allow more, or give more noise"
    ):
        run(private(0.1, epsilon=1.0), goes_on)


@pytest.mark.thorough
def test_a_resumed_private_run_goes_on_counting_and_warns_of_lost_rounds(tmp_path: Path) -> None:
    strategy = private(4.0, epsilon=2.0)
    first = run(strategy, functools.partial(goes_on, rounds=2), checkpoint=ps.Checkpoint(every_s=60.0), runs=tmp_path)
    assert first.version == 2
    with pytest.warns(RuntimeWarning, match="epsilon counts versions, and the run goes on from version 2"):
        done = run(strategy, goes_on, resume=first.folder)
    assert f"after {done.version} rounds" in done.ended


def is_killed(worker: ps.Worker) -> None:
    """Site 2, in the second round; 20,000 parameters."""
    model = nn.Linear(100, 200, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    while worker.version < 3:
        if worker.rank == 2 and worker.version == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        worker.contribute()


@pytest.mark.thorough
def test_the_noise_of_processes_is_enough_without_one_that_is_killed() -> None:
    """Of 5 sites in a round and of 4 in two; 3% are six deviations."""
    done = ps.run(is_killed, ps.fedavg(secure=ps.SecureSums(3, 1.0), privacy=ps.Privacy(1.0, 2.0, 1e-5)), workers=5)
    assert (done.version, done.samples) == (3, 5 + 4 + 4)
    expected = sum(2.0**2 * sites / 3 / sites**2 for sites in (5, 4, 4)) ** 0.5
    assert float(done.state_dict["weight"].std()) == pytest.approx(expected, rel=0.03)


def test_a_private_site_may_not_log() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"worker\.log under privacy="):
        run(private(), functools.partial(moves, log=True))


def test_private_sums_as_words() -> None:
    said = strategy_of("fedavg(secure=5:2, privacy=1:1.1:1e-5:8)", 8)
    assert said.send == ps.fedavg(secure=ps.SecureSums(5, 2.0), privacy=ps.Privacy(1.0, 1.1, 1e-5, epsilon=8.0)).send
    assert Strategy.from_data(said.name, said.as_data()) == said
    for wrong in ("secure=5:2:3", "secure=5", "privacy=1:x:1", "secure=5:2, privacy=1:1.1:1e-5:8:3"):
        with pytest.raises(ps.StrategyError, match=r"write [A-Z:]+, such as (secure|privacy)="):
            strategy_of(f"fedavg({wrong})", 8)
