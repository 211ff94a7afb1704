"""`prepare(tables=N)`: large embeddings become tables. What comes out is what torch makes of the embedding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.tables.spec import TableSpec
from plesio.tables.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch's Adagrad
ROWS, DIM, STEPS = 60, 5, 12
ENGINES: dict[str, dict[str, Any]] = {"real": {"timeout_s": 60}, "simulated": {"engine": ps.Simulated("uniform")}}
ALONE: dict[str, Any] = {"strategy": ps.sync_sgd(), "workers": 1, "engine": ps.Simulated("uniform")}
each_engine = pytest.mark.parametrize("engine", ENGINES)
Optimizers = Callable[[Any], list[Optimizer]]


class Net(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.emb = nn.Embedding(ROWS, DIM, sparse=True, **options)
        self.small = nn.Embedding(10, DIM, sparse=True)
        self.top = nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(self.emb(ids) + self.small(ids[:1] % 10))
        return out.square().mean()


def dense(net: Any) -> list[nn.Parameter]:
    return [*net.small.parameters(), *net.top.parameters()]


def apart(kind: Any, **options: Any) -> Optimizers:
    """An optimizer of its own for the weight."""
    return lambda net: [SGD(dense(net), lr=0.1), kind(net.emb.parameters(), **options)]


def sgd_in_groups(net: Any) -> list[Optimizer]:
    return [SGD([{"params": net.emb.parameters(), "lr": 0.3}, {"params": dense(net)}], lr=0.1)]


OPTIMIZERS: dict[str, Optimizers] = {
    "one": lambda net: [SGD(net.parameters(), lr=0.1)],
    "groups": sgd_in_groups,
    "SGD": apart(SGD, lr=0.3),
    "Adagrad": apart(Adagrad, lr=0.3, initial_accumulator_value=0.5, eps=1e-6),
    "SparseAdam": apart(SparseAdam, lr=0.02, betas=(0.8, 0.95)),
}

EXACT = ("one", "groups", "SGD")
"""The others are as torch's but for its square roots (see `test_tables_store`)."""


def batches(steps: int = STEPS) -> list[torch.Tensor]:
    """Distinct ids: torch adds up the gradients of equal ones in no certain order."""
    source = torch.Generator().manual_seed(1)
    return [torch.randperm(ROWS, generator=source)[:9] for _ in range(steps)]


def steps(net: Any, optimizers: Any, some: Any) -> None:
    for ids in some:
        for one in optimizers:
            one.zero_grad()
        net(ids).backward()
        for one in optimizers:
            one.step()


def in_run(worker: Any, optimizers: Optimizers, before: int = 0, **options: Any) -> None:
    net = Net(**options)
    given = optimizers(net)
    steps(net, given, batches(before))
    net, *given = worker.prepare(net, *given, tables=20)
    assert isinstance(net.emb, ps.Table)
    assert isinstance(net.small, nn.Embedding)
    steps(net, given, batches()[before:])


def in_torch(optimizers: Optimizers, **options: Any) -> Net:
    net = Net(**options)
    steps(net, optimizers(net), batches())
    return net


def assert_torchs(run: ps.Run, net: Net, exact: bool) -> None:
    mine = Net()
    mine.load_state_dict(run.state_dict)
    for (name, one), other in zip(mine.state_dict().items(), net.state_dict().values(), strict=True):
        if exact:
            assert torch.equal(one, other), name
        else:
            assert (one - other).abs().max() <= np.spacing(other.abs().max().numpy()), name


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("kind", "engine", "more"),
    [
        *((kind, "simulated", {}) for kind in OPTIMIZERS),
        ("groups", "real", {}),
        *((kind, "simulated", {"before": 5, "padding_idx": 7}) for kind in OPTIMIZERS),
    ],
)
def test_an_embedding_trains_as_in_torch(kind: str, engine: str, more: dict[str, Any], tmp_path: Path) -> None:
    """What the optimizer remembers of steps before goes with the rows; a padding index has no gradient."""
    loop = partial(in_run, optimizers=OPTIMIZERS[kind], **more)
    run = ps.run(loop, ps.sync_sgd(), workers=1, runs=tmp_path, **ENGINES[engine])
    options = {name: value for name, value in more.items() if name != "before"}
    assert_torchs(run, in_torch(OPTIMIZERS[kind], **options), exact=kind in EXACT)
    assert run.tables["emb"].rows == ROWS
    assert [*run.tables] == ["emb"]
    assert str(ps.replay(run.folder, loop)).startswith("bit-identical")
    if more:
        assert any(7 in ids for ids in batches())
        assert not run.state_dict["emb.weight"][7].any()


