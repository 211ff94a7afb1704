"""`prepare` on a loader: it looks like the user's and shares out one order, or says why it cannot."""

from __future__ import annotations

import copy
import itertools
import os
import random
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.core.leases import DataLeases
from plesio.errors import ConfigurationError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import Answer, Request
from plesio.protocol.worker import LeaseReply, LeaseRequest
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.data.making import BatchMaker
from plesio.worker.data.order import BatchOrder
from plesio.worker.data.use import DataUse
from plesio.worker.state import WorkerState
from support import loops
from support.long_forms import but_thorough, examples, in_turn

ROWS, BATCH = 48, 4


class By(Sampler[int]):
    """Draws each epoch's order by a function of the rows and the number of epochs drawn so far."""

    def __init__(self, order: Callable[[int, int], list[int]]) -> None:
        self.order = order
        self.drawn = 0

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        self.drawn += 1
        return iter(self.order(ROWS, self.drawn - 1))


class Anything:
    """Data with an item for whatever it is asked."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Any:
        return index


def by_numpy(rows: int, drawn: int) -> list[int]:
    return np.random.permutation(rows)  # type: ignore[return-value]  # of NumPy's own integers


def by_python(rows: int, drawn: int) -> list[int]:
    return random.sample(range(rows), rows)


def by_a_source_of_its_own(rows: int, drawn: int) -> list[int]:
    return random.Random().sample(range(rows), rows)


def seeded_source() -> By:
    source = np.random.default_rng(5)
    return By(lambda rows, drawn: source.permutation(rows).tolist())


def turned(rows: int, drawn: int, rank: int) -> list[int]:
    """Another order by rank in the second epoch."""
    start = rank if drawn == 1 else 0
    return [*range(start, rows), *range(start)]


SAMPLERS: dict[str, Callable[[], Sampler[int]]] = {
    "numpy": lambda: By(by_numpy),
    "python": lambda: By(by_python),
    "a seeded source of its own": seeded_source,
    "a torch.Generator": lambda: RandomSampler(range(ROWS), generator=torch.Generator()),
}
APART: dict[str, tuple[Callable[[Any], DataLoader[Any]], int]] = {
    "an unseeded source of its own": (lambda worker: loader_of(By(by_a_source_of_its_own)), 0),
    "by rank, later": (lambda worker: loader_of(By(partial(turned, rank=worker.rank))), 1),
    "split by rank": (lambda worker: DataLoader(part(worker.rank), batch_size=BATCH, shuffle=True), 0),
    "other sizes, as many batches": (
        lambda worker: DataLoader(loops.Numbered(ROWS - worker.rank), batch_size=BATCH),
        0,
    ),
}


def loader_of(sampler: Sampler[int] | None = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(loops.Numbered(ROWS), batch_size=BATCH, sampler=sampler, **settings)


def part(rank: int) -> Subset[Any]:
    return Subset(loops.Numbered(ROWS), range(rank * 16, rank * 16 + 16))


def follow(worker: Any, load: Callable[[Any], Any], epochs: int = 3, folder: str = "") -> None:
    """Train over what it is given and write down the rows."""
    np.random.seed(worker.rank)  # whatever was drawn before is no reason to draw another order
    random.seed(worker.rank)
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), load(worker))
    seen: list[str] = []
    for _ in range(epochs):
        for numbers, inputs, labels in loader:
            loops.descend(optimizer, cross_entropy(model(inputs), labels))
            seen += [str(int(number)) for number in numbers]
    if folder:
        Path(folder, f"{worker.rank}.txt").write_text(" ".join(seen))


class Lonely:
    """Gives a lonely worker all data."""

    away = in_parts = False
    now_s = staticmethod(time.monotonic)

    def __init__(self, leases: DataLeases, digests: list[int]) -> None:
        self.leases, self.digests = leases, digests

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.digests.append(request.digest)
        return LeaseReply(self.leases.take(0, request.epoch, request.total, request.most))

    def ask_ahead(self, request: LeaseRequest, due: bool) -> bool:
        return False


def leased(loader: Any, digests: list[int] | None = None, done: int = 0) -> LeasedLoader:
    """What a lonely worker is given; nothing is left of the first `done` epochs."""
    leases = DataLeases(1, stealing=True)
    leases.take(0, done - 1, ROWS // BATCH, most=ROWS)
    lessor = Lonely(leases, digests if digests is not None else [])
    return LeasedLoader(loader, lessor, WorkerState(0, 0), 1, DataUse(), lambda: lambda: False, lambda: None)


def rows_of(loader: LeasedLoader) -> list[int]:
    return [int(number) for numbers, *_ in loader for number in numbers]


# It looks like the user's


def test_a_leased_loader_forwards_attributes() -> None:
    data = loops.Numbered(ROWS)
    usual = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)
    loader = leased(usual)
    assert (loader.dataset, loader.batch_size, loader.drop_last) == (data, BATCH, True)
    assert (loader.sampler, loader.collate_fn) == (usual.sampler, usual.collate_fn)
    assert leased(data).dataset is data
    with pytest.raises(AttributeError, match="shuffle"):
        loader.shuffle  # noqa: B018
    assert copy.copy(loader).dataset is data  # asks an object that has nothing yet


# One order for all


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "strategy"), in_turn([*SAMPLERS], ["async_sgd", "sync_sgd"]))
def test_each_epoch_visits_each_row_once(name: str, strategy: str, tmp_path: Path) -> None:
    train = partial(follow, load=lambda worker: loader_of(SAMPLERS[name]()), folder=str(tmp_path))
    ps.run(train, strategy, workers=3, timeout_s=60)
    seen = Counter(int(row) for file in tmp_path.glob("*.txt") for row in file.read_text().split())
    assert seen == dict.fromkeys(range(ROWS), 3)


@pytest.mark.few(3)
@pytest.mark.parametrize(("load", "epoch"), APART.values(), ids=APART)
@pytest.mark.parametrize("strategy", but_thorough([ps.async_sgd(), ps.allreduce("torch")], {"async_sgd"}), ids=str)
def test_workers_with_different_orders_are_refused(
    load: Callable[[Any], Any], epoch: int, strategy: ps.Strategy
) -> None:
    """In shards: else a fast worker may take all data before the other one asks for any of that epoch."""
    told = rf"workers \d and \d drew different batches for epoch {epoch}: .*worker\.seed"
    with pytest.raises(ConfigurationError, match=told):
        ps.run(partial(follow, load=load), strategy, workers=2, data="shards", timeout_s=60)


def test_drawing_an_order_leaves_global_generators_unchanged() -> None:
    def numbers() -> tuple[float, float, float]:
        return float(np.random.random()), random.random(), float(torch.rand(()))

    for loader in (loader_of(By(by_numpy)), loader_of(By(by_python)), loader_of(shuffle=True)):
        np.random.seed(1), random.seed(1), torch.manual_seed(1)
        expected = numbers()
        np.random.seed(1), random.seed(1), torch.manual_seed(1)
        order = BatchOrder(loader, seed=0)
        assert sorted(row for batch in range(order.total) for row in order.batches(0)[batch]) == list(range(ROWS))
        assert numbers() == expected


def test_skipped_epochs_still_draw_their_order() -> None:
    """As the epochs before a resume."""
    whole, rest = leased(loader_of(seeded_source())), leased(loader_of(seeded_source()), done=2)
    assert [rows_of(whole) for _ in range(3)][2] == [rows_of(rest) for _ in range(3)][2]


def test_orders_of_plain_indices_have_digests() -> None:
    def digest_of(sampler: Any) -> int:
        digests: list[int] = []
        next(iter(leased(DataLoader(Anything(), sampler=sampler, collate_fn=len), digests)))
        return digests[0]

    weighted = WeightedRandomSampler([1.0] * ROWS, ROWS)
    orders = [
        weighted,
        [1, 2],
        [2, 1],
        ["1", "2"],
        [(1, 2)],
        [torch.tensor(3)],
        [range(2)],
        SequentialSampler(range(ROWS)),
    ]
    digests = [digest_of(order) for order in orders]
    assert 0 not in digests
    assert len(set(digests)) == len(orders)
    assert digest_of(np.array([1, 2])) == digest_of([1, 2])
    assert digest_of([slice(1)]) == digest_of([object()]) == 0, "not compared"


def test_different_orders_are_refused_in_virtual_time() -> None:
    class Asking:
        def __init__(self, digest: int) -> None:
            self.digest = digest

        def begin(self, incarnation: int) -> None:
            pass

        def go_on(self, answer: Answer, buffer: int, now_s: float) -> tuple[float, Request]:
            return now_s, None if isinstance(answer, LeaseReply) else LeaseRequest(0, 4, 1, 0, self.digest)

        def end(self) -> None:
            pass

    with pytest.raises(ConfigurationError, match="workers 0 and 1 drew different batches for epoch 0"):
        VirtualRun(ps.sync_sgd(), Cluster((Group(2, Constant(1.0)),)), [Asking(17), Asking(18)]).run()


# What cannot be shared out

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "loaders": (lambda: [loader_of(), loader_of()], "given list for data; .* of several DataLoaders in one"),
    "named loaders": (lambda: {"train": loader_of()}, "given dict for data"),
    "a part of the data": (
        lambda: loader_of(DistributedSampler(loops.Numbered(ROWS), num_replicas=2, rank=1)),
        "DistributedSampler leaves each worker a part .* shuffle=True",
    ),
}


@pytest.mark.parametrize(("loader", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_loaders_are_refused(loader: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        leased(loader())


# A look at the data


def look(worker: ps.Worker | None, looks: int, processes: int = 0, seen: str = "") -> dict[str, torch.Tensor]:
    """Two epochs, with looks at the first batches before and between them, and after them where nobody waits for those."""
    model = nn.Sequential(nn.Dropout(0.3), loops.mlp())
    optimizer, loader = loops.sgd(model), loader_of(shuffle=True, num_workers=processes)
    if worker is not None:
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
    rows: list[str] = []
    for _ in range(2):
        for _ in range(looks):
            for _ in zip(loader, range(looks), strict=False):
                pass
        for numbers, inputs, labels in loader:
            loops.descend(optimizer, cross_entropy(model(inputs), labels))
            rows += [str(int(number)) for number in numbers]
    if worker is None or worker.workers == 1:
        next(iter(loader))
    if seen and worker is not None:
        Path(seen, f"{worker.rank}.txt").write_text(" ".join(rows))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def accumulate_by_next(worker: ps.Worker, folder: str) -> None:
    """Each batch of a step by an iterator of its own."""
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader_of(shuffle=True))
    rows: list[int] = []
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            numbers, inputs, labels = next(iter(loader))
            rows += numbers.tolist()
            cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if worker.rank == 0:
        Path(folder, "rows.txt").write_text(" ".join(map(str, rows)))


EVERYWHERE = [
    ps.sync_sgd(), ps.async_sgd(), ps.allreduce("torch"), ps.first_of(1), ps.local_sgd(every=5), ps.hogwild(),
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", EVERYWHERE, ids=str)
def test_peeking_at_a_batch_is_as_in_torch(strategy: ps.Strategy) -> None:
    """A peek is in no epoch, step or count; each pass draws its order anew."""
    run = ps.run(partial(look, looks=2), strategy, workers=1, timeout_s=60)
    assert (run.steps, run.samples) == (2 * ROWS // BATCH, 2 * ROWS)
    steps_each = strategy.every.due(1, 0.0, 0, 0)
    for name, value in look(None, looks=2).items() if steps_each else ():
        assert torch.equal(run.state_dict[name], value), name


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", EVERYWHERE, ids=str)
def test_a_batch_with_an_accumulated_gradient_is_no_peek(strategy: ps.Strategy, tmp_path: Path) -> None:
    run = ps.run(partial(accumulate_by_next, folder=str(tmp_path)), strategy, workers=2, timeout_s=60)
    rows = (tmp_path / "rows.txt").read_text().split()
    assert len(rows) == 4 * BATCH
    if not strategy.release.cancel_late:  # else a step may be called off, and its batches come again
        assert len(set(rows)) == len(rows)
        assert run.samples == 2 * 4 * BATCH


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "processes"), in_turn([ps.sync_sgd(), ps.allreduce("torch"), ps.async_sgd()], [2, 0]), ids=str
)
def test_peeked_batches_are_trained_on_once_an_epoch(strategy: ps.Strategy, processes: int, tmp_path: Path) -> None:
    """By processes of the loader, or by the worker itself; under async_sgd in virtual time."""
    engine: Any = ps.Simulated("uniform") if strategy.name == "async_sgd" else "local"
    train = partial(look, looks=2, processes=processes, seen=str(tmp_path))
    assert ps.run(train, strategy, workers=2, engine=engine, timeout_s=60).samples == 2 * ROWS
    seen = Counter(int(row) for file in tmp_path.glob("*.txt") for row in file.read_text().split())
    assert seen == dict.fromkeys(range(ROWS), 2)


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["local", ps.Simulated("one-straggler")], ids=["local", "simulated"])
@pytest.mark.parametrize(
    "strategy", but_thorough([ps.async_sgd(), ps.first_of(1), ps.local_sgd(every=5)], {"async_sgd"}), ids=str
)
def test_a_run_with_peeks_is_replayed(strategy: ps.Strategy, engine: Any, tmp_path: Path) -> None:
    train = partial(look, looks=2)
    run = ps.run(train, strategy, workers=2, engine=engine, runs=tmp_path, timeout_s=60)
    assert str(ps.replay(run.folder, train)).startswith("bit-identical")


def test_the_rest_of_an_epoch_left_early_comes_first_in_the_next() -> None:
    """Each batch is leased as often as any other, unless there is one worker: that begins anew, as torch does."""

    def train(worker: ps.Worker) -> None:
        model = loops.mlp()
        model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader_of())
        rows: list[int] = []
        for stop in (BATCH, 3 * BATCH, ROWS // worker.workers * 2):
            for numbers, inputs, labels in loader:
                loops.descend(optimizer, cross_entropy(model(inputs), labels))
                rows += map(int, numbers)
                if len(rows) == stop:
                    break
        numbers = list(range(ROWS))
        own = [row for row in numbers if row // BATCH % 2 == worker.rank] * 2
        assert (
            rows == ([*numbers[:BATCH], *numbers[: 2 * BATCH], *numbers] if worker.workers == 1 else own)[: len(rows)]
        )

    for workers in (1, 2):
        run = ps.run(train, ps.sync_sgd(), workers=workers, engine=ps.Simulated("uniform"))
        assert run.batches_unvisited == {1: 11 + 10, 2: 12}[workers]


# Fewer batches than workers


def few(worker: ps.Worker, epochs: int | None) -> None:
    """Two batches an epoch; None: for ever."""
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), DataLoader(loops.Numbered(8), batch_size=4))
    for _ in itertools.count() if epochs is None else range(epochs):
        for _, *batch in loader:
            loops.descend(optimizer, loops.loss_of(model, *batch))


@pytest.mark.parametrize(
    ("strategy", "engine"),
    [
        pytest.param(ps.sync_sgd(), "local", marks=pytest.mark.slow),
        pytest.param(ps.allreduce("torch"), "local", marks=pytest.mark.slow),
        (ps.sync_sgd(), ps.Simulated("uniform")),
    ],
    ids=["sync_sgd", "allreduce", "simulated"],
)
def test_a_worker_without_batches_may_not_loop_forever_in_rounds(
    strategy: ps.Strategy, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait for it forever."""
    if engine != "local":
        monkeypatch.setattr("plesio.core.leases.IN_VAIN_MAX", 1000)
    assert ps.run(partial(few, epochs=3), strategy, workers=3, engine=engine, timeout_s=60).samples == 3 * 8
    with pytest.raises(
        ConfigurationError, match=r"worker 2 got no batch in (50,000|1,000) epochs: .* or workers=2 at most"
    ):
        ps.run(partial(few, epochs=None), strategy, workers=3, engine=engine, timeout_s=60)


