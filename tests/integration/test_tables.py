"""`ps.Table` in runs: what the evaluation and the caller see of it, how a loop may use it, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.optim import SGD

import plesio as ps
from plesio.strategy import Strategy
from support.long_forms import but_slow, in_turn
from support.row_loop import Net, dealt, same_rows, samples

ENGINES: dict[str, dict[str, Any]] = {
    "real": {"timeout_s": 60, "servers": 2},
    "simulated": {"engine": ps.Simulated("uniform")},
}
each_engine = pytest.mark.parametrize("engine", ENGINES)
mostly_simulated = pytest.mark.parametrize("engine", but_slow([*ENGINES], {"simulated"}))


def by_name(one: Any) -> str:
    return str(getattr(one, "name", one))


def ran(loop: Any, engine: str, strategy: Strategy | None = None, workers: int = 2, **options: Any) -> ps.Run:
    return ps.run(loop, strategy or ps.async_sgd(), workers=workers, **ENGINES[engine], **options)


def looked(model: nn.Module, unknown: int = 10**9) -> dict[str, float]:
    """What an evaluation sees: the sum of all rows of each table, and of rows that nobody has."""
    ids, words = model.ids, model.deep["words"]
    sums = {"ids": ids(torch.arange(30)).double().sum(), "words": words(torch.arange(12)[:, None]).double().sum()}
    return {**{name: float(one) for name, one in sums.items()}, "unknown": float(ids(torch.tensor([unknown])).sum())}


def looked_both_ways(model: nn.Module, seen: Path | None = None) -> dict[str, float]:
    metrics = looked(model) | looked_with_gradients(model)
    if seen is not None:
        seen.touch()
    return metrics


@pytest.fixture(scope="module", params=ENGINES)
def evaluated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ps.Run:
    """A run that was evaluated with gradients and without; with real processes training goes on after the first time."""
    seen = tmp_path_factory.mktemp("evaluated") / "seen"
    loop = partial(dealt, epochs=4, pause_s=0.0, waits=seen if request.param == "real" else None)
    return ran(loop, request.param, evaluate=partial(looked_both_ways, seen=seen), evaluate_every_s=0.2)


@pytest.mark.few(1)
def test_evaluations_see_rows_as_they_are_and_the_last_one_as_they_end(evaluated: ps.Run) -> None:
    run = evaluated
    first, last = run.history[0].metrics, run.history[-1].metrics
    assert len({one.metrics["ids"] for one in run.history}) > 1, "rows move"
    assert first["unknown"] == last["unknown"], "what has no row is as it would be born"
    net = Net()
    net.ids, net.deep["words"] = run.tables["ids"], run.tables["deep.words"]
    with torch.no_grad():
        assert looked_both_ways(net) == pytest.approx(last, abs=1e-6)
    assert sorted(run.tables["ids"].get_extra_state()["keys"].tolist()) == sorted(samples()[0][:, :2].unique().tolist())


class Tied(nn.Module):
    """A step moves each row that is looked up, and each number of the dense part, by -1."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ps.Table(2, ps.RowSGD(1.0), scale=0.0)
        self.dense = nn.Parameter(torch.zeros(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.ids(ids).sum() + self.dense.sum()


def wait_for(path: Path) -> None:
    end_s = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end_s, f"{path.name} did not come"
        time.sleep(0.01)


def tied(worker: Any, folder: Path) -> None:
    net = Tied()
    net, optimizer = worker.prepare(net, SGD(net.parameters(), lr=1.0))
    for step in worker.steps(12):
        if step == 4:
            wait_for(folder / "judging")
        optimizer.zero_grad()
        net(torch.arange(40)).backward()
        optimizer.step()
        if step == 8:
            (folder / "trained").touch()


def looked_for_long(net: nn.Module, folder: Path) -> dict[str, float]:
    (folder / "judging").touch()
    early = net.ids(torch.arange(20))
    wait_for(folder / "trained")
    rows = torch.cat([early, net.ids(torch.arange(20, 40))])
    return {"dense": -float(net.dense[0]), "least": -float(rows.max()), "most": -float(rows.min())}


@pytest.mark.parametrize("servers", [1, 2])
def test_an_evaluation_is_of_one_version_while_rows_step(servers: int, tmp_path: Path) -> None:
    judge = partial(looked_for_long, folder=tmp_path)
    run = ps.run(
        partial(tied, folder=tmp_path),
        ps.sync_sgd(),
        workers=1,
        servers=servers,
        evaluate=judge,
        evaluate_every_s=0.01,
        timeout_s=60,
    )
    assert run.history[0].version <= 4
    assert run.history[-1].version == 12
    for one in run.history:
        assert one.metrics == {"dense": one.version, "least": one.version, "most": one.version}


def test_an_evaluation_that_asks_for_too_many_rows_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.transport.row_slots.MOST", 35)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"sum": float(model.ids(torch.arange(40)).sum())}

    with pytest.raises(ps.EvaluateError, match="wants 40 distinct rows of table 'ids'"):
        ran(partial(dealt, epochs=1, pause_s=0.0), "simulated", evaluate=evaluate)


@each_engine
def test_the_tables_of_a_run_are_tables(engine: str, tmp_path: Path) -> None:
    run = ran(partial(dealt, epochs=1, pause_s=0.0), engine)
    assert [*run.tables] == ["ids", "deep.words"]
    ids, words = run.tables["ids"], run.tables["deep.words"]
    assert isinstance(words, ps.TableBag)
    assert (words.mode, type(ids)) == ("mean", ps.Table)
    assert (ids.rows, f"{ids.rows} rows in this process" in repr(ids)) == (30, True)
    ids.save(tmp_path / "ids.safetensors")
    other = Net().ids
    other.load(tmp_path / "ids.safetensors")
    everything = torch.arange(30)
    assert torch.equal(other(everything), ids(everything))
    embedding, keys = ids.to_embedding()
    assert torch.equal(embedding(torch.arange(30)), ids(keys))
    before = ids(everything).detach()
    ids(everything[:3]).sum().backward()  # it steps rows by itself now
    assert (before != ids(everything)).any(1).sum() == 3
    assert not any(name.startswith("ids") for name in run.state_dict)


class Named(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.of = nn.ModuleDict({name: ps.Table(2, ps.RowSGD(0.5), seed=seed) for seed, name in enumerate(names)})
        self.top = nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(sum(one(ids) for one in self.of.values())).mean()


def test_each_table_has_a_file_of_its_own_whatever_its_name(tmp_path: Path) -> None:
    names = ["user/id", "user_id", "User_id", "user%2Fid", "user id", "ü", "x" * 250 + "a", "x" * 250 + "b", "y" * 140]

    def loop(worker: ps.Worker) -> None:
        net = Named(names)
        net, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1))
        for _ in worker.steps(2):
            optimizer.zero_grad()
            net(torch.arange(5)).backward()
            optimizer.step()

    run = ps.run(loop, ps.sync_sgd(), engine=ps.Simulated("uniform"), workers=1, runs=tmp_path)
    assert run.folder is not None
    assert not run.lacking
    files = [one for one in run.folder.iterdir() if one.name.startswith("table-")]
    assert len({one.name.lower() for one in files}) == len(names)
    found = dict[str, Any]()
    for file in files:
        with safe_open(file, framework="pt") as opened:
            name = json.loads(opened.metadata()["spec"])["name"]
        found[name] = ps.Table(2, ps.RowSGD(0.5))
        found[name].load(file)
    assert found.keys() == {f"of.{name}" for name in names}
    for name, table in found.items():
        assert torch.equal(table(torch.arange(5)), run.tables[name](torch.arange(5)))
    assert (run.folder / "table-of.user_id.safetensors") not in files, "another differs from it by case alone"
    assert (run.folder / "table-of.user%2Fid.safetensors") in files


def test_a_run_without_tables_has_none() -> None:
    assert ran(partial(dealt, tables=False, epochs=1, pause_s=0.0), "simulated").tables == {}


# How loops use tables


def validating(worker: Any) -> None:
    net = Net()
    model, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1))
    batch, labels = samples()
    for _ in range(6):
        optimizer.zero_grad()
        (model(batch[:8]).sigmoid() - labels[:8]).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()
            model(batch + 10**6)
            seen = net.ids(torch.arange(4) + 10**6)
            model.train()
        with torch.inference_mode():
            assert torch.equal(net.ids(torch.arange(4) + 10**6), seen)
    assert net.ids.rows == 0, "they lie elsewhere"


