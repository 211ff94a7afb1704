"""Workers that are several processes: the same numbers as workers that are one, and one death."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import plesio as ps
from plesio.strategy import Strategy
from support import islands
from support.loops import descend
from support.runs import same

pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
LOCKED = {"local_sgd": ps.local_sgd(4), "diloco": ps.diloco(4), "sync_sgd": ps.sync_sgd()}
ALONE = {"async_local_sgd": ps.async_local_sgd(4), "async_sgd": ps.async_sgd()}
IN_SHORT = {("diloco", "fsdp", 2), ("local_sgd", "ddp", 2), ("sync_sgd", "tp", 2)}
FORMS = [
    pytest.param(name, inside, ranks, marks=() if (name, inside, ranks) in IN_SHORT else pytest.mark.slow)
    for name in LOCKED
    for inside, ranks in (
        ("fsdp", 2),
        ("fsdp", 3),
        ("ddp", 2),
        ("tp", 2),
        *[("fsdp and tp", 4)] * (name == "local_sgd"),
    )
]


def run_of(strategy: Strategy, workers: int, ranks: int, inside: str, **given: object) -> ps.Run:
    train = partial(islands.train, inside=inside, **given)
    return ps.run(train, strategy, workers=workers, ranks=ranks, seed=3, timeout_s=60.0)


def plain(strategy: Strategy, workers: int, **given: object) -> ps.Run:
    train = partial(islands.train, **given)
    return ps.run(train, strategy, workers=workers, seed=3, engine=ps.Simulated("uniform"))


def assert_same(run: ps.Run, other: ps.Run) -> None:
    assert (run.version, run.steps, run.samples) == (other.version, other.steps, other.samples)
    assert run.state_dict.keys() == other.state_dict.keys()
    for name, theirs in other.state_dict.items():
        torch.testing.assert_close(run.state_dict[name], theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "inside", "ranks"), FORMS)
def test_islands_train_as_workers_of_one_process(name: str, inside: str, ranks: int) -> None:
    assert_same(run_of(LOCKED[name], 2, ranks, inside), plain(LOCKED[name], 2))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "inside"), [("async_local_sgd", "fsdp"), pytest.param("async_sgd", "ddp", marks=pytest.mark.slow)]
)
def test_an_island_that_is_alone_trains_as_one_process(name: str, inside: str) -> None:
    given = {"shuffle": False, "clip": 0.5}  # the norm is of the whole gradient
    assert_same(run_of(ALONE[name], 1, 2, inside, **given), plain(ALONE[name], 1, **given))


def test_ranks_that_do_not_average_gradients_are_refused() -> None:
    with pytest.raises(
        ps.ConfigurationError, match="its 2 ranks hold the same parameters and each moves them its own way"
    ):
        run_of(ps.local_sgd(4), 1, 2, inside="")


DEATHS = [
    pytest.param(at, rank, marks=() if (at, rank) == ("backward", 1) else pytest.mark.slow)
    for at in ("start", "backward", "agreed", "answered")
    for rank in (0, 1)
    if (at, rank) != ("answered", 1)  # only the leader is answered
]


@pytest.mark.thorough
@pytest.mark.parametrize(("at", "rank"), DEATHS)
def test_the_death_of_a_rank_is_one_death_of_its_worker(at: str, rank: int) -> None:
    train = partial(islands.dying, at=at, rank=rank)
    run = ps.run(train, ps.async_local_sgd(2), workers=2, ranks=2, timeout_s=60.0)
    assert [one.what.split(";")[0] for one in run.summary.incidents] == ["worker 1 died"]
    lost = run.summary.batches_unvisited  # those that it held, if the others had ended before it died
    assert run.samples + lost * islands.BATCH == 4 * islands.SAMPLES  # each other batch was folded once
    assert run.summary.workers[1].left == "died"


@pytest.mark.thorough
def test_what_a_rank_raises_is_told_and_the_others_go_on_where_that_is_asked() -> None:
    train = partial(islands.dying, at="backward", rank=1, how="raise")
    run = ps.run(train, ps.async_local_sgd(2), workers=2, ranks=2, timeout_s=60.0, on_worker_error="continue")
    what = "worker 1 rank 1 raised KeyError: 'on purpose'; the others go on"
    assert [one.what for one in run.summary.incidents] == [what]
    lost = run.summary.batches_unvisited  # those that it held, if the others had ended before it raised
    assert run.samples + lost * islands.BATCH == 4 * islands.SAMPLES


@pytest.mark.slow
def test_what_a_rank_raises_ends_the_run() -> None:
    with pytest.raises(ps.WorkerError, match="worker 1 rank 1 raised KeyError"):
        ps.run(partial(islands.dying, at="backward", rank=1, how="raise"), ps.async_local_sgd(2), workers=2, ranks=2)


def judge(model: torch.nn.Module) -> dict[str, float]:
    inputs, labels = islands.data().tensors
    return {"accuracy": float((model(inputs).argmax(1) == labels).double().mean())}


def test_evaluate_is_given_the_plain_model_that_model_builds() -> None:
    train = partial(islands.train, inside="fsdp")
    run = ps.run(train, ps.local_sgd(4), workers=1, ranks=2, evaluate=judge, model=islands.build)
    plain_model = islands.build()
    plain_model.load_state_dict(run.state_dict)
    assert run.history[-1].metrics == judge(plain_model)


@pytest.mark.slow
def test_evaluate_of_a_split_model_is_refused_without_model() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"say what builds the plain one, ps.run\(..., model=build\)"):
        ps.run(partial(islands.train, inside="fsdp"), ps.local_sgd(4), workers=1, ranks=2, evaluate=judge)


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["fsdp", "ddp"])
def test_a_resumed_run_of_islands_goes_on_with_the_state_of_their_optimizers(inside: str, tmp_path: Path) -> None:
    first, both = (partial(islands.train, inside=inside, epochs=epochs, shuffle=False) for epochs in (1, 2))
    run = partial(ps.run, strategy=ps.local_sgd(4), workers=1, ranks=2, seed=3)
    run(first, checkpoint=ps.Checkpoint(folder=tmp_path, every_s=3600))
    resumed = run(both, resume=tmp_path)
    assert not [one.what for one in resumed.summary.incidents if "anew" in one.what]
    assert same(resumed, run(both))


REFUSED = {
    "hogwild": (ps.hogwild(), "workers fold without a server"),
    "allreduce": (ps.allreduce(), "workers fold without a server"),
    "fedavg": (ps.fedavg(), "a client is trained by one process"),
    "seconds": (ps.local_sgd(every=ps.Seconds(0.3)), "by its own clock"),
    "first_of": (ps.first_of(1), "its step was called off"),
    "overlap": (ps.async_local_sgd(4, overlap=True), "goes on while its answer travels"),
    "elastic_averaging": (ps.elastic_averaging(), "parameters are blended"),
    "fragments": (ps.diloco(4, fragments=2), "in fragments"),
    "codec": (ps.diloco(4, codec="int8"), "what is sent is packed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_strategies_that_islands_do_not_take_are_refused_before_anything_starts(name: str) -> None:
    strategy, why = REFUSED[name]
    with pytest.raises(ps.ConfigurationError, match=rf"ranks=2: under .* {why}.*; take sync_sgd"):
        ps.run(islands.train, strategy, workers=2, ranks=2)


def test_too_many_processes_and_simulated_ones_are_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="20 workers of ranks=8 are 160 processes: at most 80"):
        ps.run(islands.train, "sync_sgd", workers=20, ranks=8)
    with pytest.raises(ps.ConfigurationError, match="ranks=2 is for processes of this host"):
        ps.run(islands.train, "sync_sgd", workers=2, ranks=2, engine=ps.Simulated("uniform"))


def carried_on(worker: ps.Worker, inside: str = "") -> dict[str, float]:
    """Train as `islands.train`, with an optimizer that has stepped before; its momentum in the end, whole."""
    model = islands.build()
    islands.split(worker, model, inside)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, labels = islands.data().tensors
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # all of it on each rank
    optimizer.step()
    optimizer.zero_grad()
    loader: Any = DataLoader(islands.data(), batch_size=islands.BATCH)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for inputs, labels in loader:
        descend(optimizer, torch.nn.functional.cross_entropy(model(inputs), labels))
    states = optimizer.state_dict()["state"].values()  # on all ranks
    momenta = [one["momentum_buffer"] for one in states]
    return {str(place): float((one.full_tensor() if inside else one).sum()) for place, one in enumerate(momenta)}


@pytest.mark.thorough
def test_the_state_of_a_split_optimizer_goes_to_the_server_and_back() -> None:
    run = ps.run(partial(carried_on, inside="fsdp"), "sync_sgd", workers=1, ranks=2, seed=3, timeout_s=60.0)
    other = ps.run(carried_on, "sync_sgd", workers=1, seed=3, timeout_s=60.0)
    assert_same(run, other)
    assert run.returned[0] == pytest.approx(other.returned[0], abs=1e-12)


def masks(worker: ps.Worker) -> list[float]:
    """What each rank draws in its first two contributions."""
    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    net = torch.nn.parallel.DistributedDataParallel(model)
    drawn = []
    for _ in range(2):
        drawn.append(torch.rand(1))
        descend(optimizer, net(torch.ones(2, 2)).sum())
    every = [torch.empty(2) for _ in range(worker.island.ranks)]
    torch.distributed.all_gather(every, torch.cat(drawn))
    return [float(one) for one in torch.cat(every)]


def test_ranks_with_other_slices_draw_other_numbers() -> None:
    run = ps.run(masks, "sync_sgd", workers=1, ranks=2, timeout_s=60.0)
    assert len(set(run.returned[0])) == 4


def until_scaled(worker: ps.Worker) -> None:
    model = islands.build()
    islands.split(worker, model, "fsdp")
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    inputs, labels = islands.data().tensors
    for _ in worker.steps(400):
        descend(optimizer, torch.nn.functional.cross_entropy(model(inputs), labels))


@pytest.mark.slow
def test_an_island_that_left_has_a_successor_of_as_many_ranks() -> None:
    asked: list[int] = []

    def watch(live: Any) -> None:
        wanted = [1, 2][len(asked)] if len(asked) < 2 else 0
        if wanted and live.steps > 40 * (1 + len(asked)):
            live.scale(wanted)
            asked.append(wanted)

    run = ps.run(until_scaled, ps.async_sgd(), workers=2, workers_max=2, ranks=2, watch=watch, timeout_s=60.0)
    assert run.steps == 400
    assert asked == [1, 2]
    assert run.summary.incidents[-1].what == "worker 1 is back"


@pytest.mark.thorough
def test_islands_that_split_the_model_otherwise_do_not_go_on_with_the_state_of_their_optimizers(tmp_path: Path) -> None:
    run = partial(ps.run, strategy=ps.local_sgd(4), workers=1, ranks=2, seed=3)
    run(partial(islands.train, inside="fsdp", epochs=1), checkpoint=ps.Checkpoint(folder=tmp_path, every_s=3600))
    with pytest.raises(ps.CheckpointError, match="held other parts of its model"):
        run(partial(islands.train, inside="ddp"), resume=tmp_path)


def told_its_device(worker: ps.Worker) -> str:
    islands.train(worker, inside="ddp", epochs=1)
    return f"{worker.rank} {worker.island.rank} {worker.island.local_rank}"


def test_each_process_of_a_host_has_a_number_of_its_own_there() -> None:
    """By which it takes a GPU."""
    run = ps.run(told_its_device, ps.local_sgd(4), workers=2, ranks=2)
    assert sorted(run.returned)[0] == "0 0 0"
    assert sorted(run.returned)[1] == "1 0 2"


def stopped_by_its_last_rank(worker: ps.Worker) -> None:
    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    net = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(100_000):
        descend(optimizer, net(torch.ones(1, 2)).sum())
        if step == 5 and worker.island.rank == 1:
            worker.stop("enough")


def test_any_rank_may_stop_the_run() -> None:
    run = ps.run(stopped_by_its_last_rank, ps.local_sgd(4), workers=1, ranks=2, timeout_s=60.0)
    assert run.summary.ended == "worker 0 stopped the run: enough"