def test_workers_of_a_process_share_an_epochs_order() -> None:
    """Orders can be large: each worker keeps two, and unused ones are freed."""
    loader = DataLoader(range(ROWS), batch_size=BATCH, shuffle=True)
    one, other = BatchOrder(loader, seed=5), BatchOrder(loader, seed=5)
    first = one.batches(0)
    assert other.batches(0) is first
    for worker in (one, other):
        worker.batches(1)
        worker.batches(2)
    nobodys = list(first)
    assert sys.getrefcount(first) == sys.getrefcount(nobodys)
    assert one.batches(2) is other.batches(2)


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(0, 2**63), st.integers(0, 2))
def test_the_order_equals_torchs_samplers(
    samples: int, batch: int, shuffled: bool, drop_last: bool, seed: int, epoch: int
) -> None:
    loader = DataLoader(range(samples), batch_size=batch, shuffle=shuffled, drop_last=drop_last)
    torch.manual_seed(seed + 1_000_003 * (epoch + 1))
    drawn = list(loader.batch_sampler)
    batches = BatchOrder(loader, seed).batches(epoch)
    assert list(batches) == drawn
    assert len(batches) == len(drawn)
    assert {type(index) for one in batches for index in one} <= {int}


def test_an_epochs_order_is_stored_compactly() -> None:
    """Python integers would take 40 bytes a sample and delay every epoch's first batch."""
    loader = DataLoader(range(100_000), batch_size=10, shuffle=True)
    tracemalloc.start()
    try:
        assert len(BatchOrder(loader, seed=5).batches(0)[7]) == 10
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# How far the run is


