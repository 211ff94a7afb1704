"""SCAFFOLD against a plain loop over the clients that were drawn; and the server's variate is the clients' mean, whoever dies."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart
from plesio.server.checkpoints import read
from plesio.strategy import Strategy
from plesio.strategy.answers import Buffer, Clients, Delta, Everything, Freely, Int8, Outer
from plesio.transport.client_states import FOLDER, ClientStates
from plesio.worker.clients.turn import Client
from support.loops import CLASSES, FEATURES, adam, batch_norm, data, momentum
from support.runs import assert_replays

INPUTS, LABELS = data(228)
MANY = 12
CLOSE = {"rtol": 0.0, "atol": 1e-6}
UNEVEN = Cluster((Group(2, LogNormal(0.1, 0.3)), Group(1, Constant(0.3))))


class Net(nn.Module):
    """One layer is never used, and one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(8, 8).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(inputs)))))


def clients(**settings: Any) -> ps.Clients:
    split = ps.splits.sizes(228, range(8, 8 + 2 * MANY, 2), seed=1)
    usual = {"per_round": 4, "rounds": 5, "epochs": 2, "batch_size": 8, "state": "keep"}
    return ps.Clients(TensorDataset(INPUTS, LABELS), split, **{**usual, **settings})


def plain(model: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def in_groups(model: Net) -> torch.optim.Optimizer:
    groups = [{"params": model.first.parameters(), "lr": 0.05}, {"params": [*model.last.parameters()]}]
    return torch.optim.SGD([*groups, {"params": [*model.unused.parameters()]}], lr=0.1, weight_decay=0.01)


Make = Callable[[Net], torch.optim.Optimizer]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, client: Any, correct: Callable[[], None]) -> None:
    """The turn of a client, whose rate falls."""
    first = [group["lr"] for group in optimizer.param_groups]
    for inputs, labels in client:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        correct()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
    for group, lr in zip(optimizer.param_groups, first, strict=True):
        group["lr"] = lr


def train(worker: ps.Worker, make: Make = plain, pause_s: float = 0.0, **settings: Any) -> None:
    model = Net()
    model, optimizer, lent = worker.prepare(model, make(model), clients(**settings))
    for client in lent:
        steps(model, optimizer, client, lambda: time.sleep(pause_s) if pause_s else None)


def by_hand(rounds: int, make: Make = plain, lr: float = 1.0, left_out: Any = lambda client: False) -> Any:
    """Option II, as the paper writes it: the parameters, c, and each c_i."""
    lent, model = clients(rounds=rounds), Net()
    trained = [one for one in model.parameters() if one.requires_grad]
    x = [one.detach().clone() for one in trained]
    c = [torch.zeros_like(one) for one in x]
    own = {client: [torch.zeros_like(one) for one in x] for client in range(MANY)}
    for round in range(rounds):
        drawn = lent.drawn(0, round)
        moved, changed = [torch.zeros_like(one) for one in x], [torch.zeros_like(one) for one in x]
        for number in drawn:
            for parameter, begun in zip(trained, x, strict=True):
                parameter.data.copy_(begun)
            optimizer, rates, mine = make(model), [0.0] * len(x), own[number]
            group_of = {id(one): group for group in optimizer.param_groups for one in group["params"]}

            def correct(group_of: Any = group_of, mine: Any = mine, rates: Any = rates, c: Any = c) -> None:
                for at, parameter in enumerate(trained):
                    slope = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = slope - mine[at] + c[at]
                    rates[at] += group_of[id(parameter)]["lr"]

            client = Client(lent, number, round, 0, count().__next__)
            steps(model, optimizer, client, correct)
            if left_out(client):
                continue
            new = [mine[at] - c[at] + (x[at] - y.detach()) / rates[at] for at, y in enumerate(trained)]
            for at, y in enumerate(trained):
                moved[at] += y.detach() - x[at]
                changed[at] += new[at] - mine[at]
            own[number] = new
        x = [one + lr / len(drawn) * moved[at] for at, one in enumerate(x)]
        c = [one + changed[at] / MANY for at, one in enumerate(c)]
    named = [name for name, one in model.named_parameters() if one.requires_grad]
    return dict(zip(named, x, strict=True)), dict(zip(named, c, strict=True)), own


