"""A real training function on simulated machines: reproducible, and equal to real runs where time does not matter."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from conformance.table import strategies
from plesio.cluster import Cluster, Constant, Crash, Group, Join, Leave, Link, LogNormal, Partition, Restart
from plesio.strategy import Strategy
from support.long_forms import but_slow
from support.loops import adam, data, descend, follow, hopeless, idle, mlp, momentum, plain_pytorch, sgd
from support.replayed import Augmented, build
from support.runs import by_name, same

RECIPES = [*strategies(), ps.local_sgd(every=ps.Seconds(0.25))]
UNEVEN = Cluster((Group(3, LogNormal(0.1, 0.3)), Group(1, LogNormal(0.5, 0.3))))
BATCHES = 16
"""An epoch's."""

Step = Callable[[Any, int, torch.nn.Module], object]


def nothing(worker: Any, step: int, model: torch.nn.Module) -> None:
    """What happens between a step's gradient and its exchange: nothing."""


def train(worker: Any, epochs: int = 3, also: Step = nothing) -> None:
    """Dropout, batch norm, noise on the data, a schedule."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Augmented(), batch_size=6, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.8)
    step = 0
    for _ in range(epochs):
        for inputs, labels in loader:
            step += 1
            with worker.step():
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), labels)
                loss.backward()
                also(worker, step, model)
                optimizer.step()
                worker.log(loss=loss)
            schedule.step()


def evaluate(model: torch.nn.Module) -> dict[str, float]:
    inputs, labels = data(96)
    return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}


def simulated(strategy: Strategy, cluster: Cluster = UNEVEN, function: Any = train, **options: Any) -> ps.Run:
    return ps.run(function, strategy, workers=cluster.workers, engine=ps.Simulated(cluster), **options)


# The same again


EACH_WAY = {
    "sync_sgd",
    "first_of(2)",
    "quorum(2, grace_s=0.02)",
    "async_sgd",
    "bounded_staleness(2)",
    "buffered(k=2)",
    "elastic_averaging(every=3)",
    "diloco(every=3, codec=int8)",
    "async_local_sgd(every=3)",
}
"""Each way of gathering, releasing and adopting; every recipe's timed workers are in test_virtual.py."""


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_slow(RECIPES, EACH_WAY), ids=by_name)
def test_the_seed_decides_every_byte(strategy: Strategy, tmp_path: Path) -> None:
    runs = [simulated(strategy, runs=tmp_path, seed=seed) for seed in (5, 5, 6)]
    journals = [(one.folder / "journal.bin").read_bytes() for one in runs if one.folder is not None]
    assert runs[0].version > 3
    assert journals[0] == journals[1] != journals[2]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])
    assert runs[0].summary == runs[1].summary


def test_simulation_and_process_state_do_not_affect_each_other() -> None:
    """Random generators, thread count, gradient mode."""
    first = simulated(ps.async_sgd()).state_dict
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(99)
        expected = torch.rand(4)
        torch.manual_seed(99)
        again = simulated(ps.async_sgd()).state_dict
        assert torch.equal(torch.rand(4), expected)
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)
    assert same(first, again)


def chancy_evaluate(model: torch.nn.Module) -> dict[str, float]:
    return {"drawn": torch.rand(()).item()}


def test_random_numbers_of_an_evaluation_depend_only_on_the_seed() -> None:
    """Those of the last evaluation, too."""
    drawn = []
    for before in (98, 99):
        with torch.random.fork_rng():
            torch.manual_seed(before)
            run = simulated(ps.async_sgd(), evaluate=chancy_evaluate, evaluate_every_s=1.0)
            after = torch.rand(4)
            torch.manual_seed(before)
            assert torch.equal(after, torch.rand(4))
        drawn.append([one.metrics["drawn"] for one in run.history])
    assert len(drawn[0]) > 2
    assert drawn[0] == drawn[1]


def draws(workers: int, cluster: Cluster) -> dict[tuple[int, int], float]:
    """What each worker drew in each of its steps, by (worker, number)."""
    drawn: dict[tuple[int, int], float] = {}

    def draw(worker: Any, step: int, model: torch.nn.Module) -> None:
        drawn[worker.rank, step] = torch.rand(()).item()

    def drawing(worker: Any) -> None:  # what it refers to is not copied for each worker, as a partial's arguments are
        train(worker, also=draw)

    simulated(ps.async_sgd(), cluster, drawing)
    return drawn


def test_random_numbers_of_a_worker_depend_on_seed_worker_and_number() -> None:
    two, four = draws(2, Cluster((Group(2, Constant(0.1)),))), draws(4, UNEVEN)
    both = two.keys() & four.keys()
    assert len(both) > 10
    assert all(two[key] == four[key] for key in both)
    assert len(set(two.values())) == len(two)


# The same as elsewhere


