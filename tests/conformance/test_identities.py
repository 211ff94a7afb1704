"""What recipes must equal, with real processes: see `conformance.table`, in which a new recipe is one row."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from conformance.table import Settings, makers, reductions
from plesio.cluster import Cluster, Group, LogNormal
from plesio.strategy import Strategy
from plesio.strategy.answers import AfterFold, Buffer, UserOptimizer
from plesio.strategy.recipes import recipe
from support import loops
from support.long_forms import in_turn
from support.runs import by_name

RECIPES: dict[str, Callable[[], Strategy]] = {
    **{name: partial(recipe, name, **settings) for name, _, settings in reductions(to_plain=True)},
    "async_sgd plain": partial(ps.async_sgd, "plain"),
    "async_sgd delay_compensated": partial(ps.async_sgd, "delay_compensated"),
    "async_sgd gap_aware": partial(ps.async_sgd, "gap_aware"),
    "async_sgd inverse": partial(ps.async_sgd, "plain", "inverse"),
    "async_sgd polynomial": partial(ps.async_sgd, "plain", "polynomial"),
    "async_sgd hinge": partial(ps.async_sgd, "plain", "hinge"),
    "async_sgd delay_adaptive": partial(ps.async_sgd, "plain", "delay_adaptive"),
}


def final(strategy: Strategy, train: Callable[..., None], workers: int) -> dict[str, torch.Tensor]:
    return ps.run(train, strategy, workers=workers, timeout_s=60).state_dict


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """Bit for bit, in the same order."""
    assert list(got) == list(want)
    for name, value in want.items():
        assert torch.equal(got[name], value), name


def assert_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6)


OPTIMIZERS = [loops.sgd, loops.momentum, loops.nesterov]
IN_FULL = ["sync_sgd", "async_sgd", "hogwild", "allreduce"]
"""Folds, looks ahead, steps in shared memory, steps in each worker: the ways a step is made."""


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "optimizers"),
    [*product(IN_FULL, OPTIMIZERS), *in_turn([name for name in RECIPES if name not in IN_FULL], OPTIMIZERS)],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_one_worker_is_plain_pytorch(name: str, optimizers: loops.Optimizers) -> None:
    """N = 1, H = 1, SGD: bit for bit what the loop would do without plesio."""
    got = final(RECIPES[name](), partial(loops.follow, build=loops.mlp, optimizers=optimizers, steps=25), 1)
    assert_same(got, loops.plain_pytorch(loops.mlp, optimizers, 25))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd", "async_sgd plain", "local_sgd", "hogwild", "allreduce"])
def test_one_worker_with_adam_is_plain_pytorch(name: str) -> None:
    """An optimizer with two moments, to rounding."""
    got = final(RECIPES[name](), partial(loops.follow, build=loops.mlp, optimizers=loops.adam, steps=25), 1)
    assert_close(got, loops.plain_pytorch(loops.mlp, loops.adam, 25))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", RECIPES)
def test_one_worker_with_batch_norm_is_plain_pytorch(name: str) -> None:
    """Buffers are sent with the parameters; with one worker they arrive unchanged."""
    got = final(RECIPES[name](), partial(loops.follow, build=loops.batch_norm, optimizers=loops.sgd, steps=10), 1)
    assert_same(got, loops.plain_pytorch(loops.batch_norm, loops.sgd, 10))


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "to", "settings"), reductions(to_plain=False))
def test_a_recipe_equals_what_it_reduces_to(name: str, to: str, settings: Settings) -> None:
    """With four simulated workers, to rounding."""

    def weights(strategy: Strategy) -> dict[str, torch.Tensor]:
        train = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=15)
        return ps.run(train, strategy, workers=4, engine=ps.Simulated("uniform")).state_dict

    assert_close(weights(recipe(name, **settings)), weights(makers()[to]()))


CONSTANTS = ("mask", "least", "small", "fractions")
MASKED: dict[str, Callable[[], Strategy]] = {
    **{
        name: RECIPES[name]
        for name in ("sync_sgd", "async_sgd", "async_sgd plain", "local_sgd", "hogwild", "allreduce")
    },
    "buffered": partial(ps.buffered, 2),
    "buffered plain": partial(ps.buffered, 2, correct="plain"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MASKED)
def test_unchanged_buffers_keep_their_bits(name: str) -> None:
    """A causal mask of -inf or of the least number there is, a table of fractions: to the last bit, with three workers too.
    Those that one worker changes are as it changes them, if they go down, too."""
    train = partial(loops.follow, build=loops.Masked, optimizers=loops.sgd, steps=6)
    strategy = RECIPES["buffered"] if name == "buffered" else MASKED[name]
    if name != "buffered plain":
        assert_same(final(strategy(), train, 1), loops.plain_pytorch(loops.Masked, loops.sgd, 6))
    got, want = final(MASKED[name](), train, 3), loops.Masked().state_dict()
    assert_same({key: got[key] for key in CONSTANTS}, {key: want[key] for key in CONSTANTS})
    assert got["norm.running_mean"].isfinite().all()
    assert not torch.equal(got["norm.running_mean"], want["norm.running_mean"])


@pytest.mark.parametrize("name", ["sync_sgd", "allreduce"])
def test_synchronous_workers_equal_one_worker_with_a_larger_batch(name: str) -> None:
    """The mean of N gradients over batches of b is the gradient over a batch of N b."""
    got = final(RECIPES[name](), partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=20), 3)
    assert_close(got, loops.plain_pytorch(loops.mlp, loops.momentum, 20, batch=24))


def test_replicas_have_equal_bits_at_every_version(tmp_path: Path) -> None:
    """Under a barrier every worker goes on from the same bits, at every version."""
    ps.run(partial(loops.leave_fingerprints, folder=str(tmp_path), steps=15), ps.sync_sgd(), workers=3)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [version for version, _ in seen[0]] == list(range(1, 16))
    assert seen[0] == seen[1] == seen[2]


def test_a_full_buffer_released_after_the_fold_is_sync_sgd() -> None:
    """`buffered(k=N)` whose workers wait for the fold is `sync_sgd`, bit for bit."""
    waiting = Strategy(
        name="buffered, waiting", gather=Buffer(3), release=AfterFold(), outer=UserOptimizer(lr_scale="full")
    )
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=15)
    assert_same(final(waiting, train, 3), final(ps.sync_sgd(), train, 3))


def test_batch_norm_statistics_are_averaged() -> None:
    """After one synchronous step the running mean is the mean of the workers' own."""
    got = final(ps.sync_sgd(), partial(loops.follow, build=loops.batch_norm, optimizers=loops.sgd, steps=1), 2)
    means = means_of_one_step()
    torch.testing.assert_close(got["1.running_mean"], (means[0] + means[1]) / 2)
    assert int(got["1.num_batches_tracked"]) == 1


