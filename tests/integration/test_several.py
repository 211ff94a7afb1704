"""Several modules, optimizers, schedulers and loaders, in any order; steps with a closure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import plesio as ps
from plesio.core.events import Fold, Member
from plesio.server.agreement import Agreement
from support import loops
from support.long_forms import but_thorough, in_turn

Pair = Callable[[Any, Any], tuple[Optimizer, Optimizer]]
SERVED = ["sync_sgd", "async_sgd", "buffered", "bounded_staleness", "first_of"]
PAIRS: dict[str, Pair] = {
    "two of Adam": lambda one, other: (Adam(one, lr=0.01), Adam(other, lr=0.03)),
    "momentum and Adam": lambda one, other: (SGD(one, lr=0.05, momentum=0.9), AdamW(other, lr=0.01)),
    "NAdam and SGD": lambda one, other: (NAdam(one, lr=0.01), SGD(other, lr=0.05, weight_decay=0.1)),
    "RMSprop and SGD": lambda one, other: (
        RMSprop(one, lr=0.01, momentum=0.5),
        SGD(other, lr=0.05, nesterov=True, momentum=0.9),
    ),
}


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    return (
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)),
    )


def rounds(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(2)
    for _ in range(number):
        yield torch.randn(8, 3, generator=source), torch.randn(8, 2, generator=source)


def gan(generator: nn.Module, critic: nn.Module, ours: Optimizer, theirs: Optimizer, batches: Any) -> None:
    """The generator's loss leaves gradients in the critic, too: they are dropped before its next step."""
    for noise, real in batches:
        loops.descend(theirs, critic(generator(noise).detach()).mean() - critic(real).mean())
        loops.descend(ours, -critic(generator(noise)).mean())


def alone(pair: Pair, number: int) -> dict[str, torch.Tensor]:
    generator, critic = networks()
    ours, theirs = pair(generator.parameters(), critic.parameters())
    gan(generator, critic, ours, theirs, rounds(number))
    return nn.ModuleList([generator, critic]).state_dict()


def train(worker: ps.Worker, pair: Pair, number: int) -> None:
    generator, critic = networks()
    ours, theirs = pair(generator.parameters(), critic.parameters())
    theirs, critic, generator, ours = worker.prepare(theirs, critic, generator, ours)
    gan(generator, critic, ours, theirs, rounds(number))


