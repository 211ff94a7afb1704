"""Does a learning rate tuned for `sync_sgd` survive going asynchronous?

    python benchmarks/convergence.py --json convergence.json
    python benchmarks/convergence.py --engine local        # real processes: not the same twice, several times as long

An MLP is trained on scikit-learn's digits, each run for the same number of epochs, so on equal samples. Gradients are real;
the workers are simulated by default (`--cluster`, uniform), so that who is how stale does not depend on how busy this
machine is, and anybody gets the same numbers. For each optimizer and number of workers the learning rate is tuned for
`sync_sgd`, on seeds of its own; nothing is retuned after that. Held against `sync_sgd` at that rate are `async_sgd()` and
plain asynchronous SGD, at that rate and at twice it, and for information the other strategies at 4 workers. A seed draws
the split into training and test set, the initial weights and the order of the data. The results are kept in
docs/convergence.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from _report import Row, parser, progress, report
from plesio.config.simulated import Simulated

TRAINING = 1024
"""Images trained on; the other 773 are the test set. 128 batches share out evenly: else, at the end, a barrier would step
at the full learning rate on the batches of the few workers that have some left."""
BATCH = 8
"""Images a worker computes a gradient from; `sync_sgd` on N workers steps on 8 N."""
NEAR_POINTS = 0.5
"""How far below the synchronous accuracy is still as good."""
DIVERGED_POINTS = 10.0
"""How far below the synchronous accuracy no longer counts as trained."""

ENGINE: list[str | Simulated] = ["local"]
"""Where runs take place."""

Data = tuple[torch.Tensor, torch.Tensor]
Split = tuple[Data, Data]
Build = Callable[[nn.Module, float], torch.optim.Optimizer]


def sgd(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """SGD with momentum .9."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW as torch sets it."""
    return torch.optim.AdamW(model.parameters(), lr=lr)


@dataclass(frozen=True, slots=True)
class Setting:
    """One optimizer on one number of workers, and the learning rates tried for it."""

    optimizer: str
    build: Build
    workers: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What runs under one strategy came to, a number for each seed: test accuracy in %, mean staleness in versions."""

    accuracy: tuple[float, ...]
    staleness: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean test accuracy, %."""
        return statistics.fmean(self.accuracy)

    @property
    def worst(self) -> float:
        """The lowest test accuracy, %."""
        return min(self.accuracy)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f" ({self.worst:.1f})" if self.mean - self.worst > 1.0 else "")


@dataclass(frozen=True, slots=True)
class Size:
    """How much to run."""

    epochs: int
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    settings: tuple[Setting, ...]


def full(runs: int) -> Size:
    """The run that results are quoted from."""
    sgd_rates, adamw_rates = (0.1, 0.2, 0.4, 0.8), (0.01, 0.02, 0.04, 0.08)
    workers = (4, 8, 16)
    return Size(
        epochs=40,
        seeds=tuple(range(1, 1 + runs)),
        tuning_seeds=(1001, 1002, 1003),
        settings=tuple(
            Setting(name, build, n, rates)
            for name, build, rates in (("SGD momentum .9", sgd, sgd_rates), ("AdamW", adamw, adamw_rates))
            for n in workers
        ),
    )


def quick() -> Size:
    """A smoke run: four workers, one seed, a few epochs, the rate as given."""
    settings = (Setting("SGD momentum .9", sgd, 4, (0.2,)), Setting("AdamW", adamw, 4, (0.02,)))
    return Size(epochs=8, seeds=(1,), tuning_seeds=(1001,), settings=settings)


def split(seed: int) -> Split:
    """The digits, shuffled under `seed`: (training images, labels), (test images, labels)."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, classes = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    return (images[:TRAINING], classes[:TRAINING]), (images[TRAINING:], classes[TRAINING:])


def mlp() -> nn.Module:
    """64 pixels, 64 hidden units, 10 classes."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(data: Data, build: Build, lr: float, epochs: int, worker: ps.Worker) -> None:
    """An ordinary loop over the worker's share of the data."""
    torch.manual_seed(worker.seed)
    model = mlp()
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, build(model, lr), loader)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()