def scheduled(worker: ps.Worker, epochs: int) -> None:
    """Log where the run is at each step, and what a schedule made of it."""
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), DataLoader(loops.Numbered(ROWS), batch_size=1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0 - worker.epoch / epochs)
    assert worker.epoch == 0.0
    steps, before = 0, 0.0
    for _ in range(epochs):
        for _, inputs, labels in loader:
            assert before <= worker.epoch < epochs
            before = worker.epoch
            loops.descend(optimizer, cross_entropy(model(inputs), labels))
            schedule.step()
            steps += 1
    (group,) = optimizer.param_groups
    worker.log(last=before, steps=steps, share=len(loader) * epochs, left=group["lr"] / group["initial_lr"])


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(every=4), ps.hogwild()], ids=str)
def test_progress_is_the_runs_for_every_worker(strategy: ps.Strategy) -> None:
    """A schedule by one worker's own steps would end too early or never."""
    run = ps.run(partial(scheduled, epochs=4), strategy, workers=3, engine=ps.Simulated("one-straggler"))
    ends = [one.metrics for one in run.summary.logged if "last" in one.metrics]
    assert len(ends) == 3
    assert all(0.0 < one["left"] <= 0.5 for one in ends)
    assert min(one["last"] for one in ends) >= (3.8 if strategy.in_lock_step else 3.2), "a slow one was told long ago"
    ahead = max(one["steps"] - one["share"] for one in ends)
    assert ahead == 0 if strategy.in_lock_step else ahead > 0