def named(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As `train` gives them: the critic first."""
    return {("1" if name[0] == "0" else "0") + name[1:]: value for name, value in state.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("strategy", "kinds"), in_turn([*SERVED, "hogwild", ps.local_sgd(1)], [*PAIRS], pytest.mark.thorough), ids=str
)
def test_two_optimizers_give_torchs_bits_with_one_worker(strategy: Any, kinds: str) -> None:
    strategy = {"first_of": ps.first_of(1), "buffered": ps.buffered(1)}.get(str(strategy), strategy)
    pair = PAIRS[kinds]
    run = ps.run(partial(train, pair=pair, number=20), strategy, workers=1, timeout_s=30.0)
    wanted = named(alone(pair, 20))
    assert run.state_dict.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(run.state_dict[name], value), name


def straight(worker: ps.Worker, number: int) -> None:
    """No batch norm: the mean of two gradients is that of both batches."""
    torch.manual_seed(1)
    one, other = nn.Linear(3, 1), nn.Linear(3, 1)
    first, second = Adam(one.parameters(), lr=0.01), SGD(other.parameters(), lr=0.1, momentum=0.9)
    one, other, first, second = worker.prepare(one, other, first, second)
    source = torch.Generator().manual_seed(3)
    for _ in range(number):
        inputs = torch.randn(8, 3, generator=source)[worker.rank :: worker.workers]
        loops.descend(first, one(inputs).square().mean())
        loops.descend(second, (one(inputs) - other(inputs)).square().mean())


def test_lock_step_of_two_optimizers_equals_the_doubled_batch() -> None:
    one, two = (ps.run(partial(straight, number=25), "sync_sgd", workers=n, timeout_s=30.0).state_dict for n in (1, 2))
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-5), name


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy", but_thorough(["sync_sgd", "async_sgd", "local_sgd", "bounded_staleness"], {"async_sgd", "local_sgd"})
)
def test_an_asynchronous_run_of_two_optimizers_replays(strategy: str, tmp_path: Path) -> None:
    pair = PAIRS["momentum and Adam"]
    run = ps.run(partial(train, pair=pair, number=15), strategy, workers=2, timeout_s=30.0, runs=tmp_path)
    assert run.folder is not None
    assert ps.replay(run.folder, partial(train, pair=pair, number=15)).identical
    simulated = ps.run(partial(train, pair=pair, number=15), strategy, workers=2, engine=ps.Simulated("uniform"))
    assert simulated.steps == 60


@pytest.mark.thorough
def test_checkpoint_holds_the_state_of_both_optimizers(tmp_path: Path) -> None:
    pair = PAIRS["momentum and Adam"]
    part = partial(train, pair=pair)
    whole_run = ps.run(partial(part, number=20), "sync_sgd", workers=1, timeout_s=30.0)
    half = ps.run(
        partial(part, number=10), "sync_sgd", workers=1, timeout_s=30.0, runs=tmp_path, checkpoint=ps.Checkpoint()
    )
    assert half.folder is not None
    run = ps.run(partial(second_half, pair=pair), "sync_sgd", workers=1, timeout_s=30.0, resume=half.folder)
    assert all(torch.equal(run.state_dict[name], value) for name, value in whole_run.state_dict.items())


def second_half(worker: ps.Worker, pair: Pair) -> None:
    generator, critic = networks()
    ours, theirs = pair(generator.parameters(), critic.parameters())
    theirs, critic, generator, ours = worker.prepare(theirs, critic, generator, ours)
    gan(generator, critic, ours, theirs, list(rounds(20))[10:])


def disordered(worker: ps.Worker) -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [SGD(model.parameters(), lr=0.1) for model in (one, other)]
    one, other, *optimizers = worker.prepare(one, other, *optimizers)
    (one(torch.ones(1, 2)) + other(torch.ones(1, 2))).sum().backward()
    for place in (0, 1) if worker.rank else (1, 0):
        optimizers[place].step()


def test_another_order_of_optimizers_in_lock_step_is_refused_with_both() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"different orders \(worker 0: 2; worker 1: 1, counted as prepare"):
        ps.run(disordered, "sync_sgd", workers=2, timeout_s=30.0)
    assert ps.run(disordered, "async_sgd", workers=2, timeout_s=30.0).steps == 4


@pytest.mark.parametrize(("size", "late", "ends"), [(2, False, True), (2, True, False), (1, False, False)])
def test_another_order_of_optimizers_ends_no_run_whose_workers_may_be_apart(size: int, late: bool, ends: bool) -> None:
    told: list[tuple[Any, str, str, str]] = []
    agreement = Agreement(ps.first_of(size), lambda *about: told.append(about))
    agreement.came_late = late
    agreement.came(1, 1)
    members = tuple(Member(worker, 1, 1, staleness=0, share=0.5, steps=1, samples=1) for worker in (0, 1))
    agreement.check(Fold(1, members, 1.0), workers=2)
    ((_, why, error, _),) = told
    assert "different orders" in why
    assert bool(error) == ends


def test_all_reduce_refuses_several_optimizers_and_modules() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"one module, for one optimizer .* take sync_sgd or local_sgd"):
        ps.run(disordered, ps.allreduce("torch"), workers=1, timeout_s=30.0)


# A step with a closure


def line() -> nn.Linear:
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def closing(worker: ps.Worker, kind: Callable[[Any], Optimizer], steps: int) -> None:
    model = line()
    model, optimizer = worker.prepare(model, kind(model.parameters()))
    losses = [float(optimizer.step(partial(loss_of, model, optimizer))) for _ in range(steps)]
    assert losses == sorted(losses, reverse=True)


def loss_of(model: nn.Module, optimizer: Optimizer) -> torch.Tensor:
    """As Lightning calls it: always with a closure."""
    optimizer.zero_grad()
    loss: torch.Tensor = (model(torch.eye(4)) - torch.arange(4.0)[:, None]).square().sum()
    loss.backward()
    return loss


@pytest.mark.parametrize(
    "strategy", but_thorough(["sync_sgd", "async_sgd", "local_sgd", "hogwild"], {"async_sgd", "local_sgd"})
)
def test_a_closure_is_evaluated_once_before_the_step(strategy: str) -> None:
    kind = partial(SGD, lr=0.05, momentum=0.5)
    model, steps = line(), 6
    optimizer = kind(model.parameters())
    for _ in range(steps):
        optimizer.step(partial(loss_of, model, optimizer))
    run = ps.run(partial(closing, kind=kind, steps=steps), strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)


@pytest.mark.parametrize("strategy", [ps.local_sgd(1), "hogwild"])
def test_lbfgs_searches_where_the_optimizer_steps_in_the_worker(strategy: Any) -> None:
    kind = partial(torch.optim.LBFGS, lr=0.5, max_iter=3)
    model = line()
    optimizer = kind(model.parameters())
    for _ in range(4):
        optimizer.step(partial(loss_of, model, optimizer))
    run = ps.run(partial(closing, kind=kind, steps=4), strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], model.weight)


@pytest.mark.parametrize(
    ("strategy", "words"), [("sync_sgd", "LBFGS evaluates .*take .*local_sgd"), (ps.allreduce("torch"), "L-BFGS, take")]
)
def test_lbfgs_is_refused_elsewhere(strategy: str, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(closing, kind=torch.optim.LBFGS, steps=1), strategy, workers=1, timeout_s=30.0)


# Several loaders, streams


class Numbers(IterableDataset[torch.Tensor]):
    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(float(self.end)).unbind())


class Sharded(Numbers):
    """Gives parts of its own, as Hugging Face's."""

    start = 0

    def shard(self, number: int, index: int) -> Sharded:
        part = Sharded(self.end // number * (index + 1))
        part.start = self.end // number * index
        return part

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(float(self.start), float(self.end)).unbind())


def streaming(worker: ps.Worker, data: Any, folder: str, epochs: int = 1, processes: int = 0) -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(data, batch_size=4, num_workers=processes)
    model, loader, optimizer = worker.prepare(model, loader, SGD(model.parameters(), lr=1e-6))
    seen: list[float] = []
    for _ in range(epochs):
        for batch in loader:
            loops.descend(optimizer, model(batch[:, None]).sum())
            seen += batch.tolist()
    Path(folder, f"{worker.rank}-{len(list(Path(folder).glob('*')))}").write_text(" ".join(map(str, seen)))


def seen_in(folder: Path) -> list[float]:
    return sorted(float(one) for file in folder.glob("*-*") for one in file.read_text().split())


@pytest.mark.few(2)
@pytest.mark.parametrize("data", [Numbers(50), Sharded(50)], ids=["every second element", "parts of its own"])
@pytest.mark.parametrize("processes", [0, 1])
def test_each_worker_reads_its_part_of_a_stream(data: Any, processes: int, tmp_path: Path) -> None:
    run = ps.run(
        partial(streaming, data=data, folder=str(tmp_path), processes=processes), "async_sgd", workers=2, timeout_s=30.0
    )
    assert seen_in(tmp_path) == [float(one) for one in range(50)]
    assert run.samples == 50


@pytest.mark.thorough
@pytest.mark.parametrize("shards", but_thorough([1, 4], {4}))
def test_hugging_face_data_sets_are_shared_out(shards: int, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    mapped = datasets.Dataset.from_dict({"x": [float(one) for one in range(48)]}).with_format("torch")
    for place, data in enumerate((mapped.to_iterable_dataset(num_shards=shards), mapped)):
        folder = tmp_path / str(place)
        folder.mkdir()
        run = ps.run(partial(columns, data=data, folder=str(folder)), "async_sgd", workers=2, timeout_s=30.0)
        assert run.samples == 48
        assert seen_in(folder) == [float(one) for one in range(48)]


def columns(worker: ps.Worker, data: Any, folder: str) -> None:
    model = nn.Linear(1, 1)
    model, optimizer, loader = worker.prepare(model, SGD(model.parameters(), lr=1e-6), DataLoader(data, batch_size=4))
    seen: list[float] = []
    for batch in loader:
        loops.descend(optimizer, model(batch["x"][:, None]).sum())
        seen += batch["x"].tolist()
    Path(folder, f"{worker.rank}-0").write_text(" ".join(map(str, seen)))


@pytest.mark.thorough
def test_resumed_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    part = partial(streaming, data=Numbers(4000), folder=str(folder))
    until, keeping = ps.Until(steps=100), ps.Checkpoint()
    first = ps.run(part, "sync_sgd", workers=2, timeout_s=30.0, until=until, runs=tmp_path / "runs", checkpoint=keeping)
    assert first.folder is not None
    for file in folder.iterdir():
        file.unlink()
    rest = ps.run(part, "sync_sgd", workers=2, timeout_s=30.0, resume=first.folder)
    assert 0 < rest.samples < 4000
    assert seen_in(folder) == [float(one) for one in range(4000)][-rest.samples :]


def two_loaders(worker: ps.Worker, folder: str) -> None:
    model = nn.Linear(1, 1)
    long, short = (DataLoader(TensorDataset(torch.arange(float(n))[:, None]), batch_size=2) for n in (40, 12))
    model, optimizer, long, short = worker.prepare(model, SGD(model.parameters(), lr=1e-6), long, short)
    seen: list[float] = []
    others = iter(short)
    for (inputs,) in long:
        try:
            (more,) = next(others)
        except StopIteration:
            others = iter(short)
            (more,) = next(others)
        seen += more.flatten().tolist()
        loops.descend(optimizer, model(torch.cat([inputs, more])).sum())
    Path(folder, f"{worker.rank}-0").write_text(" ".join(map(str, seen)))


def test_second_loader_is_read_in_parts_as_often_as_the_loop_likes(tmp_path: Path) -> None:
    run = ps.run(partial(two_loaders, folder=str(tmp_path)), "sync_sgd", workers=2, timeout_s=30.0)
    assert (run.steps, run.samples, run.batches_unvisited) == (20, 40, 0)
    own = [set(map(float, (tmp_path / f"{rank}-0").read_text().split())) for rank in range(2)]
    assert own[0] | own[1] == {float(one) for one in range(12)}
    assert not own[0] & own[1]


def trained_before(worker: ps.Worker | None, clears: bool) -> dict[str, torch.Tensor]:
    """Both optimizers have momenta when they are prepared; the first one's is cleared on the way, if the loop clears any."""
    models = networks()
    first, second = (SGD(one.parameters(), lr=0.05, momentum=0.9) for one in models)
    one, other = models

    def step(inputs: torch.Tensor) -> None:
        for optimizer in (first, second):
            optimizer.zero_grad()
        other(one(inputs)).square().mean().backward()
        first.step()
        second.step()

    step(torch.ones(4, 3))
    if worker is not None:
        one, other, first, second = worker.prepare(one, other, first, second)
    for number in range(4):
        if clears and number == 2:
            first.state.clear()
        step(torch.full((4, 3), 0.1 * number))
    both = nn.ModuleList([one, other]).state_dict()
    return {name: value.clone() for name, value in both.items()}


@pytest.mark.parametrize(
    ("strategy", "clears"),
    [("sync_sgd", False), ("local_sgd", False), ("local_sgd", True), (ps.allreduce().in_memory, True)],
    ids=["sync_sgd", "local_sgd", "local_sgd cleared", "allreduce cleared"],
)
def test_each_optimizer_begins_with_its_state_and_may_clear_it_alone(strategy: Any, clears: bool) -> None:
    run = ps.run(partial(trained_before, clears=clears), strategy, workers=1, engine=ps.Simulated("uniform"))
    for name, wanted in trained_before(None, clears).items():
        assert torch.equal(run.state_dict[name], wanted), name