@pytest.mark.parametrize("optimizers", [sgd, momentum, adam])
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd()], ids=by_name)
def test_one_worker_is_plain_pytorch(strategy: Strategy, optimizers: Any) -> None:
    one = functools.partial(follow, build=mlp, optimizers=optimizers, steps=25)
    run = simulated(strategy, Cluster((Group(1, LogNormal(0.1, 0.5)),)), one)
    assert same(run, plain_pytorch(mlp, optimizers, 25))


@pytest.mark.thorough
def test_in_rounds_simulated_weights_equal_real_ones() -> None:
    real = ps.run(train, ps.sync_sgd(), workers=3, timeout_s=60)
    virtual = simulated(ps.sync_sgd(), UNEVEN.first(3))
    assert same(real, virtual)
    assert (real.version, real.samples, real.folded) == (virtual.version, virtual.samples, virtual.folded)


@pytest.mark.parametrize("until", [ps.Until(seconds=1.0), None], ids=["stopped", "crashed"])
def test_a_workers_last_log_entries_are_kept(until: ps.Until | None) -> None:
    """33 steps in a second and one under way; entries are sent on every fourth step."""

    def count(worker: Any) -> None:
        model = torch.nn.Linear(2, 1)
        model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
        for step in itertools.count(1):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            worker.log(step=step)

    faults = () if until else tuple(Crash(worker=k, at_s=1.0) for k in range(2))
    run = simulated(ps.async_sgd(), Cluster((Group(2, Constant(0.03)),), faults=faults), count, until=until)
    assert run.steps == sum(one.steps for one in run.logged) == 66
    assert [(one.time_s, one.steps, one.metrics) for one in run.logged[-2:]] == [(1.0, 1, {"step": 33.0})] * 2


# What goes wrong


FAULTS = Cluster(
    (Group(5, LogNormal(0.1, 0.3)),),
    faults=(
        Crash(worker=1, at_s=0.35),
        Restart(worker=1, at_s=0.9),
        Join(worker=2, at_s=0.5),
        Leave(worker=0, at_s=0.8),
        Partition(worker=3, at_s=0.2, until_s=0.6),
    ),
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    [ps.sync_sgd(), ps.first_of(2), ps.async_sgd(), ps.bounded_staleness(2), ps.buffered(2), ps.local_sgd(every=3)],
    ids=by_name,
)
def test_crashes_joins_and_restarts_are_simulated(strategy: Strategy, tmp_path: Path) -> None:
    runs = [simulated(strategy, FAULTS, runs=tmp_path / str(k)) for k in range(2)]
    run = runs[0]
    assert run.ended == "finished"
    assert [(one.time_s, one.worker) for one in run.incidents] == [(0.35, 1)]
    assert "died" in run.incidents[0].what
    assert run.workers[0].left == "finished"
    assert all(one.folded > 0 for one in run.workers)
    assert min(one.start_s for one in run.timeline if one.worker == 2) >= 0.5  # not there before
    gone = [one for one in run.timeline if one.worker == 1 and one.kind == "compute" and 0.35 < one.start_s < 0.9]
    assert gone == []
    assert runs[1].summary == run.summary
    assert same(run, runs[1])


def test_an_error_ends_the_run_or_only_its_worker() -> None:
    def fail(worker: Any, step: int, model: torch.nn.Module) -> None:
        if (worker.rank, step) == (1, 3):
            raise ValueError("no disk")

    function = functools.partial(train, also=fail)
    with pytest.raises(ps.WorkerError, match=r"worker 1 raised ValueError: no disk(.|\n)*test_simulated"):
        simulated(ps.async_sgd(), UNEVEN, function)
    run = simulated(ps.async_sgd(), UNEVEN, function, on_worker_error="continue")
    assert ["no disk" in one.what for one in run.incidents] == [True]
    assert [one.folded for one in run.workers][1] == 2
    assert sum(one.folded for one in run.workers) >= 3 * BATCHES - 2


def test_a_non_finite_contribution_is_discarded_or_ends_the_run() -> None:
    def poison(worker: Any, step: int, model: torch.nn.Module) -> None:
        if (worker.rank, step) == (1, 3):
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient.fill_(float("nan"))

    function = functools.partial(train, also=poison)
    with pytest.warns(RuntimeWarning, match="worker 1: a contribution held a NaN"):
        run = simulated(ps.async_sgd(), UNEVEN, function)
    assert run.discarded == {"not finite": 1}
    assert [one.worker for one in run.incidents] == [1]
    assert all(value.isfinite().all() for value in run.state_dict.values())
    with pytest.raises(ps.NonFiniteError, match="contribution 3 of worker 1"):
        simulated(ps.async_sgd(), UNEVEN, function, on_nonfinite="raise")


def test_a_run_with_only_nan_is_an_error() -> None:
    warned = pytest.warns(RuntimeWarning, match="held a NaN")
    with warned as caught, pytest.raises(ps.NonFiniteError, match=r"no contribution was finite \(20 with a NaN"):
        simulated(ps.async_sgd(), UNEVEN, hopeless)
    assert caught[0].filename.endswith("loops.py"), "it points at the user's step"