def test_real_workers_see_the_runs_progress() -> None:
    run = ps.run(partial(scheduled, epochs=4), ps.async_sgd(), workers=3, faults=[ps.Slow(worker=0, factor=5)])
    assert run.samples == 4 * ROWS
    assert min(one.metrics["left"] for one in run.summary.logged if "left" in one.metrics) <= 0.5


def test_epoch_without_a_loader_is_refused() -> None:
    def train(worker: ps.Worker) -> None:
        model = loops.mlp()
        worker.prepare(model, loops.sgd(model), None)
        _ = worker.epoch

    with pytest.raises(ConfigurationError, match=r"prepare was given no loader; count what you read"):
        ps.run(train, ps.async_sgd(), workers=1, engine=ps.Simulated("uniform"))


@pytest.mark.parametrize("method", ["spawn", None])
def test_the_loaders_multiprocessing_context_is_kept(method: str | None) -> None:
    source = DataLoader(range(8), batch_size=2, num_workers=1, multiprocessing_context=method)  # type: ignore[arg-type, var-annotated]
    got = BatchMaker(source)._loader.multiprocessing_context
    assert (got and got.get_start_method()) == method


def impatient(worker: ps.Worker) -> None:
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), DataLoader(Anything(), batch_size=ROWS))
    next(iter(loader))
    loops.descend(optimizer, model(torch.ones(1, loops.FEATURES)).sum())