def shared(worker: Any, tables: int | None = 20) -> None:
    net = Net()
    data = TensorDataset(torch.randint(ROWS, (96, 3), generator=torch.Generator().manual_seed(2)))
    given = OPTIMIZERS["Adagrad"](net)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    net, first, second, loader = worker.prepare(net, *given, loader, tables=tables)
    for (ids,) in loader:
        first.zero_grad()
        second.zero_grad()
        net(ids).backward()
        first.step()
        second.step()


def looked(model: Any) -> dict[str, float]:
    return {"sum": float(model.emb(torch.arange(ROWS)).sum())}


@pytest.mark.few(1)
@each_engine
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.sync_sgd(), ps.local_sgd(2)], ids=lambda one: one.name)
def test_runs_are_evaluated_resumed_and_replayed(engine: str, strategy: Any, tmp_path: Path) -> None:
    options = {**ENGINES[engine], "evaluate": looked, "checkpoint": ps.Checkpoint()}
    stopped: dict[str, Any] = {"until": ps.Until(steps=12)}
    if engine == "real":
        stopped["pace"] = 0.1  # it hears of it a little later
    first = ps.run(shared, strategy, workers=3, runs=tmp_path / "a", **stopped, **options)
    run = ps.run(shared, strategy, workers=3, runs=tmp_path / "b", resume=first.folder, **options)
    assert run.history[-1].metrics["sum"] == pytest.approx(float(run.state_dict["emb.weight"].sum()), abs=1e-3)
    assert str(ps.replay(run.folder, shared)).startswith("bit-identical")
    assert torch.equal(load_file(run.folder / "weights.safetensors")["emb.weight"], run.state_dict["emb.weight"])
    assert run.tables["emb"].kept()["versions"].max() > first.tables["emb"].kept()["versions"].max()


def test_a_worker_makes_no_index_of_the_rows_nor_keeps_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(Store):
        def __init__(self, spec: TableSpec, survives: int = 0) -> None:
            made.append(spec.name)
            super().__init__(spec, survives)

    def loop(worker: Any) -> None:
        net = Net()
        weight = ref(net.emb.weight)
        net, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1), tables=20)
        assert weight() is None
        steps(net, [optimizer], batches())

    monkeypatch.setattr("plesio.tables.store.Store", Counted)
    monkeypatch.setattr("plesio.memory.row_tables.Store", Counted)
    monkeypatch.setattr("plesio.tables.Store", Counted)
    run = ps.run(loop, ps.sync_sgd(), workers=3, engine=ps.Simulated("uniform"))
    assert run.state_dict["emb.weight"].shape == (ROWS, DIM)
    assert made.count("emb") == 1, "the server's"
    assert "table" not in made


def nothing(worker: Any) -> None:
    net = Net()
    net, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1), tables=ROWS)
    assert isinstance(net.emb, nn.Embedding)
    steps(net, [optimizer], batches())


def test_where_nothing_is_large_enough_nothing_happens() -> None:
    run = ps.run(nothing, **ALONE)
    assert_torchs(run, in_torch(OPTIMIZERS["one"]), exact=True)
    assert run.tables == {}


def test_what_is_not_trained_stays_as_it_is() -> None:
    """Frozen, dense, or in no optimizer."""

    def loop(worker: Any) -> None:
        net = Net()
        net.emb.weight.requires_grad_(False)
        net.dense, net.unheld = nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM, sparse=True)
        held = [one for name, one in net.named_parameters() if not name.startswith("unheld")]
        with (
            pytest.warns(RuntimeWarning, match="no group of an optimizer given to prepare holds unheld.weight"),
            pytest.warns(RuntimeWarning, match=r"prepare.tables=20.: no embedding became a table, for dense lacks"),
        ):
            net, optimizer = worker.prepare(net, SGD(held, lr=0.1), tables=20)
        assert not any(isinstance(one, ps.Table) for one in net.modules())
        steps(net, [optimizer], batches(1))

    ps.run(loop, **ALONE)


# What an embedding can do besides


