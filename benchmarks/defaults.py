"""What people use, raced: default strategies with momentum and AdamW, 1,000 small tensors, and a CNN with a real backward pass.

    python benchmarks/defaults.py --json FILE [--only 1e6] [--quick]

`exchange.py` races plain SGD without a correction on one flat tensor. Here every step is a training step: zero_grad, backward (of
the flat models one whose gradient lies ready), step. Rates are steps/s of all workers together.

| rival | what it is |
| --- | --- |
| bare pass | the optimizer alone on one thread: bounds a server that applies every push |
| nine arrays moved | by one thread: as many bytes as the server moves for a contribution of `async_sgd` with momentum |
| fifteen arrays moved by each | by two processes at once: as many bytes as a step of `allreduce` moves |
| DDP | DistributedDataParallel |
| Hogwild! by hand | each worker has an optimizer of its own, on memory that all share |
| by hand, gradients checked | the same, where each gradient is tested for NaN |
| plain loop | one process, for one worker with as many threads |
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import plesio as ps
import rivals
from _report import Row, interleave, parser, report, row, whole

LR = 1e-9
IMAGES = 64


class ReadyLoss(torch.autograd.Function):
    """A loss of many tensors whose gradients lie ready."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return weights[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.gradients)


class Tensors(nn.Module):
    """`count` parameters of `size` numbers each."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(size) for _ in range(count))
        self.gradients = [torch.full((size,), rivals.SCALE) for _ in range(count)]

    def forward(self) -> Tensor:
        return ReadyLoss.apply(self.gradients, *self.weights)


class Cnn(nn.Module):
    """1.2 million parameters: two convolutions and two layers, on a batch of images that lies ready."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
        self.images, self.labels = torch.rand(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,))

    def forward(self) -> Tensor:
        return F.cross_entropy(self.layers(self.images), self.labels)


class Work(NamedTuple):
    """A model, its optimizer, and what is wanted of strategies against their rivals."""

    name: str
    build: Callable[[], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    wanted: Mapping[str, str] = {}


MOMENTUM = functools.partial(torch.optim.SGD, lr=LR, momentum=0.9)
AS_BY_HAND = {"hogwild": ">= 1"}
WORKS = (
    Work("1e4, momentum", functools.partial(rivals.FlatModel, 10_000), MOMENTUM, {"allreduce": ">= 3", **AS_BY_HAND}),
    Work(
        "1e6, momentum",
        functools.partial(rivals.FlatModel, 10**6),
        MOMENTUM,
        {"allreduce": ">= 2.5", "async_sgd": ">= 0.35", **AS_BY_HAND},
    ),
    Work("1e7, momentum", functools.partial(rivals.FlatModel, 10**7), MOMENTUM, {"allreduce": ">= 2", **AS_BY_HAND}),
    Work("1e6, AdamW", functools.partial(rivals.FlatModel, 10**6), functools.partial(torch.optim.AdamW, lr=LR)),
    Work("1,000 tensors of 1,000, momentum", functools.partial(Tensors, 1000, 1000), MOMENTUM, {"allreduce": ">= 1.2"}),
    Work("CNN, momentum", Cnn, MOMENTUM, {"allreduce": ">= 1.05"}),
)
CNN = len(WORKS) - 1
STRATEGIES: dict[str, Callable[[], ps.Strategy]] = {
    "async_sgd": ps.async_sgd,
    "async_sgd plain": functools.partial(ps.async_sgd, "plain"),
    "sync_sgd": ps.sync_sgd,
    "allreduce": ps.allreduce,
    "hogwild": ps.hogwild,
    "local_sgd": ps.local_sgd,
}


def train(worker: ps.Worker, number: int, seconds: float) -> None:
    """Measure this worker's rate, and log it once."""
    model = WORKS[number].build()
    model, optimizer = worker.prepare(model, WORKS[number].optimizer(model.parameters()))
    worker.log(steps_per_s=rivals.steps_per_s(rivals.training_step(model, optimizer), seconds))


def ours(name: str, number: int, workers: int, seconds: float) -> float:
    run = ps.run(functools.partial(train, number=number, seconds=seconds), STRATEGIES[name](), workers=workers)
    return sum(entry.metrics["steps_per_s"] for entry in run.summary.logged if "steps_per_s" in entry.metrics)


def bare_pass(number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(_bare_pass, 1, number, seconds))


def moved(arrays: int, copies: int, processes: int, number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(functools.partial(_moved, arrays, copies), processes, number, seconds))


def ddp(number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(_ddp, workers, number, seconds))


def hogwild_by_hand(number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(functools.partial(_hogwild, False), workers, number, seconds))


def hogwild_checked(number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(functools.partial(_hogwild, True), workers, number, seconds))


def plain_loop(number: int, workers: int, seconds: float) -> float:
    return sum(rivals.together(_plain_loop, 1, number, seconds))


def _bare_pass(rank: int, processes: int, rendezvous: str, number: int, seconds: float) -> float:
    model = WORKS[number].build()
    optimizer = WORKS[number].optimizer(model.parameters())
    model().backward()
    return rivals.steps_per_s(optimizer.step, seconds)


def _moved(arrays: int, copies: int, rank: int, processes: int, rendezvous: str, number: int, seconds: float) -> float:
    """So many copies among so many arrays of the model's size, and one more that is read."""
    size = sum(one.numel() for one in WORKS[number].build().parameters())
    places = [torch.ones(size) for _ in range(arrays)]
    pairs = [(places[2 * one % arrays], places[(2 * one + 1) % arrays]) for one in range(copies)]

    def step() -> None:
        for read, written in pairs:
            written.copy_(read)
        places[-1].sum()

    return rivals.steps_per_s(step, seconds)


def _ddp(rank: int, processes: int, rendezvous: str, number: int, seconds: float) -> float:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=processes)
    model = nn.parallel.DistributedDataParallel(WORKS[number].build())
    optimizer = WORKS[number].optimizer(model.parameters())
    rate = rivals.lockstep_rate(rivals.training_step(model, optimizer), seconds)
    dist.barrier()  # nobody closes its connections while another still reads from them
    dist.destroy_process_group()
    return rate


