"""Federated rounds: clients lent to workers, against plain loops over the clients that were drawn."""

from __future__ import annotations

import dataclasses
import re
import time
from functools import partial
from itertools import count
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart
from plesio.core.events import Pushed
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from plesio.strategy.answers import BySamples
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.transport.ring import Ring
from plesio.worker.clients.description import CLIENTS
from plesio.worker.clients.turn import Client
from plesio.worker.randomness.seeding import seed_step
from plesio.worker.replicas.parameters import DeltaReplica
from support.long_forms import examples
from support.loops import CLASSES, FEATURES, data

INPUTS, LABELS = data(228)
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
RECIPES = [
    ps.fedavg(),
    ps.fedopt("adam"),
    ps.fedopt("yogi"),
    ps.fedprox(0.5),
    ps.fedbuff(3),
    ps.fedasync(),
    ps.fedavg(3, deadline_s=0.5),
    ps.fedavg(codec="int8"),
]


def build(batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(3)
    norm = [nn.BatchNorm1d(16)] if batch_norm else []
    return nn.Sequential(nn.Linear(FEATURES, 16), *norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def split(clients: int = 12) -> Any:
    return ps.splits.sizes(228, range(8, 8 + 2 * clients, 2), seed=1)


def clients(**settings: Any) -> ps.Clients:
    return ps.Clients(
        TensorDataset(INPUTS, LABELS), split(), **{"per_round": 4, "rounds": 5, "batch_size": 8, **settings}
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(
    worker: ps.Worker,
    kind: str = "sgd",
    ends: tuple[int, int] | None = None,
    norm: bool = True,
    rest_s: float = 0.0,
    poison: int | None = None,
    over: Path | None = None,
    **settings: Any,
) -> None:
    """`ends`: this client of that round is left after its first batch. `poison`: that client's data are no numbers. `over`:
    written at the end. Under Adam a bias before a norm is noise."""
    model = build(batch_norm=norm and kind != "adam" and "held_out" not in settings)
    model, optimizer, lent = worker.prepare(model, optimizer_of(model, kind), clients(**settings))
    for client in lent:
        for inputs, labels in client:
            step(model, optimizer, inputs * (nan if client.id == poison else 1.0), labels)
            if rest_s:
                time.sleep(rest_s)
            if ends == (client.round, client.id):
                break
    if over is not None:
        over.touch()


def by_hand(rounds: int, kind: str = "sgd", mu: float = 0.0, seed: int = 0, **settings: Any) -> dict[str, torch.Tensor]:
    """Federated averaging in plain PyTorch: the mean of the models of a round's clients, by samples."""
    lent, model = clients(**settings), build(batch_norm=kind != "adam")
    shared = {name: value.clone() for name, value in model.state_dict().items()}
    for round in range(rounds):
        total, mean = 0, {name: torch.zeros_like(value, dtype=torch.float64) for name, value in shared.items()}
        for number in lent.drawn(seed, round):
            model.load_state_dict(shared)
            start = [one.detach().clone() for one in model.parameters()]
            optimizer = optimizer_of(model, kind)
            client = Client(lent, number, round, seed, count().__next__)
            seed_step(seed, CLIENTS + number, round)
            for inputs, labels in client:
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                for one, begun in zip(model.parameters(), start, strict=True):
                    one.grad += mu * (one.detach() - begun)
                optimizer.step()
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    mean[name] += client.samples * value.double()
                else:
                    mean[name] = torch.maximum(mean[name], value.double() * 1.0)
            total += client.samples
        shared = {
            name: (mean[name] / total if shared[name].is_floating_point() else mean[name]).to(shared[name].dtype)
            for name in shared
        }
    return shared


def simulated(strategy: Strategy, workers: int = 2, cluster: Any = "uniform", **settings: Any) -> ps.Run:
    options = {key: settings.pop(key) for key in ("runs", "checkpoint", "resume", "until", "seed") if key in settings}
    return ps.run(partial(train, **settings), strategy, workers=workers, engine=ps.Simulated(cluster), **options)


def assert_close(run: ps.Run, wanted: dict[str, torch.Tensor]) -> None:
    for name, value in run.state_dict.items():
        torch.testing.assert_close(value, wanted[name], **CLOSE, msg=name)


@pytest.mark.parametrize(
    ("workers", "kind", "epochs", "mu"),
    [(1, "adam", 2, 0.0), (2, "sgd", 1, 0.0), (3, "adam", 2, 0.0), (2, "sgd", 2, 0.5)]
    + [pytest.param(*one, 0.0, marks=pytest.mark.slow) for one in ((1, "sgd", 1), (2, "adam", 2), (3, "sgd", 1))],
)
def test_rounds_equal_a_plain_loop_over_the_drawn_clients(workers: int, kind: str, epochs: int, mu: float) -> None:
    """On a leash `mu`, the distance of a client from its start is added."""
    run = simulated(ps.fedprox(mu) if mu else ps.fedavg(), workers, kind=kind, epochs=epochs, rounds=3)
    assert (run.version, sum(one.turns for one in run.summary.clients)) == (3, 12)
    assert_close(run, by_hand(3, kind, mu, epochs=epochs))


def test_real_workers_give_what_simulated_ones_do() -> None:
    real, wanted = ps.run(partial(train, rounds=2), ps.fedavg(), workers=2), simulated(ps.fedavg(), rounds=2)
    assert real.summary.samples == wanted.summary.samples
    assert_close(real, wanted.state_dict)


def test_outer_sgd_with_rate_1_is_averaging() -> None:
    momentum = ps.fedopt("momentum", lr=1.0)
    one = Strategy(**{**{field: getattr(momentum, field) for field in momentum.__slots__}, "outer": ps.fedavg().outer})
    assert_close(simulated(one, rounds=2), simulated(ps.fedavg(), rounds=2).state_dict)


def test_a_buffer_of_a_round_is_a_round_where_nobody_is_stale() -> None:
    """With as many workers as clients, released together; batch norm's counts aside."""
    buffered = simulated(ps.fedbuff(4, weigh=BySamples()), 4, rounds=1)
    assert_close(buffered, simulated(ps.fedavg(), 4, rounds=1).state_dict)


def test_fedasync_with_rate_1_and_one_worker_is_training_client_after_client() -> None:
    run = simulated(ps.fedasync(1.0), 1, rounds=2)
    lent, model = clients(rounds=2), build()
    for round in range(2):
        for number in lent.drawn(0, round):
            optimizer = optimizer_of(model, "sgd")
            seed_step(0, CLIENTS + number, round)
            for inputs, labels in Client(lent, number, round, 0, count().__next__):
                step(model, optimizer, inputs, labels)
    assert_close(run, model.state_dict())


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", RECIPES, ids=lambda one: str(one.name))
def test_every_recipe_replays_and_resumes(strategy: Strategy, tmp_path: Path) -> None:
    uneven = Cluster((Group(2, LogNormal(0.1, 0.3)), Group(1, Constant(0.3))))
    whole = simulated(strategy, 3, uneven, rounds=6)
    first = simulated(
        strategy, 3, uneven, rounds=6, runs=tmp_path / "a", checkpoint=ps.Checkpoint(every_s=0.4),
        until=ps.Until(seconds=0.6 * whole.summary.wall_s),
    )  # fmt: skip
    assert 0 < first.version < whole.version
    second = simulated(strategy, 3, uneven, rounds=6, runs=tmp_path / "b", resume=first.folder)
    assert second.folder is not None
    assert ps.replay(second.folder, partial(train, rounds=6)).identical
    assert second.batches_unvisited == 0
    if strategy.gather.in_rounds and strategy.send.codec is None:
        assert_close(second, whole.state_dict)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [ps.fedavg(), ps.fedbuff(3)], ids=lambda one: str(one.name))
def test_a_dead_workers_clients_go_to_others(strategy: Strategy, tmp_path: Path) -> None:
    faults = tuple(f for at in (0.75, 2.25) for f in (Crash(worker=1, at_s=at), Restart(worker=1, at_s=at + 0.5)))
    cluster = Cluster((Group(3, Constant(0.1)),), faults=faults)
    run = simulated(strategy, 3, cluster, rounds=8, runs=tmp_path)
    assert run.batches_unvisited == 0
    assert run.samples >= sum(one.samples for one in run.summary.clients)  # a turn that was cut short told nothing
    assert ps.replay(run.folder, partial(train, rounds=8)).identical


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [ps.fedavg(), pytest.param(ps.fedbuff(3), marks=pytest.mark.slow)], ids=lambda one: str(one.name)
)
def test_a_killed_process_loses_no_client(strategy: Strategy, tmp_path: Path) -> None:
    slowly = partial(train, rest_s=0.005, rounds=24)
    run = ps.run(slowly, strategy, workers=3, faults=[ps.Kill(worker=1, after_s=0.2)], runs=tmp_path, timeout_s=30)
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    assert run.batches_unvisited == 0
    told = [one.event for one in read_journal(run.folder).decisions()]
    folded = sum(one.batches for one in told if isinstance(one, Pushed))
    assert folded == 96, "each client of each round is in one contribution"
    assert ps.replay(run.folder, slowly).identical


def test_clients_of_a_worker_that_dies_in_the_last_round_are_trained_after_it() -> None:
    """Worker 1 takes ten times as long, and dies when the other waits for it."""
    uneven = Cluster((Group(1, Constant(0.1)), Group(1, Constant(1.0))), faults=(Crash(worker=1, at_s=1.5),))
    run = simulated(ps.fedavg(), 2, uneven, rounds=1)
    assert (run.version, run.batches_unvisited) == (2, 0)
    assert sum(one.late for one in run.summary.clients) == 1
    assert sum(one.turns for one in run.summary.clients) == 4


def test_a_client_that_is_left_early_counts_with_what_it_trained_on() -> None:
    chosen = clients().drawn(0, 0)[0]
    whole, early = simulated(ps.fedavg(), 1, rounds=1), simulated(ps.fedavg(), 1, rounds=1, ends=(0, chosen))
    sizes = {one.client: one.samples for one in whole.summary.clients}
    assert sizes[chosen] > 8
    assert {one.client: one.samples for one in early.summary.clients} == {**sizes, chosen: 8}
    assert early.samples == whole.samples - sizes[chosen] + 8


def test_one_clients_nan_leaves_only_that_client_out() -> None:
    bad = clients().drawn(0, 0)[1]

    with pytest.warns(RuntimeWarning, match=f"client {bad}, round 0: a NaN or an infinity; it is left out"):
        run = simulated(ps.fedavg(), rounds=1, norm=False, poison=bad)
    assert run.version == 1
    assert [one.client for one in run.summary.clients if one.left_out] == [bad]
    assert all(value.isfinite().all() for value in run.state_dict.values())


@pytest.mark.parametrize(
    ("strategy", "workers", "settings"),
    [
        (ps.fedavg(), 3, {"per_round": 2}),
        (ps.fedavg(), 2, {"available": 0.3}),
        (ps.fedbuff(2), 2, {"available": 0.3}),
    ],
    ids=["fewer than workers", "fedavg", "fedbuff"],
)
def test_rounds_may_have_fewer_clients(strategy: Strategy, workers: int, settings: dict[str, Any]) -> None:
    run = simulated(strategy, workers, **settings)
    drawn = sum(len(clients(**settings).drawn(0, round)) for round in range(5))
    assert 0 < drawn < 20
    assert sum(one.turns for one in run.summary.clients) == drawn
    assert run.batches_unvisited == 0


def test_a_clients_steps_take_its_own_time() -> None:
    law = LogNormal(1.0, 1.0)
    run = simulated(ps.fedavg(), 2, rounds=6, speeds=law)
    sizes = [len(part) for part in split()]
    speeds = {one.client: one.seconds / one.turns / -(-sizes[one.client] // 8) for one in run.summary.clients}
    assert len({round(value, 6) for value in speeds.values()}) == len(speeds)
    again = simulated(ps.fedavg(), 3, rounds=6, speeds=law)
    for one in again.summary.clients:
        assert one.seconds / one.turns / -(-sizes[one.client] // 8) == pytest.approx(speeds[one.client])


@pytest.mark.thorough
def test_rounds_shorter_than_their_evaluation_are_told_and_the_first_version_is_seen(tmp_path: Path) -> None:
    over = tmp_path / "over"

    def evaluate(model: nn.Module) -> dict[str, float]:
        while not over.exists():
            time.sleep(0.01)
        return {"weight": float(model[0].weight.sum())}

    with pytest.warns(RuntimeWarning, match=r"\b[01] of 5 rounds were evaluated, .* evaluate_every=ps\.Rounds\(5\)"):
        run = ps.run(partial(train, over=over), ps.fedavg(), workers=2, evaluate=evaluate, timeout_s=60)
    assert run.history[0].version == 0
    assert run.history[-1].version == 5


def test_clients_are_evaluated_before_and_after_on_what_they_hold_out() -> None:
    def accuracy(model: nn.Module, batches: Any) -> dict[str, float]:
        assert not model.training
        hits = [(model(inputs).argmax(1) == labels).float() for inputs, labels in batches]
        return {"accuracy": float(torch.cat(hits).mean())}

    run = simulated(ps.fedavg(), 2, rounds=6, held_out=0.3, evaluate_clients=accuracy, evaluate_every=2)
    judged = [one for one in run.summary.clients if "accuracy" in one.after]
    assert judged
    assert all("accuracy" in one.before for one in judged)


# What cannot be


def without_clients() -> None:
    def loads(worker: ps.Worker) -> None:
        model = build()
        worker.prepare(model, optimizer_of(model, "sgd"), TensorDataset(INPUTS, LABELS))

    ps.run(loads, ps.fedavg(), workers=1, engine=ps.Simulated("uniform"))


ITEMS = list(range(10))
REFUSED: list[tuple[Any, str]] = [
    (lambda: clients(per_round=13), r"per_round=13.: there are 12 clients; give 1 to 12"),
    (lambda: clients(per_round=0), r"per_round=0.: a whole number of at least 1"),
    (lambda: clients(epochs=1.5), r"epochs=1.5.: a whole number"),
    (lambda: clients(held_out=1.0), r"held_out=1.0.: a number of at least 0 and below 1"),
    (lambda: clients(available=0.0), r"available=0.0.: a number above 0"),
    (lambda: clients(evaluate_clients=print), r"nothing to evaluate on; say held_out=0.2"),
    (lambda: clients(speeds=0.1), r"speeds=0.1.: a law of plesio.cluster"),
    (lambda: ps.Clients(ITEMS, [[0, 1], []], per_round=1), r"client 1 has no sample to train on; .*nonempty"),
    (lambda: ps.Clients(ITEMS, [[0, 10]], per_round=1), r"the split has the index 10, and the data set has 10 samples"),
    (lambda: simulated(ps.local_sgd(4)), r"ps.Clients needs a strategy that exchanges when a client ends: fedavg"),
    (without_clients, r"this strategy exchanges when a client ends: give prepare ps.Clients"),
    (lambda: ps.splits.iid(3, 4), r"splits.iid: 3 samples for 4 parts; give 1 to 3"),
    (lambda: ps.splits.shards([0, 1], 2, each=2), r"splits.shards: 2 samples for 4 parts"),
    (lambda: ps.splits.shards([0, 1], 1, each=0), r"splits.shards\(each=0\): a whole number of shards"),
    (lambda: ps.splits.dirichlet([0, 1], 2, alpha=0.0), r"alpha=0.0\): a number above 0"),
    (lambda: ps.splits.dirichlet(5, 2, alpha=1.0), r"5 is a number; give the labels of the samples"),
    (lambda: ps.splits.sizes(3, [2, 2]), r"splits.sizes: \[2, 2\] of 3 samples"),
    (lambda: released(private(0.1, epsilon=1.0)), r"one round spends .* at delta 0.001; allow more, or give more noise"),
    (lambda: simulated(ps.fedavg(privacy=private()), 1, seed=5), r"the model's buffers \(1.running_mean.*GroupNorm in place"),
    (lambda: released(private(), per_round=3), r"per_round=3\) and Privacy\(per_round=4\) are to be the same"),
    (lambda: ps.fedavg(3, privacy=private()), r"one client could be in a release twice, or be all of it; use fedavg"),
    (lambda: ps.fedavg(codec="int8", privacy=private()), "what a codec leaves out would come on top"),
    (lambda: dataclasses.replace(ps.fedavg(privacy=private()), weigh=BySamples()), "by samples one client could weigh more"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_cannot_be_is_refused(call: Any, words: str) -> None:
    with pytest.raises((ps.ConfigurationError, ps.StrategyError), match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ps.Clients(ITEMS, [ITEMS, [3, 4]], per_round=1), "2 samples are in more than one place of the split"),
        (lambda: ps.Clients(ITEMS, [[0, 1, 2], [3, 4, 5]], per_round=1), "4 of 10 samples are no client's"),
        (lambda: released(private(), seed=0, rounds=1), "seed 0 is easily guessed: run with seed=secrets.randbits"),
    ],
)
def test_what_is_odd_is_told(call: Any, words: str) -> None:
    with pytest.warns(RuntimeWarning, match=words):
        call()


# Privacy


def private(noise: float = 1.0, **settings: Any) -> ps.Privacy:
    return ps.Privacy(**{"clip": 0.05, "noise": noise, "delta": 1e-3, "per_round": 4, **settings})


def released(privacy: ps.Privacy, workers: int = 2, seed: int = 5, **settings: Any) -> ps.Run:
    return simulated(ps.fedavg(privacy=privacy), workers, norm=False, seed=seed, **settings)


def moved(run: ps.Run) -> torch.Tensor:
    begun = build(batch_norm=False).state_dict()
    return torch.cat([(begun[name] - value).flatten().double() for name, value in run.state_dict.items()])


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_private_round_moves_by_the_clipped_sum_over_the_expected_number(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, whatever the samples: each client counts as one, and by its clip at most."""
    monkeypatch.setattr("plesio.tensors.noise.gaussian", torch.zeros)
    run = released(private(), workers, rounds=1)
    lent, total = clients(rounds=1), torch.zeros(())
    drawn = lent.drawn(5, 0, alike=True)
    assert drawn
    for number in drawn:
        model = build(batch_norm=False)
        optimizer = optimizer_of(model, "sgd")
        start = torch.cat([one.detach().flatten().clone() for one in model.parameters()]).double()
        seed_step(5, CLIENTS + number, 0)
        for inputs, labels in Client(lent, number, 0, 5, count().__next__):
            step(model, optimizer, inputs, labels)
        delta = start - torch.cat([one.detach().flatten() for one in model.parameters()]).double()
        assert float(delta.norm()) > 0.05
        total = total + delta * 0.05 / delta.norm()
    torch.testing.assert_close(moved(run), total / 4, rtol=1e-3, atol=1e-6)


def test_noise_has_the_deviation_that_is_said() -> None:
    """Its seed is the operating system's: runs differ, by the noise of both."""
    runs = [moved(released(private(2.0), rounds=1)) for _ in range(16)]  # 1,304 differences: 10% are five deviations
    differences = torch.cat([(one - other) / 2**0.5 for one, other in zip(runs[::2], runs[1::2], strict=True)])
    assert float(differences.std()) == pytest.approx(2.0 * 0.05 / 4, rel=0.1)


@settings(deadline=None, max_examples=examples(14))
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=CLASSES, max_size=CLASSES), st.floats(1e-3, 1e3))
def test_no_client_moves_further_than_the_clip(by: list[float], clip: float) -> None:
    layout = Layout([TensorSpec("w", (CLASSES,), "float32", Kind.TRAINED, 0)])
    start, slot = Arena.private(layout), Arena.private(layout)
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(CLASSES))})
    replica = DeltaReplica(layout, model, [model["w"]], Ring([start]), slot, codec=None, feedback=True, private=True)
    replica.adopt(replica.ring.first)
    with torch.no_grad():
        model["w"].add_(torch.tensor(by))
    assert replica.add_client(1.0, clip)
    replica.take_clients(1.0)
    assert replica.fill_slot()
    assert float(slot.views[0].double().norm()) <= clip * (1 + 1e-5)


