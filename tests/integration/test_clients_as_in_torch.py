"""`ps.Clients`: a script's own habits give what a plain loop over the clients gives, or a refusal in words."""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

import plesio as ps
from plesio.protocol.worker import LeaseReply, LeaseRequest
from plesio.worker.clients.lent import LeasedClients
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.by_client import ClientExchange
from plesio.worker.introduction import Taking
from plesio.worker.state import WorkerState
from support import remote

INPUTS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
DATA = TensorDataset(INPUTS, LABELS)
SPLIT = [list(range(6)), list(range(6, 18)), list(range(18, 36)), list(range(36, 60))]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
pytestmark = pytest.mark.filterwarnings(
    "ignore:nothing was trained", "ignore:Clients.per_round=1. with 2 workers", "ignore:client 1, round"
)


def build() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(6, 2)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def prepared(worker: ps.Worker, data: Any = DATA, *beside: Any, lr: float = 0.5, **settings: Any) -> tuple[Any, ...]:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    given = {"per_round": 4, "rounds": 3, "batch_size": 6, "shuffle": False, **settings}
    schedules = [make(optimizer) for make in beside]
    return worker.prepare(model, optimizer, ps.Clients(data, given.pop("split", SPLIT), **given), *schedules)


def simulated(train: Any, strategy: Any = None, workers: int = 1, **options: Any) -> ps.Run:
    return ps.run(train, strategy or ps.fedavg(), workers=workers, engine=ps.Simulated("uniform"), **options)