def _hogwild(checked: bool, rank: int, processes: int, rendezvous: str, number: int, seconds: float) -> float:
    """`checked`: a step by a gradient that is not finite is left out, as plesio does."""
    model = WORKS[number].build()
    sizes = [one.numel() for one in model.parameters()]
    place = rendezvous.removeprefix("file://") + ".weights"
    *parts, there = torch.from_file(place, shared=True, size=sum(sizes) + processes).split([*sizes, processes])
    for one, part in zip(model.parameters(), parts, strict=True):
        part.copy_(one.detach().flatten())
        one.data = part.view_as(one)
    optimizer = WORKS[number].optimizer(model.parameters())
    there[rank] = 1
    while not there.all():  # alone each would have the caches to itself
        time.sleep(1e-3)
    step = _checked_step(model, optimizer) if checked else rivals.training_step(model, optimizer)
    return rivals.steps_per_s(step, seconds)


def _checked_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        if all(one.grad is None or one.grad.sum().isfinite() for one in parameters):
            optimizer.step()

    return step


def _plain_loop(rank: int, processes: int, rendezvous: str, number: int, seconds: float) -> float:
    torch.set_num_threads(torch.multiprocessing.cpu_count())
    model = WORKS[number].build()
    optimizer = WORKS[number].optimizer(model.parameters())
    return rivals.steps_per_s(rivals.training_step(model, optimizer), seconds)


NINE, FIFTEEN, CHECKED = "nine arrays moved", "fifteen arrays moved by each", "by hand, gradients checked"
LIMITS = (NINE, FIFTEEN, CHECKED)
RIVALS = {
    "bare pass": bare_pass,
    NINE: functools.partial(moved, 9, 4, 1),
    FIFTEEN: functools.partial(moved, 7, 7, 2),
    CHECKED: hogwild_checked,
    "DDP": ddp,
    "Hogwild! by hand": hogwild_by_hand,
    "plain loop": plain_loop,
}
AGAINST = [
    ("async_sgd", "bare pass"),
    ("async_sgd", NINE),
    ("async_sgd plain", "bare pass"),
    ("sync_sgd", "DDP"),
    ("allreduce", "DDP"),
    ("allreduce", FIFTEEN),
    ("hogwild", "Hogwild! by hand"),
    ("hogwild", CHECKED),
]


def raced(number: int, workers: int, against: Sequence[tuple[str, str]], options: argparse.Namespace) -> list[Row]:
    """The rows of one work: each strategy beside its rival, all of them in turn."""
    work, few = WORKS[number], f"{workers} worker{'s' if workers > 1 else ''}"
    tasks: dict[str, Callable[[], float]] = {}
    for name, rival in against:
        tasks[name] = functools.partial(ours, name, number, workers, options.seconds)
        tasks[rival] = functools.partial(RIVALS[rival], number, workers, options.seconds)
    rates = interleave(tasks, options.runs, f"{work.name}, {few}")
    rows = []
    for name, rival in against:
        target = ">= 0.95" if workers == 1 else work.wanted.get(name) if rival not in LIMITS else None
        measure = f"{work.name}, {few}: {name}"
        rows.append(row(measure, rates[name], "steps/s", against=rival, against_values=rates[rival], target=target))
    return rows


def main() -> None:
    arguments = parser(__doc__.partition("\n")[0])
    arguments.add_argument("--workers", type=whole, default=2, metavar="N", help="workers")
    arguments.add_argument("--seconds", type=float, default=1.5, metavar="S", help="span over which a worker counts")
    arguments.add_argument("--only", default="", metavar="WORK", help="the works whose names begin so, and no others")
    options = arguments.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, 0.5
    chosen = [number for number, work in enumerate(WORKS) if work.name.startswith(options.only)]
    rows = [one for number in chosen for one in raced(number, options.workers, AGAINST, options)]
    if CNN in chosen:
        rows += raced(CNN, 1, [(name, "plain loop") for name in STRATEGIES], options)
    report("what people use", rows, options.json, threads="1 a process; one worker, and the plain loop: all cores")


if __name__ == "__main__":
    main()