@pytest.mark.parametrize(
    ("strategy", "engine"), in_turn([ps.async_sgd(), ps.sync_sgd(), ps.local_sgd(2)], [*ENGINES]), ids=by_name
)
def test_a_validation_pass_in_a_worker_bears_no_row(engine: str, strategy: Strategy) -> None:
    run = ran(validating, engine, strategy)
    assert sorted(run.tables["ids"].get_extra_state()["keys"].tolist()) == samples()[0][:8, :2].unique().tolist()


def mixed(worker: Any) -> None:
    """Rows are pulled within `torch.autocast`, where others have steps meanwhile; and looked at in inference mode there."""
    net = Net()
    net.top = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1))
    batch, labels = samples()
    for step in range(8):
        some = slice(8 * step, 8 * step + 8)
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            warm = net.top(torch.ones(8, 10))  # casts the parameters, before rows are waited for
            loss = ((model(batch[some]) + warm[:, 0]).sigmoid() - labels[some]).square().mean()
            with torch.inference_mode():
                net.ids(torch.tensor([step]))
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", but_slow([ps.async_sgd(), ps.sync_sgd()], {"async_sgd"}), ids=by_name)
def test_what_torch_has_set_for_a_thread_is_one_workers(strategy: Strategy, tmp_path: Path) -> None:
    """In one process they take turns where they wait for rows: the bits are those of processes."""
    run = ran(mixed, "real", strategy, runs=tmp_path)
    assert run.folder is not None
    assert str(ps.replay(run.folder, mixed)) == f"bit-identical: {run.version:,} versions, all computed again"
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b = ps.Table(2, ps.RowSGD(0.1), seed=1), ps.Table(2, ps.RowSGD(0.1), seed=2)
        self.top = nn.Linear(2, 1)

    def forward(self, which: str, ids: list[int]) -> torch.Tensor:
        out: torch.Tensor = self.top(getattr(self, which)(torch.tensor(ids))).square().sum()
        return out