def by_next_alone(worker: ps.Worker) -> None:
    worker.prepare(model := loops.mlp(), loops.sgd(model), None)
    next(iter(()))


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["processes", "simulated"])
def test_next_on_an_empty_epoch_is_explained(engine: str | ps.Simulated) -> None:
    words = r"raised StopIteration: an epoch may hold no batch for a worker.*while True: for batch in loader"
    with pytest.raises(ps.WorkerError, match=words):
        ps.run(impatient, "async_sgd", workers=2, engine=engine, timeout_s=30.0)
    with pytest.raises(ps.WorkerError, match=r"raised StopIteration: \n"):
        ps.run(by_next_alone, "async_sgd", workers=1, engine=engine, timeout_s=30.0)


def prints_its_loss(worker: ps.Worker) -> None:
    """One batch for two workers."""
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), DataLoader(Anything(), batch_size=ROWS))
    for _ in loader:
        loss = model(torch.ones(1, loops.FEATURES)).sum()
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.3f}")


def fails_in_its_loop(worker: ps.Worker) -> None:
    model = loops.mlp()
    _, _, loader = worker.prepare(model, loops.sgd(model), loader_of())
    for _ in loader:
        raise ZeroDivisionError


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["processes", "simulated"])
def test_an_error_after_an_empty_pass_is_explained(engine: str | ps.Simulated) -> None:
    with pytest.raises(ps.WorkerError, match=r"UnboundLocalError: .*'loss'.*was given nothing in its last pass"):
        ps.run(prints_its_loss, "async_sgd", workers=2, engine=engine, timeout_s=30.0)
    with pytest.raises(ps.WorkerError, match="ZeroDivisionError") as caught:
        ps.run(fails_in_its_loop, "async_sgd", workers=2, engine=engine, timeout_s=30.0)
    assert "last pass" not in str(caught.value)
    loader = leased(loader_of(), done=1)
    assert [(len(list(loader)), loader.empty_pass) for _ in range(2)] == [(0, True), (ROWS // BATCH, False)]


def looks_again(worker: ps.Worker, processes: int, epochs: int = 2) -> None:
    """Trains, and after each epoch passes over the data for the statistics of its norm and for its accuracy."""
    model = nn.Sequential(nn.Linear(loops.FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, loops.CLASSES))
    inputs, labels = loops.data(96)
    source = TensorDataset(torch.arange(96), inputs, labels)
    loader = DataLoader(source, batch_size=8, shuffle=True, num_workers=processes)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
    for _ in range(epochs):
        for number, (_, rows, wanted) in enumerate(loader):
            loops.descend(optimizer, cross_entropy(model(rows), wanted))
            if number == 1:  # in the middle of an epoch
                with torch.inference_mode():
                    assert sum(len(rows) for _, rows, _ in loader) == 96
        seen: list[int] = []
        with torch.no_grad():
            for rows_seen, rows, _ in loader:
                model(rows)
                seen += rows_seen.tolist()
        assert sorted(seen) == list(range(96))
    worker.log(epoch=worker.epoch)


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "processes"), in_turn(["sync_sgd", "async_sgd", "local_sgd"], [0, 1]))
def test_a_pass_without_gradients_sees_all_data_and_counts_nowhere(
    strategy: str, processes: int, tmp_path: Path
) -> None:
    train = partial(looks_again, processes=processes)
    run = ps.run(train, strategy, workers=3, runs=tmp_path)
    assert (run.samples, run.batches_unvisited) == (2 * 96, 0)
    assert {one.metrics["epoch"] for one in run.logged} == {2.0}
    if not processes:
        assert ps.replay(run.folder, train).identical


