"""Runs that go on under another strategy, or with other workers: what goes on, what does not, and what is said of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from plesio.cli.main import main
from plesio.cluster import Cluster, Constant, Group, LogNormal
from plesio.launch.change import DRAWN_ANEW
from plesio.server.checkpoints import STATE, latest
from plesio.strategy import Strategy
from support.loops import data, descend, mlp
from support.row_each import row_each
from support.runs import by_name, same

KEPT = ps.Checkpoint()
SAMPLES, BATCH = 192, 4
OPTIMIZERS: dict[str, Any] = {
    "plain": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.AdamW, lr=0.01),
}


class OneProcess:
    """A script without plesio."""

    def prepare(self, *things: Any) -> Any:
        return things


def train(worker: Any, kind: str = "adam", shuffle: bool = True, found: dict[str, Any] | None = None) -> None:
    torch.manual_seed(11)
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.2))
    loader = DataLoader(torch.utils.data.TensorDataset(*data(96)), batch_size=4, shuffle=shuffle)
    model, optimizer, loader = worker.prepare(model, OPTIMIZERS[kind](model.parameters()), loader)
    for _ in range(2):
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs), labels))
    if found is not None:
        found.update(model.state_dict())


def counting(worker: Any) -> None:
    """One pass; each sample has a row of its own."""
    model, optimizer, loader = row_each(worker, SAMPLES, BATCH)
    for (samples,) in loader:
        descend(optimizer, model(samples).sum())


def federated(worker: Any, per_round: int = 4, rounds: int = 12) -> None:
    model = mlp()
    inputs, labels = data(96)
    clients = ps.Clients(
        torch.utils.data.TensorDataset(inputs, labels),
        ps.splits.iid(96, 24),
        per_round=per_round,
        rounds=rounds,
        batch_size=4,
    )
    model, optimizer, clients = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), clients)
    for client in clients:
        for batch, targets in client:
            descend(optimizer, cross_entropy(model(batch), targets))


def simulated(function: Any, strategy: Any, folder: Path, workers: int = 4, **options: Any) -> ps.Run:
    others = [Group(workers - 1, LogNormal(0.1, 0.3))] if workers > 1 else []
    groups = Group(1, Constant(0.2 if others else 0.1)), *others
    return ps.run(function, strategy, workers=workers, engine=ps.Simulated(Cluster(groups)), runs=folder, **options)


def stopped(function: Any, strategy: Any, folder: Path, workers: int = 4, steps: int = 17, **options: Any) -> Path:
    """The folder of a run that was stopped after so many steps."""
    run = simulated(function, strategy, folder, workers, checkpoint=KEPT, until=ps.Until(steps=steps), **options)
    assert run.ended == f"{steps} steps were up"
    return run.folder


def said(run: ps.Run) -> list[str]:
    return [one.what for one in run.incidents]


def state(folder: Path | None) -> dict[str, torch.Tensor]:
    assert folder is not None
    return load_file(latest(folder).path / STATE)


def steps_of(folder: Path) -> list[float]:
    """Those that Adam at the server counts."""
    return [one["step"]["value"] for one in latest(folder).manifest.numbers["optimizer"]["rest"]]


# One worker is the script, under whatever strategies it goes


ALONE = [
    (ps.sync_sgd(), ps.async_sgd()),
    (ps.sync_sgd(), ps.local_sgd(4)),
    (ps.local_sgd(4), ps.sync_sgd()),
    (ps.async_sgd(), ps.local_sgd(3)),
    (ps.local_sgd(3), ps.async_sgd()),
    (ps.async_sgd(), ps.sync_sgd()),
    (ps.local_sgd(3), ps.local_sgd(5)),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("was", "now"), ALONE, ids=by_name)
def test_one_worker_gives_the_plain_loops_weights_bit_for_bit(
    was: Strategy, now: Strategy, kind: str, tmp_path: Path
) -> None:
    """The rest of the data in the same order, the same dropout, momenta and counts of steps."""
    whole: dict[str, Any] = {}
    train(OneProcess(), kind, found=whole)
    first = stopped(partial(train, kind=kind), was, tmp_path, 1)
    run = simulated(partial(train, kind=kind), now, tmp_path, 1, resume=first)
    assert run.batches_unvisited == 0
    assert same(run, whole)
    (resumed, changed) = said(run)[:2]
    assert resumed.startswith(f"resumed at version {latest(first).manifest.version} from ")
    assert changed.startswith("resumed under ")
    assert "dropped" not in changed


# Data


PAIRS = [
    (ps.sync_sgd(), 4, ps.async_sgd(), 4),
    (ps.sync_sgd(), 4, ps.local_sgd(3), 4),
    (ps.local_sgd(3), 4, ps.sync_sgd(), 4),
    (ps.async_sgd(), 4, ps.diloco(3), 4),
    (ps.sync_sgd(), 4, ps.sync_sgd(), 2),
    (ps.sync_sgd(), 2, ps.sync_sgd(), 4),
    (ps.async_sgd(), 4, ps.async_sgd(), 3),
    (ps.buffered(3), 3, ps.local_sgd(2), 5),
    (ps.diloco(2), 4, ps.diloco(5), 2),
    (ps.first_of(3), 4, ps.bounded_staleness(2), 5),
]


@pytest.mark.few(4)
@pytest.mark.filterwarnings("ignore:resumed under", "ignore:.*outer momentum", "ignore:resumed with")
@pytest.mark.parametrize(("was", "before", "now", "after"), PAIRS, ids=by_name)
def test_each_sample_is_visited_once_over_both_runs(
    was: Strategy, before: int, now: Strategy, after: int, tmp_path: Path
) -> None:
    first = stopped(counting, was, tmp_path, before, steps=21)
    manifest = latest(first).manifest
    run = simulated(counting, now, tmp_path, after, resume=first, checkpoint=KEPT)
    assert run.batches_unvisited == 0
    assert manifest.samples + run.samples - run.discarded.get("stale", 0) * BATCH == SAMPLES
    moved = -run.state_dict["weight"].flatten()
    assert bool(moved.all())
    if not (was.send.stepped or now.send.stepped or was.release.cancel_late):  # an N-th of the learning rate
        assert {round(1 / float(one), 3) for one in moved} == {before, after}
    assert run.version > manifest.version
    last = latest(run.folder).manifest
    assert (last.workers, last.strategy, len(last.progress)) == (after, run.summary.strategy, after)
    assert last.steps == SAMPLES // BATCH


# What the server kept


AT_ONCE = ps.Until(seconds=0.01)
"""Stops a resumed run before its first step."""


pytestmark = pytest.mark.filterwarnings("ignore:no step was made")  # `begun`


def begun(first: Path, strategy: Strategy, folder: Path, workers: int = 4, function: Any = train) -> Path:
    """The folder of a run that was resumed from `first` and stopped at once."""
    run = simulated(function, strategy, folder, workers, resume=first, checkpoint=KEPT, until=AT_ONCE)
    assert run.version == latest(first).manifest.version
    return run.folder


@pytest.mark.parametrize(("was", "workers"), [(ps.async_sgd("plain"), 4), (ps.sync_sgd(), 2)], ids=by_name)
def test_adam_at_the_server_keeps_its_moments_bit_for_bit(was: Strategy, workers: int, tmp_path: Path) -> None:
    first = stopped(train, was, tmp_path)
    second = begun(first, ps.sync_sgd(), tmp_path, workers)
    before, after = state(first), state(second)
    assert before.keys() == after.keys() == {"optimizer exp_avg", "optimizer exp_avg_sq"}
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert steps_of(first) == steps_of(second) == [latest(first).manifest.version]


def test_of_momenta_by_worker_the_mean_goes_on_and_from_one_each_has_it(tmp_path: Path) -> None:
    first = stopped(train, ps.async_sgd(), tmp_path)
    with pytest.warns(RuntimeWarning, match="each worker had a momentum of its own: their mean goes on$"):
        second = begun(first, ps.sync_sgd(), tmp_path)
    third = begun(second, ps.async_sgd(), tmp_path, 2)
    ahead, sync, again = (state(one) for one in (first, second, third))
    momenta = torch.stack([ahead[f"momentum {worker}"].view(torch.float32) for worker in range(4)])
    torch.testing.assert_close(sync["optimizer exp_avg"].view(torch.float32), momenta.mean(0))
    assert torch.equal(sync["optimizer exp_avg_sq"], ahead["optimizer exp_avg_sq"])
    assert [torch.equal(again[f"momentum {worker}"], sync["optimizer exp_avg"]) for worker in range(2)] == [True, True]
    assert [steps_of(one)[0] for one in (first, second, third)] == [17.0, 17 / 4, 17 / 2]


def test_the_server_gives_its_state_to_workers_that_step_and_takes_the_lowest_ones_back(tmp_path: Path) -> None:
    first = stopped(train, ps.sync_sgd(), tmp_path)
    second = stopped(train, ps.local_sgd(2), tmp_path, 3, steps=30, resume=first)
    own = torch.load(latest(second).path / "worker-0.pt", weights_only=True)["optimizer"]
    assert [float(one["step"]) for one in own.values()] == [4 + 2 * latest(second).manifest.version - 8] * 4
    with pytest.warns(RuntimeWarning, match="of the optimizer of worker 1, 2 is dropped"):
        third = begun(second, ps.sync_sgd(), tmp_path, 3)
    moments = state(third)["optimizer exp_avg"].view(torch.float32)
    assert float(moments.sum()) == pytest.approx(sum(float(one["exp_avg"].sum()) for one in own.values()))
    assert steps_of(third) == [float(own[0]["step"])]


@pytest.mark.filterwarnings("ignore:.*outer momentum", "ignore:resumed under .* worker 2, 3 is dropped")
@pytest.mark.parametrize("was", [ps.diloco(2), ps.diloco(2, fragments=2)], ids=by_name)
def test_an_outer_momentum_goes_on_with_other_settings(was: Strategy, tmp_path: Path) -> None:
    first = stopped(train, was, tmp_path, steps=40)
    second = begun(first, ps.diloco(3, lr=0.5), tmp_path, 2)
    name, whole = "optimizer momentum_buffer", ps.diloco(2, fragments=2) == was
    assert state(first)[name].view(torch.float32).count_nonzero() > 50
    assert torch.equal(*(state(one)[name].view(torch.float32).sort().values for one in (first, second)))
    assert whole or torch.equal(state(first)[name], state(second)[name])
    groups = latest(second).manifest.numbers["optimizer"]["groups"]
    assert [one["lr"] for one in groups] == [0.5]


def test_a_correction_goes_on_where_it_is_the_same(tmp_path: Path) -> None:
    first = stopped(train, ps.async_sgd("delay_compensated"), tmp_path)
    second = begun(first, ps.async_sgd("delay_compensated"), tmp_path, 3)
    assert torch.equal(*(state(one)["mean square"] for one in (first, second)))
    with pytest.warns(
        RuntimeWarning, match=r"the state of the correction \(delay comp.* is dropped, for sync_sgd has none$"
    ):
        assert "mean square" not in state(begun(first, ps.sync_sgd(), tmp_path))


# What is said


ONE_FOR_ALL = "the state of the optimizer of worker 1, 2, 3 is dropped, for that of worker 0 is everybody's now"


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:.*outer momentum")
@pytest.mark.parametrize(
    ("was", "now", "workers", "words"),
    [
        (ps.local_sgd(2), ps.sync_sgd(), 4, f"under sync_sgd, was under local_sgd(every 2 steps); {ONE_FOR_ALL}"),
        (
            ps.local_sgd(2),
            ps.local_sgd(2),
            2,
            "with 2 workers, was with 4 workers; the state of the optimizer of worker 2, 3 is dropped, for there are 2 now",
        ),
        (
            ps.diloco(2),
            ps.local_sgd(2),
            4,
            "under local_sgd(every 2 steps), was under diloco(every=2); the state of the outer SGD (momentum_buffer) is dropped, "
            "for local_sgd(every 2 steps) has none",
        ),
        (
            ps.local_sgd(2, codec="int8"),
            ps.local_sgd(2),
            4,
            "under local_sgd(every 2 steps), was under local_sgd(every 2 steps, codec=int8); what packing left out is dropped, "
            "for local_sgd(every 2 steps) sends or takes back otherwise",
        ),
        (
            ps.elastic_averaging(2),
            ps.sync_sgd(),
            1,
            f"under sync_sgd with 1 worker, was under elastic_averaging(every=2) with 4 workers; workers' own parameters "
            f"are dropped, for sync_sgd sends or takes back otherwise; {ONE_FOR_ALL}; {DRAWN_ANEW}",
        ),
    ],
    ids=by_name,
)
def test_what_does_not_go_on_is_told_in_one_incident_and_a_warning(
    was: Strategy, now: Strategy, workers: int, words: str, tmp_path: Path
) -> None:
    first = stopped(train, was, tmp_path)
    with pytest.warns(RuntimeWarning, match="^resumed (under|with) |another order") as warned:
        run = simulated(train, now, tmp_path, workers, resume=first)
    assert said(run)[1] == f"resumed {words}"
    assert f"resumed {words}" in [str(one.message) for one in warned]
    assert not [one for one in said(run)[2:] if "resumed" in one or "anew" in one]


@pytest.mark.parametrize(("now", "workers"), [(ps.async_sgd(), 4), (ps.local_sgd(2), 5), (ps.sync_sgd(), 2)])
def test_where_all_goes_on_the_change_is_told_and_nothing_is_warned_of(
    now: Strategy, workers: int, tmp_path: Path
) -> None:
    first = stopped(train, ps.sync_sgd(), tmp_path)
    run = simulated(train, now, tmp_path, workers, resume=first)
    under = f"under {now.name}" if now != ps.sync_sgd() else ""
    assert said(run)[1].startswith(f"resumed {under}")
    assert ("with" in said(run)[1], ";" in said(run)[1]) == (workers != 4, False)


SGD = {"function": partial(train, kind="plain")}
COUNTED = "which counts clients, rounds or batches otherwise than "


@pytest.mark.parametrize(
    ("was", "now", "given", "words"),
    [
        (
            ps.sync_sgd(),
            ps.async_sgd(),
            {"seed": 3},
            "is of a run with seed=0, this one has seed=3; resume with the same, or",
        ),
        (ps.sync_sgd(), ps.fedavg(), {}, f"strategy=sync_sgd, {COUNTED}fed"),
        (ps.sync_sgd(), ps.async_sgd(), SGD, "holds the state of AdamW, and this run prepared SGD; prepare the same"),
        (ps.sync_sgd(), ps.local_sgd(2), SGD, "holds the state of AdamW, and worker 0 prepared SGD; prepare the same"),
        (
            ps.local_sgd(2),
            ps.local_sgd(2),
            SGD,
            "holds the state of AdamW, and worker 0 prepared SGD; prepare the same",
        ),
        (ps.fedavg(), ps.fedbuff(2), {}, f"strategy=fedavg, {COUNTED}fedb"),
        (
            ps.fedavg(),
            ps.fedavg(privacy=ps.Privacy(clip=1.0, noise=1.0, per_round=4, delta=1e-5)),
            {},
            "strategy=fedavg, and what that spent of its privacy does not count under",
        ),
    ],
    ids=by_name,
)
def test_what_cannot_be_otherwise_is_refused(
    was: Strategy, now: Strategy, given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    function = federated if was.recipe == "fedavg" else train
    first = stopped(function, was, tmp_path, 2, steps=30)
    with pytest.raises(ps.CheckpointError, match=words):
        simulated(**{"function": function, **given}, strategy=now, folder=tmp_path, workers=2, resume=first)


# Journals, and a run that is resumed again


def test_the_journal_begins_anew_and_says_where_the_part_before_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = stopped(train, ps.sync_sgd(), tmp_path)
    second = simulated(train, ps.async_sgd(), tmp_path, resume=first, checkpoint=KEPT, until=ps.Until(steps=30))
    words = rf"begins at version 4 of a run under sync_sgd with 4 workers \({first}/journal.bin\): a run that went on under "
    unable = "another .* cannot be replayed from its journal alone; the part before"
    with pytest.raises(ps.ReplayError, match=words + unable):
        ps.replay(second.folder, train)
    assert ps.replay(first, train).identical
    third = simulated(train, ps.async_sgd(), tmp_path, resume=second.folder)
    assert not said(third)[1:]
    with pytest.raises(ps.ReplayError, match=words):
        ps.replay(third.folder, train)
    assert main(["journal", str(third.folder)]) == 0
    assert "resumed from the checkpoint of version 4" in capsys.readouterr().out
    assert main(["replay", str(third.folder)]) == 2


def test_undone_updates_are_counted_and_until_goes_on_counting(tmp_path: Path) -> None:
    kept = ps.Checkpoint(every_s=0.45)
    run = simulated(train, ps.async_sgd("plain"), tmp_path, checkpoint=kept, until=ps.Until(steps=30))
    newest = latest(run.folder).path
    newest.rename(newest.with_name("gone"))
    manifest = latest(run.folder).manifest
    second = simulated(train, ps.local_sgd(2), tmp_path, 2, resume=run.folder, until=ps.Until(steps=44))
    assert f"the run had got to version {run.version}: {run.version - manifest.version} update" in said(second)[0]
    assert second.ended == "44 steps were up"
    assert manifest.steps + second.steps in (44, 45)


# Rounds of clients


@pytest.mark.parametrize("per_round", [3, 6])
@pytest.mark.parametrize(("was", "now"), [(ps.fedavg(), ps.fedprox(0.1)), (ps.fedbuff(3), ps.fedasync())], ids=by_name)
def test_a_federated_run_goes_on_with_more_or_fewer_clients_a_round(
    was: Strategy, now: Strategy, per_round: int, tmp_path: Path
) -> None:
    first = simulated(federated, was, tmp_path, 2, checkpoint=KEPT, until=ps.Until(samples=90))
    rounds = latest(first.folder).manifest.order.leases.done // 4
    assert 3 <= rounds < 12
    run = simulated(partial(federated, per_round=per_round), now, tmp_path, 3, resume=first.folder)
    assert 4 * per_round * (12 - rounds - 1) <= run.samples <= 4 * per_round * (12 - rounds)
    assert run.batches_unvisited == 0


# Phases


def test_the_same_plan_is_no_change_and_another_one_is(tmp_path: Path) -> None:
    """Of another plan the phase counts that it has at the version of the checkpoint."""
    plan = ps.phases(ps.sync_sgd(), (1000, ps.async_sgd()))
    first = stopped(counting, plan, tmp_path)
    same = simulated(counting, plan, tmp_path, resume=first)
    assert [what.split(" from ")[0] for what in said(same)] == ["resumed at version 4"]
    assert ps.replay(same.folder, counting).identical
    other = simulated(counting, ps.phases(ps.first_of(2), (2, ps.sync_sgd())), tmp_path, resume=first)
    assert said(other)[1] == (
        "resumed under phases(first_of(2), 2: sync_sgd), was under phases(sync_sgd, 1000: async_sgd)"
    )
    assert torch.equal(other.state_dict["weight"], same.state_dict["weight"])
    plain = simulated(counting, ps.sync_sgd(), tmp_path, resume=first)
    assert said(plain)[1] == "resumed under sync_sgd, was under phases(sync_sgd, 1000: async_sgd)"
    assert torch.equal(plain.state_dict["weight"], same.state_dict["weight"])


def test_a_run_goes_on_in_the_phase_of_its_checkpoint(tmp_path: Path) -> None:
    plan = ps.phases(ps.sync_sgd(), (1000, ps.async_sgd()), ps.local_sgd(2))
    manifest = latest(stopped(counting, plan, tmp_path)).manifest
    asked_for = replace(manifest, order=replace(manifest.order, phase=2))
    assert (manifest.under, manifest.phase_of(plan)) == (ps.sync_sgd(), 0)
    assert (asked_for.under.name, asked_for.phase_of(plan)) == ("local_sgd(every 2 steps)", 2)
    assert asked_for.phase_of(ps.phases(ps.async_sgd(), (1, ps.sync_sgd()), (9, ps.async_sgd()))) == 1
    assert asked_for.phase_of(ps.sync_sgd()) == 0