def odd_steps(model: Any, optimizer: Any) -> None:
    """A step that uses one of two tables; none of them; two backward passes, of overlapping ids; gradients that are dropped; a
    pass whose gradients nobody asks for; and a table in one pass only."""
    model("a", [1, 2, 1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.top(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model("a", [1, 3]).backward()
    model("b", [3, 1, 3]).backward()
    model("a", [3, 4]).backward()
    optimizer.step()
    optimizer.zero_grad()
    model("b", [8]).backward()
    optimizer.zero_grad()
    model("b", [9]).backward()
    model("b", [10])
    optimizer.step()
    optimizer.zero_grad()


def embeddings_of(net: Pair) -> None:
    """Two `nn.Embedding` with the same first rows in place of the tables."""
    for name in ("a", "b"):
        rows = getattr(net, name)(torch.arange(12)).detach().clone()
        delattr(net, name)
        setattr(net, name, nn.Embedding(12, 2, _weight=rows))


def assert_rows_are_torchs(run: ps.Run, steps: Any) -> None:
    """Those of two `nn.Embedding` with the same first rows, by plain SGD, bit for bit."""
    net = Pair()
    embeddings_of(net)
    steps(net, SGD(net.parameters(), lr=0.1))
    for name, table in run.tables.items():
        assert torch.equal(table(torch.arange(12)), getattr(net, name).weight), name
    assert torch.equal(run.state_dict["top.weight"], net.top.weight)


def zeroing_steps(model: Any, optimizer: Any) -> None:
    """Gradients that the model drops, of all tables or by a part; then a step, and what is left of it."""
    for drop in (model.zero_grad, model.a.zero_grad, model.top.zero_grad):
        model("a", [1, 2]).backward()
        model("b", [4]).backward()
        drop()
        model("a", [2, 3]).backward()
        optimizer.step()
        model.zero_grad()


def in_run(worker: Any, steps: Any) -> None:
    net = Pair()
    steps(*worker.prepare(net, SGD(net.parameters(), lr=0.1)))


@each_engine
def test_zero_grad_of_a_model_drops_the_gradients_of_rows(engine: str) -> None:
    assert_rows_are_torchs(ran(partial(in_run, steps=zeroing_steps), engine, workers=1), zeroing_steps)


def copying(model: Any, optimizer: Any) -> None:
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    model("a", [1]).backward()
    for one in copies:
        one.top(torch.ones(2)).sum().backward()
        one.zero_grad()
        assert one.top.weight.grad is None
        assert model.top.weight.grad is not None
    optimizer.step()


def test_copies_of_a_prepared_model_drop_their_own_gradients() -> None:
    assert ran(partial(in_run, steps=copying), "simulated", workers=1).tables["a"].rows == 1


def two_optimizers(worker: Any, order: str = "") -> None:
    """Row 1 has a gradient; then one of two optimizers, or both, call `zero_grad`; the second one steps."""
    net = Pair()
    net.more = nn.Linear(2, 1)
    given = SGD(net.top.parameters(), lr=0.1), SGD(net.more.parameters(), lr=0.1)
    model, first, second = worker.prepare(net, *given)
    model("a", [1]).backward()
    for name in order:
        {"1": first, "2": second}[name].zero_grad()
    model.more(torch.ones(2)).sum().backward()
    second.step()


@pytest.mark.parametrize(("order", "rows"), [("1", 0), ("2", 1), ("12", 0)])
def test_of_several_optimizers_the_first_drops_the_gradients_of_rows(order: str, rows: int) -> None:
    assert ran(partial(two_optimizers, order=order), "simulated", workers=1).tables["a"].rows == rows


def freezing_steps(model: Any, optimizer: Any) -> None:
    """One table is frozen, and looked up by each pass; later the other one is."""
    model.a.requires_grad_(False)
    for _ in range(2):
        (model("a", [1, 2]) + model("b", [1, 2])).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.b.requires_grad_(False)
        model.a.requires_grad_(True)


@each_engine
def test_a_frozen_table_has_rows_that_do_not_step(engine: str) -> None:
    assert_rows_are_torchs(ran(partial(in_run, steps=freezing_steps), engine, workers=1), freezing_steps)


def test_a_frozen_table_without_a_run() -> None:
    net = Pair()
    net.a.requires_grad_(False)
    net("a", [1]).backward()
    assert net.a.rows == 0
    assert copy.deepcopy(net).a.trainable is False


def frozen_part(worker: Any, said: bool | None = None) -> None:
    net = nn.ModuleDict({"tower": Pair(), "top": nn.Linear(2, 1)})
    net["tower"].requires_grad_(False)
    for table in (net["tower"].a, net["tower"].b) if said is not None else ():
        table.requires_grad_(said)
    net, optimizer = worker.prepare(net, SGD(net["top"].parameters(), lr=0.1))
    net["top"](torch.ones(2)).sum().backward()
    optimizer.step()


def test_who_freezes_a_part_with_tables_is_told_that_they_are_not() -> None:
    with pytest.warns(RuntimeWarning, match=r"tower is frozen, and its tables \(a, b\) are not"):
        ran(frozen_part, "simulated", workers=1)
    for said in (True, False):
        ran(partial(frozen_part, said=said), "simulated", workers=1)


@pytest.mark.parametrize(("strategy", "engine"), in_turn([ps.async_sgd(), ps.sync_sgd()], [*ENGINES]), ids=by_name)
def test_odd_steps_are_torchs(engine: str, strategy: Strategy) -> None:
    run = ran(partial(in_run, steps=odd_steps), engine, strategy, workers=1)
    for name, born in (("a", [1, 2, 3, 4]), ("b", [1, 3, 9])):
        table = run.tables[name]
        assert sorted(table.get_extra_state()["keys"].tolist()) == born
    assert_rows_are_torchs(run, odd_steps)


def ahead(worker: Any, way: str, asks: bool = True) -> int:
    """Loops in which not every batch is a step of its own."""
    net = Net()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples()), 4)
    model, optimizer, loader = worker.prepare(net, SGD(net.parameters(), lr=0.1), loader)
    coming = partial(worker.ahead, ids=lambda batch: {net.ids: batch[0][:, :2]}) if asks else iter
    model.eval()  # no dropout
    steps = 0
    for epoch in range(3):
        for seen, (batch, labels) in enumerate(coming(loader)):
            if way == "looks" and not epoch:
                break
            (model(batch).sigmoid() - labels).square().mean().backward()
            if way == "accumulates" and seen % 2:
                continue
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if way == "leaves" and seen == 3 and epoch < 2:
                break
            if way == "validates":
                with torch.no_grad():
                    for some, _ in coming([(batch + 1, labels), (batch + 2, labels)]):
                        model(some)
    return steps


WAYS = ["looks", "accumulates", "leaves", "validates"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "way"),
    [
        *(pytest.param("simulated", way, marks=[pytest.mark.thorough] * (way != "leaves")) for way in WAYS),
        *(
            pytest.param("real", way, marks=pytest.mark.slow if way != "leaves" else pytest.mark.thorough)
            for way in WAYS
        ),
    ],
)
def test_rows_that_were_asked_for_ahead_are_those_of_any_loop(engine: str, way: str) -> None:
    """In rounds they are served after the fold, so that nothing differs: no batch is lost, and none counts twice."""
    runs = [ran(partial(ahead, way=way, asks=asks), engine, ps.sync_sgd()) for asks in (False, True)]
    assert runs[0].returned == runs[1].returned
    assert runs[0].summary.samples == runs[1].summary.samples
    assert same_rows(*runs)
    each = ran(partial(ahead, way=way), engine, ps.sync_sgd(rows="each"))
    assert each.returned == runs[0].returned