def by_hand(rounds: int = 3, left_out: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """Each round: the clients' models, weighted by n_k / n."""
    model, taken = build(), [part for client, part in enumerate(SPLIT) if client not in left_out]
    total = sum(map(len, taken))
    for _ in range(rounds):
        ends = []
        for part in taken:
            own = copy.deepcopy(model)
            cut = [part[at : at + 6] for at in range(0, len(part), 6)]
            fit(own, torch.optim.SGD(own.parameters(), lr=0.5), [(INPUTS[one], LABELS[one]) for one in cut])
            ends.append((len(part) / total, own.state_dict()))
        model.load_state_dict({name: sum(share * end[name] for share, end in ends) for name in ends[0][1]})
    return model.state_dict()


def check_as_by_hand(run: ps.Run, left_out: tuple[int, ...] = ()) -> None:
    for name, value in by_hand(left_out=left_out).items():
        torch.testing.assert_close(run.state_dict[name], value, **CLOSE)


# Batches, as a DataLoader makes them


class Normalised(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return (inputs - 10.0) / 2.0, label


class Augmented(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


def as_dict(items: list[Any]) -> dict[str, Any]:
    inputs, labels = default_collate(items)
    return {"inputs": inputs, "labels": labels}


def test_batches_are_made_by_the_data_set_and_by_collate() -> None:
    seen: list[Any] = []
    data, parts = Normalised(torch.full((24, 6), 14.0), torch.zeros(24, dtype=torch.long)), ps.splits.iid(24, 4)

    def train(worker: ps.Worker, **settings: Any) -> None:
        def evaluate(model: nn.Module, batches: Any) -> dict[str, float]:
            seen.extend(batches)
            return {}

        held = {"held_out": 0.5, "evaluate_clients": evaluate}
        _, _, clients = prepared(worker, data, split=parts, rounds=1, **held, **settings)
        for client in clients:
            seen.extend(client)

    simulated(train)
    assert {float(inputs.unique()) for inputs, _ in seen} == {2.0}
    seen.clear()
    simulated(partial(train, collate=as_dict))
    assert {float(one["inputs"].unique()) for one in seen} == {2.0}


def test_a_last_batch_is_dropped_and_processes_load_the_same_for_any_number_of_workers() -> None:
    drawn: dict[int, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))

    def train(worker: ps.Worker) -> None:
        settings = {"split": ps.splits.iid(24, 2), "per_round": 2, "rounds": 1, "batch_size": 5}
        _, _, clients = prepared(worker, Augmented(), num_workers=1, drop_last=True, **settings)
        for client in clients:
            batches = list(client)
            assert [len(one) for one in batches] == [5, 5]
            assert len(client) == 2
            drawn[worker.workers][client.round, client.id] += torch.cat(batches).flatten().tolist()

    for workers in (1, 2):
        simulated(train, workers=workers)
    assert drawn[1] == drawn[2]
    assert len(set(drawn[1][0, 0] + drawn[1][0, 1])) == 20
    with pytest.warns(RuntimeWarning, match="1 clients have fewer samples than a batch and never train"):
        ps.Clients(DATA, SPLIT, per_round=1, batch_size=8, drop_last=True)


def test_what_is_held_out_is_drawn_in_proportion_to_labels() -> None:
    labels = torch.arange(400) // 100  # as folders of images lie
    inputs = torch.randn(400, 2)
    plain = TensorDataset(inputs, labels)
    named = Normalised(inputs, torch.randn(400))
    named.targets = labels.tolist()  # type: ignore[attr-defined]
    parts = ps.splits.iid(400, 4)
    for data in (plain, named, Subset(plain, range(400))):
        clients = ps.Clients(data, parts, per_round=4, held_out=0.25)
        for client, part in enumerate(parts):
            stay, out = clients.divided(client, seed=0)
            assert sorted([*stay, *out]) == sorted(part)
            wanted = labels[part].bincount(minlength=4) * 0.25
            assert (labels[out].bincount(minlength=4) - wanted).abs().max() <= 1
    unlabelled = ps.Clients([(one,) for one in inputs], parts, per_round=4, held_out=0.25)
    (_, first), (_, second) = unlabelled.divided(0, seed=0), unlabelled.divided(0, seed=1)
    assert set(first) != set(second), "the seed draws"
    assert np.array_equal(first, unlabelled.divided(0, seed=0)[1])
    assert len({int(label) for label in labels[first]}) > 1


# A schedule


def exponential(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


def scheduled(worker: ps.Worker, rounds: int = 6) -> list[tuple[int, float]]:
    model, optimizer, clients, schedule = prepared(worker, DATA, exponential, rounds=rounds)
    rates = []
    for client in clients:
        rates.append((client.round, optimizer.param_groups[0]["lr"]))
        fit(model, optimizer, client)
        schedule.step()
    return rates


def test_a_prepared_schedule_goes_by_round_for_any_number_of_workers_and_after_a_resume(tmp_path: Path) -> None:
    runs = [simulated(scheduled, workers=workers) for workers in (1, 2, 3)]
    for run in runs:
        for round, rate in [one for rates in run.returned for one in rates]:
            assert rate == pytest.approx(0.5 * 0.8**round)
        torch.testing.assert_close(run.state_dict["weight"], runs[0].state_dict["weight"], **CLOSE)
    first = simulated(
        scheduled, workers=2, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=1), until=ps.Until(samples=180)
    )
    second = simulated(scheduled, workers=2, resume=first.folder)
    assert {round for rates in second.returned for round, _ in rates} == {3, 4, 5}
    torch.testing.assert_close(second.state_dict["weight"], runs[0].state_dict["weight"], **CLOSE)


def test_a_schedule_by_step_or_by_metric_is_told_or_refused() -> None:
    def by_step(worker: ps.Worker) -> None:
        model, optimizer, clients, schedule = prepared(worker, DATA, exponential, rounds=1)
        for client in clients:
            for batch in client:
                fit(model, optimizer, [batch])
                schedule.step()

    with pytest.warns(RuntimeWarning, match=r"ExponentialLR.step\(\) twice in a client's turn: .* goes by round"):
        simulated(by_step)
    with pytest.raises(ps.ConfigurationError, match="each worker would follow its own clients' metric"):
        simulated(lambda worker: prepared(worker, DATA, torch.optim.lr_scheduler.ReduceLROnPlateau))


# What a client is looped over for


@pytest.mark.parametrize("look", ["nothing", "one batch", "a loss before", "a loss after", "a list", "accumulated"])
def test_a_client_counts_with_the_samples_that_a_step_followed(look: str) -> None:
    def train(worker: ps.Worker) -> None:
        model, optimizer, clients = prepared(worker)
        for client in clients:
            if look == "one batch":
                next(iter(client))
            if look == "a loss before":
                with torch.no_grad():
                    sum(float(model(inputs).sum()) for inputs, _ in client)
            fit(model, optimizer, list(client) if look == "a list" else client)
            if look == "a loss after":
                sum(model(inputs).sum() for inputs, _ in client).item()
            assert client.samples == len(SPLIT[client.id])

    def accumulates(worker: ps.Worker) -> None:
        model, optimizer, clients = prepared(worker, rounds=1)
        for client in clients:
            for inputs, labels in client:
                nn.functional.cross_entropy(model(inputs), labels, reduction="sum").backward()
            optimizer.step()

    run = simulated(accumulates if look == "accumulated" else train)
    assert run.samples == sum(one.samples for one in run.summary.clients) == (60 if look == "accumulated" else 180)
    if look != "accumulated":
        check_as_by_hand(run)


def test_each_pass_over_a_client_has_an_order_of_its_own() -> None:
    orders: dict[tuple[bool, int], list[Any]] = defaultdict(list)

    def train(worker: ps.Worker, look: bool) -> None:
        _, _, clients = prepared(worker, rounds=1, shuffle=True, epochs=2)
        for client in clients:
            for _ in range(3):
                if look:
                    with torch.no_grad():
                        list(client)
                inputs = torch.cat([inputs for inputs, _ in client])
                orders[look, client.id] += [one.flatten().tolist() for one in inputs.chunk(2)]

    for look in (False, True):
        simulated(partial(train, look=look))
    for client in range(1, 4):
        assert len({tuple(one) for one in orders[False, client]}) == 6
        assert len({tuple(sorted(one)) for one in orders[False, client]}) == 1
        assert orders[False, client] == orders[True, client], "a pass without gradients changes nothing"


# Whose turn it is


@pytest.mark.parametrize("strategy", [ps.fedavg(), ps.fedbuff(4)], ids=lambda one: str(one.name))
def test_a_loop_that_is_left_and_taken_up_again_trains_each_client_once(strategy: Any) -> None:
    def train(worker: ps.Worker, breaks: bool) -> None:
        model, optimizer, clients = prepared(worker)
        for number, client in enumerate(clients if breaks else ()):
            fit(model, optimizer, client)
            if number == 1:
                break
        for client in clients:
            fit(model, optimizer, client)

    left, whole = (simulated(partial(train, breaks=breaks), strategy) for breaks in (True, False))
    assert (left.version, left.samples) == (whole.version, whole.samples) == (3, 180)
    assert torch.equal(left.state_dict["weight"], whole.state_dict["weight"])
    if strategy.gather.in_rounds:
        check_as_by_hand(left)


def of_a_list(model: Any, optimizer: Any, clients: Any) -> None:
    for client in list(clients):
        fit(model, optimizer, client)


def one_ahead(model: Any, optimizer: Any, clients: Any) -> None:
    for client, _ in pairwise(clients):
        fit(model, optimizer, client)


def one_inside(model: Any, optimizer: Any, clients: Any) -> None:
    for first in clients:
        batches = iter(first)
        next(batches)
        fit(model, optimizer, next(iter(clients)))
        next(batches)


def of_kept_batches(model: Any, optimizer: Any, clients: Any) -> None:
    for batches in [list(client) for client in clients]:
        fit(model, optimizer, batches)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (of_a_list, "its turn is over, for the loop over clients has gone on"),
        (one_ahead, "its turn is over"),
        (one_inside, "its turn is over"),
        (of_kept_batches, r"optimizer.step\(\) outside of a client's turn"),
    ],
)
def test_two_clients_at_once_are_refused(loop: Any, words: str) -> None:
    def train(worker: ps.Worker) -> None:
        loop(*prepared(worker))

    with pytest.raises(ps.ConfigurationError, match=words):
        simulated(train)