@pytest.mark.parametrize("strategy", [ps.quorum(1), ps.decoupled(1, grace_s=0.01, overlap=False)], ids=by_name)
def test_who_comes_late_and_alone_moves_statistics_by_its_part(strategy: Strategy) -> None:
    """As where nobody waits for a fold: half of the way to each of two."""
    uneven = ps.Simulated(Cluster((Group(1, LogNormal(1.0, 0.0)), Group(1, LogNormal(9.0, 0.0)))))
    train = partial(loops.follow, build=loops.batch_norm, optimizers=loops.sgd, steps=1)
    run = ps.run(train, strategy, workers=2, engine=uneven)
    first, late = means_of_one_step()
    assert run.version == 2
    torch.testing.assert_close(run.state_dict["1.running_mean"], first / 4 + late / 2)
    assert int(run.state_dict["1.num_batches_tracked"]) == 1


def means_of_one_step() -> list[torch.Tensor]:
    """The running mean of each of two workers."""
    inputs, labels = loops.data()
    means = []
    for rank in range(2):
        model = loops.batch_norm()
        rows = loops.rows_of(rank, 8, len(inputs))
        loops.loss_of(model, inputs[rows], labels[rows])
        means.append(model.state_dict()["1.running_mean"])
    return means


def leaving(worker: ps.Worker) -> None:
    """All but worker 0 leave after two steps."""
    loops.follow(worker, build=loops.batch_norm, optimizers=loops.sgd, steps=2 if worker.rank else 12)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["sync_sgd", "local_sgd"])