def test_clients_take_part_on_their_own_with_equal_chances() -> None:
    counts = np.array([len(clients().drawn(3, round, alike=True)) for round in range(2000)])
    assert counts.mean() == pytest.approx(4, rel=0.05)
    assert counts.var() == pytest.approx(4 * (1 - 4 / 12), rel=0.15), "binomial"


@pytest.mark.thorough
def test_a_run_ends_before_its_epsilon_is_spent() -> None:
    run = released(private(epsilon=6.0), rounds=50)
    assert 1 < run.version < 50
    assert re.search(r"epsilon \d\.\d+ of 6 at delta 0.001 is spent, after \d+ rounds", run.ended)


@pytest.mark.thorough
def test_a_private_run_is_not_replayed(tmp_path: Path) -> None:
    run = released(private(), rounds=1, runs=tmp_path)
    with pytest.raises(ps.ReplayError, match="noise that is drawn from the operating system and kept nowhere"):
        ps.replay(run.folder, partial(train, norm=False, rounds=1))


# Identities, and splits


def bare() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def test_one_step_of_all_clients_is_a_step_of_all_data() -> None:
    """Which is what `sync_sgd` takes on equal parts."""

    def trained(worker: ps.Worker) -> None:
        model = bare()
        parts = ps.splits.iid(228, 12)
        lent = ps.Clients(TensorDataset(INPUTS, LABELS), parts, per_round=12, rounds=3, batch_size=19, shuffle=False)
        model, optimizer, taken = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3), lent)
        for client in taken:
            for inputs, labels in client:
                step(model, optimizer, inputs, labels)

    run = ps.run(trained, ps.fedavg(), workers=2, engine=ps.Simulated("uniform"))
    model = bare()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        step(model, optimizer, INPUTS, LABELS)
    assert_close(run, model.state_dict())