def test_a_client_that_trains_on_other_data_is_refused() -> None:
    def train(worker: ps.Worker) -> None:
        model, optimizer, clients = prepared(worker)
        for client in clients:
            fit(model, optimizer, [(INPUTS[SPLIT[client.id]], LABELS[SPLIT[client.id]])])

    with pytest.raises(ps.ConfigurationError, match="none of its steps followed one of its batches"):
        simulated(train)


# Sites


def site(worker: ps.Worker, told: tuple[int | None, ...]) -> None:
    """Site 0 ends at +1, site 1 at -1."""
    model = nn.Linear(1, 1)
    model.weight.requires_grad_(False)
    model.bias.data.zero_()
    model, optimizer = worker.prepare(model, torch.optim.SGD([model.bias], lr=1.0))
    for _ in range(50):
        optimizer.zero_grad()
        (model(torch.zeros(1, 1)).mean() * (1 if worker.rank else -1) / 50).backward()
        optimizer.step()
    worker.contribute(samples=told[worker.rank])


def test_a_site_weighs_by_the_samples_that_it_says_and_by_none_if_it_says_0() -> None:
    for told, wanted in (((100, 300), -0.5), ((0, 300), -1.0), ((None, None), 0.0)):
        run = simulated(partial(site, told=told), workers=2)
        assert float(run.state_dict["bias"]) == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ps.ConfigurationError, match="nobody in this round trained on any sample"):
        simulated(partial(site, told=(0, 0)), workers=2)
    with pytest.warns(
        RuntimeWarning, match=r"samples=5\) without an optimizer.step\(\) since the last: it counts for nothing"
    ):
        run = simulated(lambda worker: (site(worker, (100, 300)), worker.contribute(samples=5)), workers=2)
    assert float(run.state_dict["bias"]) == pytest.approx(-0.5, abs=1e-5)
    with pytest.raises(ps.ConfigurationError, match=r"worker 0 says no samples, .* on every worker or on none"):
        simulated(partial(site, told=(None, 300)), workers=2)