def test_a_round_of_the_remaining_workers_is_a_full_mean(name: str) -> None:
    """Weights as under all-reduce, whose running statistics are worker 0's; simulated too."""
    want = final(ps.allreduce(), leaving, 3)
    assert_close(final(RECIPES[name](), leaving, 3), {key: one for key, one in want.items() if "running" not in key})
    simulated = ps.run(leaving, ps.allreduce(), workers=3, engine=ps.Simulated("uniform"))
    assert_close(simulated.state_dict, want)


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd plain", "local_sgd", "hogwild"])
def test_tied_frozen_and_unused_parameters_match_plain_pytorch(name: str) -> None:
    """Tied weights stay one tensor, frozen ones stay, and one without a gradient contributes zero and is counted."""
    run = ps.run(partial(loops.follow, build=loops.Tied, optimizers=loops.sgd, steps=6), RECIPES[name](), workers=1)
    got, want = run.state_dict, loops.plain_pytorch(loops.Tied, loops.sgd, 6)
    assert_same(got, want)
    assert got["encode.weight"].data_ptr() == got["twin.weight"].data_ptr()
    if name in ("sync_sgd", "async_sgd plain", "hogwild"):
        assert run.missing_gradients == 3 * 2  # every other step leaves out a weight and a bias


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd", "local_sgd", "hogwild", "buffered"])
def test_mixed_dtypes_match_plain_pytorch(name: str) -> None:
    """float32, bfloat16 and float64 parameters keep their dtype and train as PyTorch trains them; what the server steps of
    bfloat16, as it trains float32 copies of it."""
    got = final(RECIPES[name](), partial(loops.follow, build=loops.Mixed, optimizers=loops.momentum, steps=8), 1)
    loop = loops.plain_pytorch if name in ("local_sgd", "hogwild") else loops.with_master
    assert_same(got, loop(loops.Mixed, loops.momentum, 8))
    two = final(RECIPES[name](), partial(loops.follow, build=loops.Mixed, optimizers=loops.momentum, steps=8), 2)
    assert {name: value.dtype for name, value in two.items()} == {name: value.dtype for name, value in got.items()}


def drawing(worker: ps.Worker, folder: str) -> None:
    """Two epochs, and in each step and after it a number from each source, as dropout or an augmentation would draw it."""
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.ones(48, 1)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    drawn: list[tuple[float, ...]] = []

    def draw() -> None:
        drawn.append((float(torch.rand(())), random.random(), float(np.random.random())))

    try:
        for _ in range(2):
            for (inputs,) in loader:
                optimizer.zero_grad()
                model(inputs).sum().backward()
                draw()
                optimizer.step()
                draw()
    finally:
        Path(folder, str(worker.rank)).write_text(json.dumps(drawn))


def drawn(strategy: Strategy, folder: Path) -> list[list[tuple[float, ...]]]:
    """What each of two workers drew in and after each of its steps."""
    folder.mkdir()
    ps.run(partial(drawing, folder=str(folder)), strategy, workers=2, timeout_s=60)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", RECIPES)
def test_each_step_draws_its_own_random_numbers(name: str, tmp_path: Path) -> None:
    steps = [numbers for worker in drawn(RECIPES[name](), tmp_path / "drawn") for numbers in worker]
    assert len(steps) >= 48
    for of_one_source in zip(*steps, strict=True):
        assert len(set(of_one_source)) == len(steps)


def test_all_reduce_draws_the_same_random_numbers_as_sync_sgd(tmp_path: Path) -> None:
    assert drawn(ps.allreduce("torch"), tmp_path / "here") == drawn(ps.sync_sgd(), tmp_path / "there")