def looked_with_gradients(model: nn.Module) -> dict[str, float]:
    """How far the rows of a pass with gradients are from those of one without."""
    with torch.no_grad():
        model.ids(torch.arange(30, 60))
    with torch.enable_grad():
        mine = [model.ids(torch.arange(30)), model.ids(torch.arange(20, 50))]
    with torch.no_grad():
        plain = [model.ids(torch.arange(30)), model.ids(torch.arange(20, 50))]
    with torch.enable_grad():
        mine.append(model.ids(torch.arange(30)))
    return {
        "differ": max(float((one - other).abs().max()) for one, other in zip(mine, [*plain, plain[0]], strict=True)),
        "sum": float(mine[0].double().sum()),
    }


def test_evaluations_with_gradients_see_rows_as_they_are(evaluated: ps.Run) -> None:
    """What an earlier one looked up is looked up again, and what is read without gradients lies elsewhere."""
    history = evaluated.history
    assert history[-1].metrics["differ"] == 0.0, "nobody trains any more"
    with torch.no_grad():
        assert float(evaluated.tables["ids"](torch.arange(30)).double().sum()) == history[-1].metrics["sum"]
    assert len({one.metrics["sum"] for one in history}) > 1


def with_a_copy(worker: Any) -> None:
    net = Net()
    model, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.1))
    mean = copy.deepcopy(net)
    batch, labels = samples()
    for _ in range(5):
        optimizer.zero_grad()
        (model(batch[:8]).sigmoid() - labels[:8]).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(mean.parameters(), net.parameters(), strict=True):
                kept.lerp_(now, 0.1)
    assert mean.ids.rows == 0
    with pytest.warns(RuntimeWarning, match="has no rows of a table in a run"):
        mean.load_state_dict(net.state_dict())
    mean(batch[:8]).sum().backward()  # a table of its own
    assert mean.ids.rows == len(batch[:8, :2].unique())