def accuracy(weights: dict[str, torch.Tensor], test: Data) -> float:
    """Share of the test images that a model with these weights gets right, %."""
    model = mlp()
    model.load_state_dict(weights)
    images, labels = test
    with torch.no_grad():
        return 100.0 * float((model(images).argmax(1) == labels).float().mean())


def outcome(setting: Setting, strategy: ps.Strategy, lr: float, seeds: Sequence[int], epochs: int) -> Outcome:
    """Train once for each seed."""
    results: list[float] = []
    staleness: list[float] = []
    for seed in seeds:
        training, test = split(seed)
        loop = partial(train, training, setting.build, lr, epochs)
        run = ps.run(loop, strategy, workers=setting.workers, seed=seed, engine=ENGINE[0])
        results.append(accuracy(run.state_dict, test))
        staleness.append(run.summary.staleness.mean)
    result = Outcome(tuple(results), tuple(staleness))
    progress.print(f"{setting.optimizer}, N={setting.workers}, lr {lr:g}, {strategy.name}: {result}")
    return result


@dataclass(frozen=True, slots=True)
class Tuned:
    """The learning rate that suits `sync_sgd` best, and what every rate came to."""

    lr: float
    tried: dict[float, Outcome]


def tune(setting: Setting, size: Size) -> Tuned:
    """Try every learning rate under `sync_sgd`."""
    if len(setting.rates) == 1:
        return Tuned(setting.rates[0], {})
    tried = {lr: outcome(setting, ps.sync_sgd(), lr, size.tuning_seeds, size.epochs) for lr in setting.rates}
    return Tuned(max(tried, key=lambda lr: tried[lr].mean), tried)


def label(setting: Setting, strategy: str, times: int) -> str:
    """A row's measure."""
    return f"{strategy}, {setting.optimizer}, N={setting.workers}, lr x{times}: test accuracy"


def verdict(name: str, times: int, result: Outcome, sync: Outcome) -> tuple[str | None, bool | None]:
    """The target of a row and whether it is met; only the default has one."""
    if name != "async_sgd":
        return None, None
    if times == 1:
        return f"within {NEAR_POINTS:g} points", result.mean >= sync.mean - NEAR_POINTS
    return "no seed diverges", result.worst >= sync.mean - DIVERGED_POINTS


def row(setting: Setting, name: str, times: int, result: Outcome, sync: Outcome, judged: bool) -> Row:
    """The mean over the seeds against that of `sync_sgd` at the tuned rate."""
    target, met = verdict(name, times, result, sync) if judged else (None, None)
    return Row(
        measure=label(setting, name, times),
        value=round(result.mean, 2),
        unit="%",
        against="sync_sgd, lr x1",
        against_value=round(sync.mean, 2),
        ratio=result.mean / sync.mean,
        target=target,
        met=met,
        runs=len(result.accuracy),
    )


def others() -> Iterator[ps.Strategy]:
    """What is shown for information."""
    yield ps.async_sgd("delay_compensated")
    yield ps.async_sgd("gap_aware")
    yield ps.bounded_staleness(4)
    yield ps.buffered(2)
    yield ps.rennala(2)
    yield ps.ringmaster(8)
    yield ps.first_of(3)
    yield ps.quorum(3)
    yield ps.local_sgd(16)
    yield ps.hogwild()


def markdown(*headings: str) -> Table:
    """A table that a page of docs takes as it is printed."""
    result = Table(box=MARKDOWN)
    for heading in headings:
        result.add_column(heading, no_wrap=True)
    return result