def assert_as(run: ps.Run, wanted: dict[str, torch.Tensor], **tolerance: float) -> None:
    torch.testing.assert_close({name: run.state_dict[name] for name in wanted}, wanted, **(tolerance or CLOSE))


def simulated(strategy: Strategy, workers: int = 2, cluster: Any = "uniform", **settings: Any) -> ps.Run:
    options = {key: settings.pop(key) for key in ("runs", "checkpoint", "resume", "until") if key in settings}
    return ps.run(partial(train, **settings), strategy, workers=workers, engine=ps.Simulated(cluster), **options)


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("make", "lr"), [(plain, 1.0), (in_groups, 0.7)])
def test_rounds_equal_a_plain_loop(workers: int, make: Make, lr: float) -> None:
    run = simulated(ps.scaffold(lr=lr), workers, make=make)
    wanted, _, _ = by_hand(5, make, lr)
    assert run.version == 5
    assert list(run.state_dict) == list(Net().state_dict()), "no control variate among them"
    assert_as(run, wanted)


def test_real_workers_do_what_simulated_ones_do() -> None:
    run = ps.run(train, ps.scaffold(), workers=2)
    wanted, _, _ = by_hand(5)
    assert_as(run, wanted)


def variates(run: ps.Run) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """The server's, and each client's, as a run's last checkpoint has them."""
    folder = max((run.folder / "checkpoints").iterdir())
    saved = read(folder)
    names, state = len(Net().state_dict()), saved.state()
    common = [state[f"tensor {names + at}"] for at in range(6)]
    kept = ClientStates(run.folder / FOLDER)
    files = [kept.get(client, saved.manifest.version) for client in range(MANY)]
    own = [torch.load(io.BytesIO(one), weights_only=True)["scaffold"] for one in files if one is not None]
    return common, own


def check_mean(run: ps.Run) -> None:
    """c is the mean of all c_i; of those that never trained it is zero."""
    common, own = variates(run)
    assert len(own) > 6
    for at, one in enumerate(common):
        torch.testing.assert_close(one, sum(mine[at] for mine in own) / MANY, rtol=1e-5, atol=2e-6)
    assert any(float(one.abs().max()) > 1e-3 for one in common)


def test_the_servers_variate_is_the_mean_of_the_clients(tmp_path: Path) -> None:
    run = simulated(ps.scaffold(), 3, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.5))
    check_mean(run)
    _, wanted, own = by_hand(5)
    common, kept = variates(run)
    for value, one in zip(wanted.values(), common, strict=True):
        torch.testing.assert_close(one, value, rtol=0.0, atol=2e-6)
    assert len(kept) == sum(any(bool(one.any()) for one in mine) for mine in own.values())


@pytest.mark.thorough
def test_a_dead_worker_moves_neither_or_both(tmp_path: Path) -> None:
    faults = tuple(one for at in (0.75, 2.2) for one in (Crash(worker=1, at_s=at), Restart(worker=1, at_s=at + 0.5)))
    cluster = Cluster((Group(3, Constant(0.1)),), faults=faults)
    run = simulated(ps.scaffold(), 3, cluster, rounds=9, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.5))
    check_mean(run)
    assert_replays(run, partial(train, rounds=9))


@pytest.mark.thorough
def test_a_killed_process_moves_neither_or_both(tmp_path: Path) -> None:
    task, kill = partial(train, rounds=16, pause_s=0.003), ps.Kill(worker=1, after_s=0.3)
    often = ps.Checkpoint(every_s=0.2)
    run = ps.run(task, ps.scaffold(), workers=3, faults=[kill], runs=tmp_path, timeout_s=60, checkpoint=often)
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    check_mean(run)
    assert_replays(run, task)


def dying(worker: ps.Worker) -> None:
    """In round 2 worker 1 dies, when all that it has not begun is done."""
    model = Net()
    model, optimizer, lent = worker.prepare(model, plain(model), clients(per_round=MANY))
    for client in lent:
        if (worker.rank, client.round) == (1, 2):
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        steps(model, optimizer, client, lambda: None)


@pytest.mark.thorough
def test_a_turn_that_died_with_its_worker_is_not_made_in_a_round_that_has_the_client_again(tmp_path: Path) -> None:
    """Both turns would begin from the same state, of which one would be lost."""
    run = ps.run(dying, ps.scaffold(), workers=2, runs=tmp_path, timeout_s=60, checkpoint=ps.Checkpoint(every_s=0.2))
    assert [one.left for one in run.workers] == ["finished", "died"]
    assert run.version == 5
    assert sum(one.turns for one in run.summary.clients) == 5 * MANY - 1
    check_mean(run)