@mostly_simulated
def test_a_copy_of_the_model_in_the_loop_is_left_alone(engine: str) -> None:
    run = ran(with_a_copy, engine)
    assert run.tables["ids"].rows == len(samples()[0][:8, :2].unique())


def late_backward(model: Any, optimizer: Any) -> None:
    loss = model("a", [1])
    model("b", [1]).backward()
    optimizer.step()
    loss.backward()


@mostly_simulated
def test_a_backward_pass_after_its_step_is_refused(engine: str) -> None:
    with pytest.raises(ps.PlesioError, match="a backward pass came after the step that its rows were for"):
        ran(partial(in_run, steps=late_backward), engine, workers=1)


# What is refused


ALONE, TURNS = "workers step there by themselves; take sync_sgd", "the turns of a round's clients"


@pytest.mark.parametrize(
    ("name", "engine", "why"),
    [
        ("hogwild", "real", ALONE),
        ("hogwild", "simulated", ALONE),
        ("allreduce", "real", ALONE),
        ("fedavg", "simulated", f"{TURNS} would be added up in their rows; take local_sgd"),
        ("fedbuff", "simulated", TURNS),
        ("fedasync", "real", TURNS),
    ],
)
def test_recipes_that_step_no_rows_are_refused(name: str, engine: str, why: str) -> None:
    words = rf"the model has tables \(ids, deep.words\), and {name}.* cannot step their rows: {why}"
    settings = {} if engine == "real" else ENGINES["simulated"]
    with pytest.raises((ps.WorkerError, ps.ConfigurationError), match=words):
        ps.run(dealt, name, workers=2, timeout_s=60, **settings)


