"""Rounds that somebody looks at, and rounds of too few sites, in virtual time: choices, replay, resume, and how a wait ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Restart
from plesio.observe.figures import strategy
from plesio.observe.standing import ALL
from plesio.protocol.journal import read_journal
from support.loops import batch_norm, data, descend, sgd
from support.runs import assert_replays, same

INPUTS, LABELS = data(120)
CLIENTS = 12
ROUNDS = 6


def clients(**settings: Any) -> ps.Clients:
    split = ps.splits.iid(len(LABELS), CLIENTS)
    given = {"per_round": 3, "rounds": ROUNDS, "batch_size": 5, "held_out": 0.2, **settings}
    return ps.Clients(TensorDataset(INPUTS, LABELS), split, **given)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(INPUTS.shape[1], int(LABELS.max()) + 1)


def turns(worker: ps.Worker, lent: ps.Clients, **given: Any) -> Iterator[Any]:
    """Each client, when it has been trained."""
    net = model()
    net, optimizer, lent = worker.prepare(net, sgd(net), lent, **given)
    for client in lent:
        for inputs, labels in client:
            descend(optimizer, cross_entropy(net(inputs), labels))
        yield client


def train(worker: ps.Worker, **settings: Any) -> None:
    for client in turns(worker, clients(**settings)):
        client.log(mine=client.id)


def site(worker: ps.Worker, rounds: int = ROUNDS, by_number: bool = False) -> None:
    net = model()
    net, optimizer = worker.prepare(net, sgd(net))
    number = 0
    while (number if by_number else worker.version) < rounds:
        descend(optimizer, cross_entropy(net(INPUTS[:20]), LABELS[:20]))
        worker.log(here=worker.rank)
        worker.contribute(samples=20 + worker.rank)
        number += 1


def accuracy(net: torch.nn.Module) -> dict[str, float]:
    return {"accuracy": (net(INPUTS).argmax(1) == LABELS).float().mean().item()}


def looked(
    on_round: Any, strategy: Any = None, of: Any = train, workers: int = 2, cluster: Any = "uniform", **more: Any
) -> ps.Run:
    return ps.run(of, strategy or ps.fedavg(), workers=workers, engine=ps.Simulated(cluster), on_round=on_round, **more)


def members(run: ps.Run) -> list[list[int]]:
    return [[one.worker for one in fold.members] for fold in read_journal(run.folder).folds()]


# Looking


def test_each_version_is_seen_once_with_what_its_clients_told() -> None:
    rounds: list[ps.Round] = []
    run = looked(rounds.append)
    assert [(one.number, one.version) for one in rounds] == [(k, k + 1) for k in range(ROUNDS)]
    for one in rounds:
        assert sorted(told.id for told in one.clients) == sorted(clients().drawn(0, one.number))
        assert all(told.samples == 8 and told.counts and told.metrics == {"mine": told.id} for told in one.clients)
    assert same(run, rounds[-1])
    assert same(run, looked(None)), "to look changes nothing"


def test_every_version_is_evaluated_and_an_end_is_noticed() -> None:
    found: list[float] = []
    run = looked(lambda round: found.append(round.evaluate(accuracy)["accuracy"]))
    assert [one.metrics["accuracy"] for one in run.history] == found
    assert [one.version for one in run.history] == [*range(1, ROUNDS + 1)]
    early = looked(lambda round: round.evaluate(accuracy), until=ps.Until(accuracy=found[1]))
    assert early.version <= 2
    assert "accuracy" in early.ended
    assert looked(lambda round: round.version == 2 and round.stop("enough")).ended == "enough"


@pytest.mark.parametrize(
    ("every", "versions"),
    [(None, [0, 1, 2, 3, 4]), (ps.Rounds(2), [0, 2, 4]), (ps.Seconds(1e6), [0, 4]), (ps.Steps(10**6), [0, 4])],
)
def test_federated_rounds_are_evaluated_each_from_before_the_first(every: Any, versions: list[int]) -> None:
    run = looked(None, of=partial(train, rounds=4), evaluate=accuracy, evaluate_every=every)
    assert [one.version for one in run.history] == versions
    assert strategy(run.summary)["spent"]["rounds"][-1] == 4


def by_hand(worker: ps.Worker) -> None:
    net = model()
    net, optimizer = worker.prepare(net, sgd(net))
    for _ in range(10):
        worker.count(samples=1)
        net(INPUTS[:1]).sum().backward()
        optimizer.step()


def test_other_strategies_are_evaluated_by_steps_or_rounds_too() -> None:
    steps = looked(None, "sync_sgd", by_hand, evaluate=accuracy, evaluate_every=ps.Steps(6))
    assert [one.samples for one in steps.history] == [0, 6, 12, 18, 20]
    assert [one.version for one in steps.history] == [0, 3, 6, 9, 10]


def test_a_resumed_run_is_evaluated_by_the_steps_of_the_whole_run(tmp_path: Path) -> None:
    run = partial(looked, None, "sync_sgd", by_hand, evaluate=accuracy, evaluate_every=ps.Steps(6))
    first = run(until=ps.Until(steps=8), runs=tmp_path, checkpoint=ps.Checkpoint(every_s=1e6))
    went_on = run(resume=first.folder)
    assert [one.samples for one in went_on.history][:3] == [8, 12, 18]


def test_what_clients_log_is_a_curve_of_all_with_their_spread() -> None:
    def logs(worker: ps.Worker) -> None:
        for client in turns(worker, clients(rounds=3)):
            client.log(accuracy=client.id / 10)

    run = looked(None, of=logs, evaluate=accuracy)
    told = [one.metrics for one in run.logged if one.worker == ALL]
    assert len(told) == 3
    assert all(one["clients/accuracy/worst_tenth"] < one["clients/accuracy"] for one in told)


def test_clients_are_evaluated_on_what_they_hold_out() -> None:
    def hits(net: torch.nn.Module, batches: Any) -> dict[str, float]:
        return {"n": sum(len(labels) for _, labels in batches)}

    found: list[Any] = []

    def on_round(round: ps.Round) -> None:
        found.append(round.evaluate_clients(clients(), hits, ids=[2, 7]))
        round.stop("enough")

    looked(on_round)
    assert found[0] == {2: {"n": 2.0}, 7: {"n": 2.0}}


def test_clients_are_evaluated_with_what_is_their_own() -> None:
    """As the training function does after its last version; on a model that is given, too."""

    def personal(worker: ps.Worker) -> Any:
        model = batch_norm()
        model, optimizer, lent = worker.prepare(model, sgd(model), clients(state="keep"), share=["0", "3.weight"])
        for client in lent:
            for inputs, labels in client:
                descend(optimizer, cross_entropy(model(inputs), labels))
        return lent.evaluate(loss)

    def loss(model: torch.nn.Module, batches: Any) -> dict[str, float]:
        return {"loss": sum(float(cross_entropy(model(inputs), labels)) for inputs, labels in batches)}

    found: list[Any] = []

    def on_round(round: ps.Round) -> None:
        found.append([round.evaluate_clients(clients(), loss, model=model) for model in (None, batch_norm())])

    run = looked(on_round, of=personal)
    assert found[-1] == [run.returned[0], run.returned[0]]
    assert len({one["loss"] for one in found[-1][0].values()}) > 5


def test_sites_are_told_by_worker() -> None:
    rounds: list[ps.Round] = []
    looked(rounds.append, of=site, workers=3)
    told = [(one.id, one.samples, dict(one.metrics)) for one in rounds[2].clients]
    assert told == [(k, 20 + k, {"here": float(k)}) for k in range(3)]
    assert rounds[2].number == 2
    assert all(one.seconds > 0 for one in rounds[2].clients)


def test_clients_that_are_left_out_are_told_too() -> None:
    class Broken(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(LABELS)

        def __getitem__(self, place: int) -> Any:
            if place == int(clients().split[4][0]):
                raise OSError("truncated")
            return INPUTS[place], LABELS[place]

    def broken(worker: ps.Worker) -> None:
        given = ps.Clients(
            Broken(), ps.splits.iid(len(LABELS), CLIENTS), per_round=CLIENTS, rounds=1, on_client_error="skip"
        )
        list(turns(worker, given))

    rounds: list[ps.Round] = []
    with pytest.warns(RuntimeWarning, match="client 4, round 0: OSError: truncated; .* with its 10 samples"):
        looked(rounds.append, of=broken)
    assert [one.id for one in rounds[0].clients if not one.counts] == [4]


# Choosing


def chooses(round: ps.Round) -> None:
    if round.version == 2:
        round.choose([7, 8, 9, 10])
    if round.version == 4:
        round.choose(None)


def ids(rounds: list[ps.Round]) -> list[list[int]]:
    return [sorted(told.id for told in one.clients) for one in rounds]


def test_who_is_chosen_is_drawn_from_the_next_round_on_and_it_replays(tmp_path: Path) -> None:
    rounds: list[ps.Round] = []

    def on_round(round: ps.Round) -> None:
        rounds.append(round)
        chooses(round)

    run = looked(on_round, runs=tmp_path)
    drawn = ids(rounds)
    assert all(set(one) <= {7, 8, 9, 10} for one in drawn[2:4])
    assert [drawn[k] for k in (0, 1, 4, 5)] == [sorted(clients().drawn(0, k)) for k in (0, 1, 4, 5)]
    assert_replays(run, train)


def test_a_resumed_run_draws_what_the_whole_one_does(tmp_path: Path) -> None:
    """Between the choice and its end, with or without anybody who looks."""
    whole = looked(chooses, workers=1)  # two share the sums otherwise, and round otherwise
    kept = ps.Checkpoint(every_s=0.1)
    stops = lambda round: (chooses(round), round.version == 3 and round.stop("half"))  # noqa: E731
    folder = looked(stops, workers=1, runs=tmp_path / "a", checkpoint=kept).folder
    rounds: list[ps.Round] = []

    def on_round(round: ps.Round) -> None:
        rounds.append(round)
        chooses(round)

    run = looked(on_round, workers=1, runs=tmp_path / "b", checkpoint=kept, resume=folder)
    assert run.version == whole.version
    assert set(ids(rounds)[0]) <= {7, 8, 9, 10}
    assert same(run, whole)
    assert_replays(run, train)
    unseen = looked(None, workers=1, runs=tmp_path / "c", resume=folder)
    assert {one.client for one in unseen.summary.clients} <= {7, 8, 9, 10}, "a choice holds, though nobody looks"


@pytest.mark.parametrize(
    ("of", "choose", "words"),
    [
        (train, lambda one: one.choose([1, 2]), "2 clients, and a round has 3"),
        (train, lambda one: one.choose([1, 2, 99]), "there is no client 99; they are 0 to 11"),
        (train, lambda one: one.choose([1, 2, "a"]), "clients are known by their numbers"),
        (train, lambda one: one.choose([1, 2, 0.5]), "clients are known by their numbers"),
        (train, lambda one: one.choose([1, 2, -1]), "clients are known by their numbers"),
        (train, lambda one: one.evaluate(lambda net: 3), "evaluate returned 3"),
        (train, lambda one: one.evaluate_clients(clients()), "give a function"),
        (
            train,
            lambda one: one.evaluate_clients(clients(), lambda net, batches: {}, ids=[12]),
            "no client 12; they are 0 to 11",
        ),
        (partial(train, available=0.9), lambda one: one.choose(range(5)), "both say who can be drawn"),
        (site, lambda one: one.choose([0]), r"no ps\.Clients to choose among"),
    ],
)
def test_what_cannot_be_is_refused_in_words(of: Any, choose: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        looked(choose, of=of)


def test_what_on_round_raises_ends_the_run() -> None:
    def on_round(round: ps.Round) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        looked(on_round)


@pytest.mark.parametrize(
    ("strategy", "on_round", "words"),
    [
        (ps.fedbuff(2), print, "workers go on without a round"),
        (ps.first_of(1), print, "late work is called off"),
        (ps.allreduce(), print, "without a server|its own parameters"),
        (ps.fedavg(), lambda: 1, "one argument, the round"),
        (ps.fedavg(), 3, "a function that takes a round"),
    ],
)
def test_runs_without_rounds_are_refused(strategy: Any, on_round: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        looked(on_round, strategy)


# Too few sites


OF_TWO = ps.fedavg(clients_min=2)


def dying(*turns: Any) -> Cluster:
    return Cluster((Group(3, Constant(1.0)),), faults=turns)


def test_a_version_is_of_two_sites_whoever_dies_and_it_replays(tmp_path: Path) -> None:
    cluster = dying(Crash(worker=1, at_s=1.5), Crash(worker=2, at_s=1.5), Restart(worker=1, at_s=20.0))
    run = looked(None, OF_TWO, site, 3, cluster, runs=tmp_path)
    assert (run.version, run.ended) == (ROUNDS, "finished")
    assert members(run)[0] == [0, 1, 2]
    assert all(one == [0, 1] for one in members(run)[1:])
    assert run.wall_s > 20
    assert_replays(run, site)


def test_a_site_that_nobody_joins_ends_the_run_in_words_with_a_checkpoint(tmp_path: Path) -> None:
    cluster = dying(Crash(worker=1, at_s=1.5), Crash(worker=2, at_s=1.5))
    words = r"version 2 takes 2 workers, and 1 came \(missing: worker 1 died \d+ s ago, worker 2 died .*\); .* 40 s \(timeout_s\)"
    often = ps.Checkpoint(every_s=30)
    with pytest.raises(ps.DeadlineError, match=words):
        looked(None, OF_TWO, site, 3, cluster, timeout_s=40.0, runs=tmp_path, checkpoint=often)
    (folder,) = tmp_path.iterdir()
    assert looked(None, OF_TWO, site, 3, resume=folder).version == ROUNDS


def test_a_site_that_the_others_have_left_behind_ends_in_order() -> None:
    """It counts its own rounds, and was away."""
    cluster = dying(Crash(worker=2, at_s=1.5), Restart(worker=2, at_s=4.0))
    run = looked(None, OF_TWO, partial(site, by_number=True), 3, cluster)
    assert run.version == ROUNDS
    assert run.ended.startswith("too few workers are left: version 7 takes 2 workers, and 1 came")


def test_a_deadline_lets_a_round_go_on_without_the_slow(tmp_path: Path) -> None:
    cluster = Cluster((Group(2, Constant(1.0)), Group(1, Constant(5.0))))
    run = looked(None, ps.fedavg(clients_min=2, deadline_s=2.0), site, 3, cluster, runs=tmp_path)
    assert run.version == ROUNDS
    assert [0, 1] in members(run)
    assert any(2 in one for one in members(run)), "its work counts in a later version"
    assert_replays(run, site)


def test_a_least_number_of_sites_is_not_of_clients() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"say ps\.Clients\(clients_min=\.\.\.\)"):
        looked(None, OF_TWO)
    with pytest.raises(ps.StrategyError, match="3 or more of 2 workers will never come"):
        looked(None, ps.fedavg(clients_min=3), site)