# Clients whose data raise


class Files(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if index in (13, 14):  # the second batch of client 1
            raise OSError("truncated file")
        return DATA[index]


def reads_files(worker: ps.Worker, **settings: Any) -> None:
    model, optimizer, clients = prepared(worker, Files(), **settings)
    for client in clients:
        for batch in client:
            fit(model, optimizer, [batch])
        client.log(size=len(batch))


@pytest.mark.parametrize("batch_size", [6, 60])
def test_a_client_whose_data_raise_is_left_out_and_named(batch_size: int) -> None:
    """In its second batch, or in its first: then it has no turn."""
    train = partial(reads_files, on_client_error="skip", batch_size=batch_size)
    with pytest.warns(RuntimeWarning, match="client 1, round 2: OSError: truncated file; it is left out of the round"):
        run = simulated(train, workers=2)
    assert (run.version, run.batches_unvisited) == (3, 0)
    assert [(one.client, one.left_out) for one in run.summary.clients if one.left_out] == [(1, 3)]
    assert run.samples == 3 * 48
    if batch_size == 6:
        check_as_by_hand(run, left_out=(1,))


def test_a_run_that_goes_on_without_workers_goes_on_without_clients_and_else_they_are_named(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="client 1, round 2"):
        buffered = simulated(reads_files, ps.fedbuff(3), workers=2, on_worker_error="continue", runs=tmp_path)
    assert [(one.client, one.left_out) for one in buffered.summary.clients if one.left_out] == [(1, 3)]
    assert (buffered.version, buffered.batches_unvisited) == (3, 0)
    assert ps.replay(buffered.folder, reads_files).identical
    for settings in ({}, {"on_worker_error": "continue"}):
        train = partial(reads_files, on_client_error="raise") if settings else reads_files
        with pytest.raises(ps.PlesioError, match=r"(?s)truncated file.*the turn of client 1, round 0"):
            simulated(train, **settings)


@pytest.mark.parametrize("far", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["remote", "of this host"])
def test_workers_that_join_go_on_without_clients_as_the_run_does(far: bool) -> None:
    run = remote.run(reads_files, ps.fedbuff(3), workers=2, far=far, on_worker_error="continue")
    assert [(one.client, one.left_out) for one in run.summary.clients if one.left_out] == [(1, 3)]


def test_a_round_of_too_few_clients_ends_the_run() -> None:
    skipping = partial(reads_files, on_client_error="skip")
    assert simulated(partial(skipping, clients_min=3), workers=2).version == 3
    with pytest.raises(ps.ConfigurationError, match="round 0: 3 clients count, of clients_min=4"):
        simulated(partial(skipping, clients_min=4), workers=2)
    with pytest.raises(ps.ConfigurationError, match=r"fedbuff.* has no rounds that wait for clients"):
        simulated(partial(skipping, clients_min=1), ps.fedbuff(2))


# Tables of sparse gradients


def test_a_leash_holds_a_table_of_sparse_gradients_as_it_holds_a_dense_one() -> None:
    ids = torch.randint(0, 20, (60, 3), generator=torch.Generator().manual_seed(0))

    def train(worker: ps.Worker, sparse: bool) -> None:
        torch.manual_seed(1)
        table = nn.Embedding(20, 4, sparse=sparse)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
        clients = ps.Clients(TensorDataset(ids, LABELS.float()), SPLIT, per_round=4, rounds=2, batch_size=5)
        table, optimizer, clients = worker.prepare(table, optimizer, clients)
        for client in clients:
            for some, wanted in client:
                optimizer.zero_grad()
                ((table(some).sum((1, 2)) - wanted) ** 2).mean().backward()
                optimizer.step()

    one, other = (simulated(partial(train, sparse=sparse), ps.fedprox(0.3)) for sparse in (True, False))
    torch.testing.assert_close(one.state_dict["weight"], other.state_dict["weight"], **CLOSE)


# Privacy


def private(**settings: Any) -> Any:
    return ps.fedavg(privacy=ps.Privacy(**{"clip": 1.0, "noise": 1.0, "delta": 1e-3, "per_round": 1, **settings}))


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_private_round_without_clients_is_a_release_too(workers: int) -> None:
    """With 12 clients of which 1 is expected, about a third of the rounds are empty."""

    def train(worker: ps.Worker) -> None:
        model = nn.Linear(1000, 1, bias=False)
        data = ps.Clients(TensorDataset(torch.randn(12, 1000)), [[one] for one in range(12)], per_round=1, rounds=30)
        nn.init.zeros_(model.weight)
        model, optimizer, clients = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), data)
        for client in clients:
            for (inputs,) in client:
                model(inputs).sum().backward()
                optimizer.step()

    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp

    run = simulated(train, private(), workers, seed=9)
    assert run.version == 30
    assert float(run.state_dict["weight"].std()) == pytest.approx(30**0.5, rel=0.1)
    (told,) = [one.metrics["epsilon"] for one in run.logged if "epsilon" in one.metrics]
    event = PoissonSampledDpEvent(1 / 12, GaussianDpEvent(1.0))
    assert told == pytest.approx(rdp.RdpAccountant().compose(event, 30).get_epsilon(1e-3))