def goes_on_from_rows(worker: Any) -> None:
    """Each worker has trained a row, of which the first one's counts."""
    net = Pair()
    for _ in range(1 + worker.rank):
        net("b", [4]).backward()
    model, optimizer = worker.prepare(net, SGD(net.parameters(), lr=0.0))
    for _ in range(2 if worker.rank == 0 else 0):
        worker.count(1)
        optimizer.zero_grad()
        model("b", [4]).backward()
        optimizer.step()


@each_engine
def test_training_goes_on_from_the_rows_of_the_first_worker(engine: str, tmp_path: Path) -> None:
    run = ran(goes_on_from_rows, engine, runs=tmp_path)
    alone = Pair()
    for _ in range(3):
        alone("b", [4]).backward()
    found, wanted = run.tables["b"].kept(), alone.b.kept()
    assert all((found[name] == wanted[name]).all() for name in ("keys", "values", "state"))
    assert str(ps.replay(run.folder, goes_on_from_rows)).startswith("bit-identical")


def unlike(worker: Any, what: str = "dim") -> None:
    if worker.rank == 0:
        dealt(worker, epochs=1)
    elif what == "dim":
        net = Net()
        net.deep["words"] = ps.TableBag(3, ps.RowAdam(0.02))
        worker.prepare(net, SGD(net.parameters(), lr=0.1))
    else:
        net = Net()
        net.more = ps.Table(2)
        worker.prepare(net, SGD(net.parameters(), lr=0.1))


@each_engine
@pytest.mark.parametrize(
    ("what", "words"), [("dim", r"dim=3.*in place of .*dim=2"), ("more", "name='more'.* in place of no more")]
)
def test_workers_with_other_tables_are_refused(engine: str, what: str, words: str) -> None:
    with pytest.raises(
        (ps.ModelMismatchError, ps.WorkerError), match=rf"worker 1 does not have the same tables as worker 0.*{words}"
    ):
        ran(partial(unlike, what=what), engine)


def wrong_ids(worker: Any, ids: Any = None, wide: int = 0) -> None:
    net = Pair()
    worker.prepare(net, SGD(net.parameters(), lr=0.1))
    net.a(torch.arange(wide) if wide else ids)


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([1.0]), torch.tensor([1], dtype=torch.int16), [1, 2], np.arange(2)],
    ids=["float", "int16", "list", "array"],
)
def test_ids_that_are_no_tensor_of_int64_or_int32_are_refused(ids: Any) -> None:
    with pytest.raises(
        ps.ConfigurationError,
        match=r"ids: got .*, allowed is a tensor of torch.int64 or int32; use (ids.long|torch.tensor)\(",
    ):
        ran(partial(wrong_ids, ids=ids), "simulated")


@each_engine
def test_more_rows_than_a_place_has_are_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the worker writes them, before anything is written; both sides have the same number."""
    if engine == "simulated":
        monkeypatch.setattr("plesio.transport.row_slots.MOST", 100)
    wide = 101 if engine == "simulated" else (1 << 20) + 1
    words = (
        rf"a contribution wants {wide:,} distinct rows of table 'a', and has room for .*; exchange after fewer steps"
    )
    with pytest.raises(ps.ConfigurationError, match=words):
        ran(partial(wrong_ids, wide=wide), engine, workers=1)


def test_rows_is_with_or_each() -> None:
    for recipe in (ps.sync_sgd, partial(ps.first_of, 2), partial(ps.quorum, 2), ps.buffered):
        with pytest.raises(ps.StrategyError, match="unknown rows 'at once'; known: each, with"):
            recipe(rows="at once")