class Tables:
    """What is printed besides the rows."""

    def __init__(self) -> None:
        self.tuning = markdown("optimizer", "N", "sync_sgd at each learning rate tried", "tuned")
        self.main = markdown(
            "optimizer", "N", "lr", "sync_sgd", "async_sgd()", "points", 'async_sgd("plain")', "staleness", "met"
        )
        self.others = markdown("strategy, N=4", "SGD momentum .9", "AdamW")

    def print(self) -> None:
        """All of them, with what the numbers are."""
        console = Console(width=200, highlight=False)
        console.print("Mean test accuracy over the seeds, %; in brackets the worst seed where it is far below.")
        for table in (self.tuning, self.main, self.others):
            console.print(table)


def compare(setting: Setting, tuned: Tuned, against: Outcome, size: Size, tables: Tables, judged: bool) -> list[Row]:
    """Async and plain at the tuned rate and at twice it, `against` being sync at the tuned one."""
    rows: list[Row] = []
    for times in (1, 2):
        lr = tuned.lr * times
        go = partial(outcome, setting, lr=lr, seeds=size.seeds, epochs=size.epochs)
        sync = against if times == 1 else go(ps.sync_sgd())
        default, plain = go(ps.async_sgd()), go(ps.async_sgd("plain"))
        results = {"sync_sgd": sync, "async_sgd": default, "async_sgd(plain)": plain}
        new = [row(setting, name, times, one, against, judged) for name, one in results.items()]
        rows += new if times > 1 else new[1:]
        points = f"{default.mean - against.mean:+.2f}"
        stale = f"{statistics.fmean(default.staleness):.1f}"
        met = {None: "", True: "yes", False: "no"}[new[1].met]
        cells = (f"{lr:g} (x{times})", str(sync), str(default), points, str(plain), stale, met)
        tables.main.add_row(setting.optimizer, str(setting.workers), *cells)
    return rows


def inform(tuned: dict[Setting, Tuned], sync: dict[Setting, Outcome], size: Size, tables: Tables) -> list[Row]:
    """The other strategies, at the rate tuned for `sync_sgd` on as many workers."""
    rows: list[Row] = []
    for strategy in others():
        results = {one: outcome(one, strategy, tuned[one].lr, size.seeds, size.epochs) for one in tuned}
        rows += [row(one, strategy.name, 1, result, sync[one], False) for one, result in results.items()]
        tables.others.add_row(strategy.name, *(str(result) for result in results.values()))
    return rows


def main() -> None:
    """Tune, compare, report."""
    options = parser("Accuracy of asynchronous training at learning rates tuned for sync_sgd.", runs=5)
    options.add_argument("--engine", choices=("simulated", "local"), default="simulated", help="where runs take place")
    options.add_argument("--cluster", default="uniform", metavar="NAME", help="the simulated machines (a preset)")
    arguments = options.parse_args()
    ENGINE[0] = Simulated(arguments.cluster) if arguments.engine == "simulated" else "local"
    torch.set_num_threads(1)
    size = quick() if arguments.quick else full(arguments.runs)
    tables = Tables()
    rates: dict[Setting, Tuned] = {}
    sync: dict[Setting, Outcome] = {}
    rows: list[Row] = []
    for setting in size.settings:
        tuned = rates[setting] = tune(setting, size)
        sync[setting] = outcome(setting, ps.sync_sgd(), tuned.lr, size.seeds, size.epochs)
        tried = ", ".join(f"{lr:g}: {one}" for lr, one in tuned.tried.items())
        tables.tuning.add_row(setting.optimizer, str(setting.workers), tried or "not tuned", f"{tuned.lr:g}")
        rows += compare(setting, tuned, sync[setting], size, tables, judged=not arguments.quick)
    rows += inform({one: tuned for one, tuned in rates.items() if one.workers == 4}, sync, size, tables)
    tables.print()
    title = f"Digits, MLP 64-64-10, {size.epochs} epochs of {TRAINING} images, batch {BATCH} a worker"
    where = f"simulated workers ({arguments.cluster})" if arguments.engine == "simulated" else "real processes"
    report(f"{title}, {len(size.seeds)} seeds, {where}", rows, arguments.json)


if __name__ == "__main__":
    main()