@pytest.mark.filterwarnings("ignore:.*held a NaN:RuntimeWarning")
def test_repeated_non_finite_contributions_are_reported_rarely() -> None:
    """Of 20 per worker, the 1st, 2nd, 4th, 8th and 16th are reported."""
    run = simulated(ps.async_sgd(), UNEVEN, functools.partial(hopeless, steps=21, good=1))
    assert run.discarded == {"not finite": 80}
    assert len(run.incidents) == 4 * 5
    told = [one.what.partition("discarded")[2] for one in run.incidents if one.worker == 2]
    assert told == ["", *(f", like {number} before it" for number in (1, 3, 7, 15))]


def test_options_for_real_processes_are_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="is for real processes"):
        simulated(ps.async_sgd(), pace=ps.Pace(0.1))
    with pytest.raises(ps.ConfigurationError, match="workers=3, but the cluster has 4"):
        ps.run(train, ps.async_sgd(), workers=3, engine=ps.Simulated(UNEVEN))


def test_time_sleep_warns_and_is_skipped() -> None:
    import time

    def doze(worker: Any, step: int, model: torch.nn.Module) -> None:
        time.sleep(1e6)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = simulated(ps.async_sgd(), UNEVEN, functools.partial(train, epochs=1, also=doze))
    assert len(caught) == 1
    assert run.wall_s < 10


# Virtual time


def test_evaluations_happen_at_virtual_times() -> None:
    run = simulated(ps.async_sgd(), evaluate=evaluate, evaluate_every_s=0.25)
    times = [one.time_s for one in run.history]
    assert times[:-1] == pytest.approx([0.25 * k for k in range(len(times) - 1)])
    assert times[-1] == run.wall_s
    assert [one.version for one in run.history] == sorted(one.version for one in run.history)
    assert run.history[-1].version == run.version
    assert run.history[0].metrics != run.history[-1].metrics


def test_evaluations_begin_after_the_first_join() -> None:
    later = Cluster((Group(2, Constant(0.1)),), faults=(Join(worker=0, at_s=0.5), Join(worker=1, at_s=0.7)))
    run = simulated(ps.async_sgd(), later, evaluate=evaluate, evaluate_every_s=0.2)
    assert [one.time_s for one in run.history][:2] == pytest.approx([0.6, 0.8])


def test_until_ends_a_simulated_run() -> None:
    seconds = simulated(ps.async_sgd(), until=ps.Until(seconds=0.75))
    assert (seconds.wall_s, seconds.ended) == (0.75, "0.75 seconds were up")
    assert seconds.steps == sum(one.steps for one in seconds.workers) > 3
    steps = simulated(ps.async_sgd(), until=ps.Until(steps=20))
    assert (steps.steps, steps.ended) == (20, "20 steps were up")
    assert simulated(ps.async_sgd(), until=ps.Until(samples=60)).samples == 60
    long, good = functools.partial(train, epochs=30), ps.Until(accuracy=0.4)
    goal = simulated(ps.async_sgd(), function=long, evaluate=evaluate, evaluate_every_s=0.1, until=good)
    assert goal.ended == "accuracy 0.4 reached"
    assert [one.metrics["accuracy"] >= 0.4 for one in goal.history].index(True) == len(goal.history) - 2


def broken(worker: Any) -> None:
    raise ValueError("my data file is missing")


@pytest.mark.parametrize("name", ["async_sgd", "local_sgd", "hogwild"])
def test_an_error_before_prepare_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(ps.WorkerError, match="my data file is missing"):
        ps.run(broken, name, workers=2, engine=ps.Simulated("uniform"), runs=tmp_path)


def test_a_training_function_without_prepare_warns(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="nothing was trained"):
        run = ps.run(idle, ps.async_sgd(), workers=2, engine=ps.Simulated("uniform"), runs=tmp_path)
    assert [one.left for one in run.workers] == ["finished", "finished"]
    assert run.state_dict == {}


def test_a_run_whose_workers_all_raised_is_an_error() -> None:
    with pytest.raises(ps.WorkerLostError, match=r"every worker raised; the last: .*my data file is missing"):
        ps.run(broken, ps.async_sgd(), workers=2, engine=ps.Simulated("uniform"), on_worker_error="continue")


def with_data(worker: Any, batches: int = 90, epochs: int = 12) -> None:
    model = torch.nn.Linear(1, 1)
    model, optimizer, loader = worker.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(batches, 1)
    )
    for _ in range(epochs):
        for inputs in loader:
            descend(optimizer, model(inputs).square().sum())


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "data"), [(ps.local_sgd(16), "leases"), (ps.async_local_sgd(16), "shards")])
def test_a_worker_far_away_hardly_waits_for_its_data(strategy: Strategy, data: str) -> None:
    """One of 8 workers is 100 ms away: it waits for the first lease of an epoch, not for each."""
    far = Cluster((Group(7, Constant(0.02)), Group(1, Constant(0.02), Link(latency_s=0.1))))
    run = simulated(strategy, far, with_data, data=data)
    assert (run.samples, run.batches_unvisited) == (12 * 90, 0)
    assert run.wall_s < 9.0