def test_clients_that_drop_out_count_as_not_moved(tmp_path: Path) -> None:
    run = simulated(ps.scaffold(), 2, dropout=0.3, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.5))
    lost = sum(one.left_out for one in run.summary.clients)
    assert 2 < lost < 12
    check_mean(run)
    lent = clients(dropout=0.3)

    def drops(client: Client) -> bool:
        other = Client(lent, client.id, client.round, 0, count().__next__)
        for _ in other:
            pass
        return other.dropped

    wanted, _, _ = by_hand(5, left_out=drops)
    assert_as(run, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize(("workers", "cluster"), [(1, "uniform"), (3, UNEVEN)], ids=["1", "3"])
def test_a_resumed_run_is_the_same_and_replays(workers: int, cluster: Any, tmp_path: Path) -> None:
    """To the last bit, but for the order in which several workers' clients are added up."""
    close = CLOSE if workers > 1 else {"rtol": 0.0, "atol": 0.0}
    one = partial(simulated, ps.scaffold(), workers, cluster, rounds=6)
    whole = one()
    until = ps.Until(seconds=0.6 * whole.summary.wall_s)
    first = one(runs=tmp_path / "a", checkpoint=ps.Checkpoint(every_s=0.4), until=until)
    assert 0 < first.version < 6
    second = one(runs=tmp_path / "b", resume=first.folder)
    assert_replays(second, partial(train, rounds=6))
    assert_as(second, whole.state_dict, **close)
    with pytest.raises(ps.CheckpointError, match=r"control variates"):
        simulated(ps.fedavg(), workers, cluster, rounds=6, resume=first.folder)


def site(worker: ps.Worker) -> None:
    model = Net()
    worker.prepare(model, plain(model))


def buffers(worker: ps.Worker) -> None:
    model = batch_norm()
    worker.prepare(model, plain(model), clients())


def clamps(worker: ps.Worker) -> None:
    model = Net()
    worker.prepare(model, plain(model), clients(), after_step=lambda parameters: None)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (partial(train, make=adam), r"Adam moves it otherwise; prepare torch.optim.SGD with momentum=0"),
        (partial(train, make=momentum), r"SGD moves it otherwise"),
        (partial(train, state=None), r"keeps its control variate; say ps.Clients\(..., state='keep'\)"),
        (site, r"give prepare ps.Clients"),
        (buffers, r"1.running_mean"),
        (clamps, r"leave out after_step="),
    ],
    ids=["adam", "momentum", "state", "site", "buffers", "after_step"],
)
def test_who_cannot_take_part(task: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(task, ps.scaffold(), workers=1, engine=ps.Simulated("uniform"))


@pytest.mark.parametrize(
    "change",
    [
        {"send": Delta(Int8(), control=True)},
        {"every": Clients(proximal=0.1)},
        {"gather": Buffer(3), "release": Freely(), "admit": Everything()},
        {"outer": Outer("SGD", lr=1.0)},
        {"outer": Outer("SGD", "sum", lr=1.0, momentum=0.9)},
    ],
    ids=["codec", "leash", "buffer", "mean", "momentum"],
)
def test_a_strategy_that_cannot_be(change: dict[str, Any]) -> None:
    fields = {field: getattr(ps.scaffold(), field) for field in ps.scaffold().__slots__}
    with pytest.raises(ps.StrategyError, match=r"take scaffold\(\), without buffers, codec"):
        Strategy(**{**fields, **change})


def test_gradients_stay_the_users() -> None:
    """A loop may step twice by the same ones, or add to them: each step has one correction."""
    seen: list[bool] = []

    def check(worker: ps.Worker) -> None:
        model = Net()
        model, optimizer, lent = worker.prepare(model, plain(model), clients())
        for client in lent:
            for inputs, labels in client:
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                before = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
                optimizer.step()
                now = [one.grad for one in model.parameters()]
                seen.append(all(a is b or torch.equal(a, b) for a, b in zip(before, now, strict=True)))  # type: ignore[arg-type]

    ps.run(check, ps.scaffold(), workers=1, engine=ps.Simulated("uniform"))
    assert seen
    assert all(seen)