def test_what_would_leave_without_noise_is_refused_under_privacy() -> None:
    def logs(worker: ps.Worker) -> None:
        *_, clients = prepared(worker)
        for _ in clients:
            worker.log(loss=1.0)

    with pytest.raises(ps.ConfigurationError, match=r"worker.log under privacy=: .* judge versions by evaluate="):
        simulated(logs, private(per_round=4), seed=9)
    with pytest.raises(ps.ConfigurationError, match="a loop over own data is not clipped"):
        simulated(partial(site, told=(1,)), private(), seed=9)


# A worker that was away


def test_a_worker_that_lost_its_seat_goes_on_in_the_round_that_the_run_is_in() -> None:
    """What it trained in the round is trained by others, and told by them."""
    used, state, told, asked = DataUse(), WorkerState(0, 0), [], []
    left = dict.fromkeys(range(10), 4)

    def lease(request: LeaseRequest) -> LeaseReply:
        round = request.epoch
        asked.append(round)
        left[round] -= request.most
        return LeaseReply(((round, left[round]),) if left[round] >= 0 else (), epoch=float(round))

    def end_round(release: bool) -> None:
        used()
        exchange.taken = state.version != 2
        state.version += 1
        if not exchange.taken:  # the others made versions meanwhile
            used.lose()
            state.version += 4

    exchange = Mock(
        ClientExchange, strategy=ps.fedavg(), in_rounds=True, taken=True, client_steps=0, begin_client=lambda: None,
        end_client=lambda samples: True, end_round=end_round, used=used,
    )  # fmt: skip
    context = SimpleNamespace(
        rank=0, workers=1, seed=0, state=state, lenient=False, by_round=False, lease=lease, now_s=lambda: 0.0,
        visited=told.extend,
    )  # fmt: skip
    clients, model = ps.Clients(DATA, SPLIT, per_round=4, rounds=9), nn.Linear(1, 1)
    lent = LeasedClients(clients, context, [])  # type: ignore[arg-type]
    lent.begun(Taking(model, torch.optim.SGD(model.parameters())), exchange)
    rounds = [client.round for client in lent]
    assert rounds == [round for round in (0, 1, 2, 7, 8) for _ in range(4)]
    assert [one.round for one in told] == [round for round in (0, 1, 7, 8) for _ in range(4)]