def test_local_steps_may_be_on_a_leash() -> None:
    every = ps.Steps(4, proximal=0.7)
    assert str(every) == "every 4 steps, proximal 0.7"

    def trained(worker: ps.Worker) -> None:
        model = bare()
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.steps(8):
            step(model, optimizer, INPUTS, LABELS)

    run = ps.run(trained, ps.local_sgd(every), workers=1, engine=ps.Simulated("uniform"))
    model = bare()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        if number % 4 == 0:
            start = [one.detach().clone() for one in model.parameters()]
        optimizer.zero_grad()
        cross_entropy(model(INPUTS), LABELS).backward()
        for one, begun in zip(model.parameters(), start, strict=True):
            one.grad += 0.7 * (one.detach() - begun)
        optimizer.step()
    assert_close(run, model.state_dict())


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 5))
def test_splits_give_each_sample_to_one_client(samples: int, number: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, samples)
    number = min(number, samples)
    found = {
        "iid": ps.splits.iid(samples, number, seed=seed),
        "shards": ps.splits.shards(labels, number, each=1, seed=seed),
        "dirichlet": ps.splits.dirichlet(labels, number, alpha=0.3, seed=seed),
        "by": ps.splits.by(labels, key=lambda one: one),
        "sizes": ps.splits.sizes(samples, [samples], seed=seed),
    }
    for name, split in found.items():
        assert sorted(np.concatenate(split).tolist()) == list(range(samples)), name
    sizes = [len(part) for part in found["iid"]]
    assert max(sizes) - min(sizes) <= 1
    few = ps.splits.shards(np.repeat(np.arange(10), 60), 30, each=2, seed=seed)
    assert max(len(set(part // 60)) for part in few) <= 2
    again = ps.splits.dirichlet(labels, number, alpha=0.3, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(found["dirichlet"], again, strict=True))
    assert sum(map(len, ps.splits.nonempty(again))) == samples


def test_a_loop_that_never_contributes_is_told() -> None:
    def silent(worker: ps.Worker) -> None:
        model = bare()
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            step(model, optimizer, INPUTS, LABELS)

    with pytest.warns(RuntimeWarning, match=r"worker 0 did not contribute its last 3 steps .* worker.contribute"):
        ps.run(silent, ps.fedavg(), workers=1, engine=ps.Simulated("uniform"))