def beside_itself(worker: ps.Worker) -> None:
    model = torch.nn.Linear(1, 1)
    loader: Any = DataLoader(TensorDataset(torch.arange(12.0).view(-1, 1)), batch_size=2, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for (inputs,) in loader:
        (partner,) = next(iter(loader))
        model(inputs + partner).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("workers", [1, 2])
def test_two_passes_at_once_are_refused(workers: int) -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"two passes over the prepared loader at once: .* take worker\.share"
    ):
        ps.run(beside_itself, "sync_sgd", workers=workers, engine=ps.Simulated("uniform"))


def grows(worker: ps.Worker, sampled: bool, shared: bool) -> list[list[int]]:
    """The data set, or the sampler's choice of it, is larger in each epoch, as in active learning."""
    model, chosen = torch.nn.Linear(1, 1), [*range(13)]
    rows = list(map(float, range(48 if sampled else 13)))
    sampler = SubsetRandomSampler(chosen) if sampled else None
    given = DataLoader(rows, 4, sampler=sampler)  # type: ignore[arg-type]
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = worker.prepare(model, optimizer, None if shared else given)
    seen: list[list[int]] = []
    for epoch in range(3):
        seen.append([])
        for batch in worker.share(given) if shared else loader:
            loops.descend(optimizer, model(batch.float().view(-1, 1)).sum())
            seen[-1] += batch.int().tolist()
        chosen += range(len(chosen), 16 + 16 * epoch)
        rows += map(float, range(len(rows), len(chosen)))
    return seen


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_data_that_grows_is_shared_out_anew_each_epoch_or_refused(workers: int, sampled: bool) -> None:
    settings: Any = {"workers": workers, "engine": ps.Simulated("uniform")}
    run = ps.run(partial(grows, sampled=sampled, shared=True), "sync_sgd", **settings)
    together = [sorted(itertools.chain(*parts)) for parts in zip(*run.returned, strict=True)]
    assert together == [[*range(13)], [*range(16)], [*range(32)]]
    assert run.samples == 13 + 16 + 32
    with pytest.raises(ps.ConfigurationError, match=r"over a list no longer gives the 4 batches .* worker\.share"):
        ps.run(partial(grows, sampled=sampled, shared=False), "sync_sgd", **settings)


def loads_in_many_processes(worker: ps.Worker) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        model, processes = torch.nn.Linear(1, 1), (os.cpu_count() or 1) + 1  # of one worker, torch warns
        loader = DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=processes)
        worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    return [str(one.message) for one in told]


@pytest.mark.filterwarnings("ignore:nothing was trained")
def test_one_warning_tells_of_all_workers_loader_processes() -> None:
    first, second = ps.run(loads_in_many_processes, "async_sgd", workers=2, timeout_s=30.0).returned
    each = (os.cpu_count() or 1) + 1
    words = f"2 workers start num_workers={each} loader processes each, {2 * each} in all, and this host has"
    assert ([one[: len(words)] for one in first], second) == ([words], [])