class Bags(nn.Module):
    def __init__(self, mode: str, last: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.emb = nn.EmbeddingBag(ROWS, DIM, mode=mode, sparse=True, include_last_offset=last)
        self.top = nn.Linear(DIM, 1)
        self.last = last

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weights = ids / ROWS if self.emb.mode == "sum" else None
        ends = [0, 2, 2, 9] if self.last else [0, 2, 2]
        flat = self.top(self.emb(ids, torch.tensor(ends), weights))
        out: torch.Tensor = flat.square().mean()
        with torch.no_grad():
            self.emb(ids.int().view(3, 3))
        return out


def bags_in_run(worker: Any, mode: str, last: bool) -> None:
    net = Bags(mode, last)
    net, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.3), tables=20)
    steps(net, [optimizer], batches())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags(mode: str, last: bool) -> None:
    run = ps.run(partial(bags_in_run, mode=mode, last=last), **ALONE)
    net = Bags(mode, last)
    steps(net, [SGD(net.parameters(), lr=0.3)], batches())
    for name, one in net.state_dict().items():
        torch.testing.assert_close(run.state_dict[name], one, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_index_out_of_range_is_an_error_as_in_torch(wrong: int) -> None:
    def loop(worker: Any) -> None:
        net = Net()
        worker.prepare(net, SGD(net.parameters(), lr=0.1), tables=20)
        assert net.emb(torch.tensor([3, ROWS - 1], dtype=torch.int32)).shape == (2, DIM)
        net.emb(torch.tensor([3, wrong]))

    with pytest.raises(IndexError, match="index out of range"):
        Net().emb(torch.tensor([3, wrong]))
    with pytest.raises(ps.WorkerError, match=r"IndexError: index out of range: got .* and there are 60 rows"):
        ps.run(loop, **ALONE)


# What is refused


class Scaled(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(ids)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, ROWS)
        self.out.weight = self.emb.weight


class Odd(Net):
    def __init__(self, emb: nn.Module) -> None:
        super().__init__()
        self.emb = emb


def scheduled(net: Any) -> list[Any]:
    optimizers = OPTIMIZERS["SGD"](net)
    return [*optimizers, torch.optim.lr_scheduler.ConstantLR(optimizers[1])]


def refused(worker: Any, build: Any = Net, optimizers: Any = OPTIMIZERS["one"], tables: Any = 20) -> None:
    net = build()
    worker.prepare(net, *optimizers(net), tables=tables)


def changes_the_rate(worker: Any, kind: str) -> None:
    net = Net()
    net, *given = worker.prepare(net, *OPTIMIZERS[kind](net), tables=20)
    steps(net, given, batches(1))
    for one in given:
        one.param_groups[0]["lr"] /= 2
    steps(net, given, batches(1))


KEEPS = r"became a table .* was changed to 0.*: its rows keep 0"
WHOLE = "a whole number of at least 0"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"build": lambda: Odd(Scaled(ROWS, DIM, sparse=True))}, "emb cannot become a table, for it is a Scaled"),
    ({"build": Tied}, "its weight has 2 names in the model"),
    ({"build": lambda: Net(max_norm=1.0)}, "a table has no max_norm"),
    ({"build": lambda: Net(scale_grad_by_freq=True)}, "no scale_grad_by_freq"),
    ({"build": lambda: Net(dtype=torch.float64)}, "its weight is torch.float64; rows are float32"),
    ({"build": lambda: Odd(nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True, padding_idx=2))}, "no padding_idx .got 'sum', 2."),
    ({"optimizers": apart(Adam)}, r"tables=20.: emb: rows do not step by Adam\(\)"),
    ({"optimizers": apart(SGD, momentum=0.9, weight_decay=0.1)}, r"SGD\(momentum=0.9, weight_decay=0.1\). Give its weight"),
    ({"optimizers": apart(Adagrad, lr_decay=0.1)}, r"Adagrad\(lr_decay=0.1\)"),
    ({"optimizers": apart(SparseAdam, maximize=True)}, r"SparseAdam\(maximize=True\)"),
    ({"optimizers": scheduled}, r"SGD\(initial_lr=0.3\). Give its weight an optimizer of its own"),
    ({"optimizers": lambda net: [SGD(net.emb.parameters(), lr=0.1)]}, "only tables would be left to train"),
    ({"tables": -1}, WHOLE), ({"tables": 2.5}, WHOLE), ({"tables": True}, WHOLE),
    ({"kind": "one"}, KEEPS), ({"kind": "groups"}, KEEPS), ({"kind": "SparseAdam"}, KEEPS),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_a_table_cannot_be_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(changes_the_rate if "kind" in given else refused, **given), **ALONE)


@pytest.mark.parametrize("strategy", ["hogwild", "allreduce"])
def test_strategies_without_a_server_for_rows_refuse(strategy: str) -> None:
    with pytest.raises(
        (ps.ConfigurationError, ps.WorkerError), match=r"the model has tables \(emb\), and .* cannot step"
    ):
        ps.run(shared, strategy, workers=2, timeout_s=60)
