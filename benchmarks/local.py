"""Local steps, outer optimizers, codecs and late answers on a character model: what talking less costs.

    python benchmarks/local.py --json local.json
    python benchmarks/local.py --only momentum

examples/charlm.py on 4 simulated workers, at equal samples; the loss is that on held-out text, in nats a character, and the
mean of the seeds. Virtual seconds are for a step of .1 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import plesio as ps
from _report import Row, meets, parser, progress, report
from plesio.cluster import Cluster, Crash, Restart
from plesio.cluster.description import Group
from plesio.cluster.machines import Link
from plesio.cluster.steps import Constant
from plesio.strategy import Strategy
from plesio.strategy.answers import Delta, Outer, TopK

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import charlm

WORKERS, H, STEP_S = 4, 10, 0.1
STEADY = Cluster((Group(WORKERS, Constant(STEP_S)),))
UNEVEN = Cluster((Group(2, Constant(0.1)), Group(1, Constant(0.2)), Group(1, Constant(0.4))))
"""Speeds 1/1/2/4."""
CHURN_S = 600.0
CHOICES = "averaging", "packed", "churn", "overlap", "fragments", "momentum"
MOMENTA, ROUNDS = (0.0, 0.3, 0.6, 0.9), (20, 60, 120, 240, 480)


OPTIMIZERS = {
    "AdamW": partial(torch.optim.AdamW, lr=3e-3),
    "SGD": partial(torch.optim.SGD, lr=0.3, momentum=0.9),
}


def train_unleased(worker: ps.Worker, steps: int, optimizer: str) -> None:
    """charlm.train with `steps` steps a worker: requests for data would wait for the link, too, and answers be less late."""
    torch.manual_seed(worker.seed)
    model = charlm.build()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    model, stepper, scheduler = worker.prepare(model, stepper, scheduler)
    source = charlm.text(held_out=False)
    for step in range(worker.rank, steps * worker.workers, worker.workers):
        draw = torch.Generator().manual_seed(worker.seed * 1_000_003 + step)
        places = torch.randint(len(source) - charlm.CONTEXT, (charlm.BATCH,), generator=draw)
        inputs, following = charlm.windows(source, places)
        stepper.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), following).backward()
        worker.count(samples=charlm.BATCH)
        stepper.step()
        scheduler.step()


class Trained:
    """Runs, each once: by strategy, steps, seed, and what else there is."""

    def __init__(self) -> None:
        self._runs: dict[Any, tuple[float, float, float]] = {}

    def __call__(
        self,
        strategy: Strategy,
        steps: int,
        seed: int,
        cluster: Cluster = STEADY,
        warm: str | None = None,
        unleased: str = "",
    ) -> tuple[float, float, float]:
        """The loss, megabytes, and virtual seconds; `unleased`: with this optimizer."""
        key = (strategy, steps, seed, id(cluster), warm, unleased)
        if key not in self._runs:
            given = argparse.Namespace(steps=steps, lr=1e-3 if warm else 3e-3, warm=warm)
            train = partial(charlm.train, given=given)
            if unleased:
                train = partial(train_unleased, steps=steps // WORKERS, optimizer=unleased)
            run = ps.run(train, strategy, workers=WORKERS, seed=seed, engine=ps.Simulated(cluster))
            model = charlm.build()
            model.load_state_dict(run.state_dict)
            loss = charlm.evaluate(model)["loss"]
            self._runs[key] = loss, run.summary.bytes / 1e6, run.summary.wall_s
            progress.print(f"{strategy.name}, {steps} steps, seed {seed}{', warm' if warm else ''}: {loss:.4f}")
        return self._runs[key]

    def mean(self, strategy: Strategy, steps: int, seeds: range, **more: Any) -> tuple[float, float, float]:
        every = [self(strategy, steps, seed, **more) for seed in seeds]
        loss, megabytes, seconds = (statistics.fmean(one) for one in zip(*every, strict=True))
        return loss, megabytes, seconds


def against(name: str, one: float, other: float, rival: str, target: str | None, runs: int, unit: str = "nats") -> Row:
    """A row whose ratio is of means."""
    ratio = one / other
    return Row(name, one, unit, rival, other, ratio, target, None if target is None else meets(ratio, target), runs)


def warm_weights(trained: Trained, folder: str, steps: int) -> str:
    """Of a model that was trained in lock step before."""
    train = partial(charlm.train, given=argparse.Namespace(steps=steps, lr=3e-3, warm=None))
    run = ps.run(train, ps.sync_sgd(), workers=WORKERS, seed=99, engine=ps.Simulated(STEADY))
    path = f"{folder}/warm.safetensors"
    save_file(dict(run.state_dict), path)
    return path


def averaging(trained: Trained, steps: int, seeds: range) -> list[Row]:
    """Local SGD, and its asynchronous form, against averaging every step."""
    every, bytes_every, _ = trained.mean(ps.local_sgd(1), steps, seeds)
    rows = [against("sync_sgd", trained.mean(ps.sync_sgd(), steps, seeds)[0], every, "local_sgd(1)", None, len(seeds))]
    for h in (10, 20):
        loss, megabytes, _ = trained.mean(ps.local_sgd(h), steps, seeds)
        rows.append(against(f"local_sgd({h})", loss, every, "local_sgd(1)", "<= 1.01", len(seeds)))
        rows.append(
            against(
                f"local_sgd({h}), bytes", megabytes, bytes_every, "local_sgd(1)", f"<= {1.02 / h:.3f}", len(seeds), "MB"
            )
        )
    lock, _, lock_s = trained.mean(ps.local_sgd(20), steps, seeds, cluster=UNEVEN)
    loss, _, seconds = trained.mean(ps.async_local_sgd(20), steps, seeds, cluster=UNEVEN)
    rows.append(against("async_local_sgd(20), uneven", loss, lock, "local_sgd(20)", "<= 1.01", len(seeds)))
    rows.append(
        against("async_local_sgd(20), uneven, time", seconds, lock_s, "local_sgd(20)", "<= 0.4", len(seeds), "s")
    )
    nesterov = Strategy(
        name="Nesterov on every push",
        every=ps.Steps(20),
        send=ps.async_local_sgd().send,
        outer=Outer("SGD", lr=0.7, momentum=0.9, nesterov=True),
    )
    for other, target in ((nesterov, ">= 1.2"), (ps.async_local_sgd(20, "delayed_nesterov"), None)):
        loss, *_ = trained.mean(other, steps, seeds, cluster=UNEVEN)
        rows.append(against(f"{other.name}, uneven", loss, lock, "local_sgd(20)", target, len(seeds)))
    return rows


def packed(trained: Trained, steps: int, seeds: range) -> list[Row]:
    """Deltas and answers that are packed (top-k: deltas), with error feedback and without."""
    rows, count = [], len(seeds)
    plain, *_ = trained.mean(ps.local_sgd(H), steps, seeds)
    outer, *_ = trained.mean(ps.diloco(H), steps, seeds)
    for codec in ("bf16", "int8", "int4"):
        loss, *_ = trained.mean(ps.local_sgd(H, codec=codec), steps, seeds)
        rows.append(against(f"local_sgd({H}), {codec}", loss, plain, "local_sgd(10)", "<= 1.005", count))
        loss, *_ = trained.mean(ps.diloco(H, codec=codec), steps, seeds)
        rows.append(against(f"diloco({H}), {codec}", loss, outer, "diloco(10)", "<= 1.015", count))
    for part, feedback, target in (
        (0.1, True, "<= 1.025"),
        (0.1, False, ">= 1.05"),
        (0.01, True, None),
        (0.01, False, None),
    ):
        strategy = ps.local_sgd(H, codec=TopK(part))
        strategy = dataclasses.replace(strategy, send=Delta(TopK(part), feedback=feedback))
        loss, *_ = trained.mean(strategy, steps, seeds)
        name = f"local_sgd({H}), {strategy.send.codec}{'' if feedback else ', no feedback'}"
        rows.append(against(name, loss, plain, "local_sgd(10)", target, count))
    _, every, _ = trained.mean(ps.local_sgd(1), steps, seeds)
    for codec in (None, "int4"):
        _, megabytes, _ = trained.mean(ps.local_sgd(50, codec=codec), steps, seeds)
        name, bar = f"local_sgd(1), bytes, to those of local_sgd(50), {codec}", ">= 380" if codec else None
        rows.append(against(name, every, megabytes, "local_sgd(50)", bar, count, "MB"))
    return rows


def churned(seconds: float) -> Cluster:
    """`STEADY`, where every 5 s some worker is killed, and is back a second later."""
    chance, faults = random.Random(0), []
    for at in range(5, int(seconds), 5):
        worker = chance.randrange(WORKERS)
        faults += [Crash(worker=worker, at_s=float(at)), Restart(worker=worker, at_s=at + 1.0)]
    return Cluster(STEADY.groups, faults=tuple(faults))


def churn(trained: Trained, seconds: float, seeds: range) -> list[Row]:
    """A death every 5 s, for ten minutes: who dies loses its optimizer's state, and what packing left out."""
    rows, steps, cluster = [], int(seconds / 0.1) * WORKERS, churned(seconds)
    deaths, codec = f"{len(cluster.faults) // 2} deaths", TopK(0.1)
    for plain, packed, target in (
        (ps.diloco(H), ps.diloco(H, codec="int4"), "<= 1.005"),
        (ps.async_local_sgd(H), ps.async_local_sgd(H, codec="int4"), "<= 1.005"),
        (ps.local_sgd(H), ps.local_sgd(H, codec=codec), "<= 1.025"),
    ):
        steady, *_ = trained.mean(packed, steps, seeds)
        loss, *_ = trained.mean(packed, steps, seeds, cluster=cluster)
        unpacked, *_ = trained.mean(plain, steps, seeds, cluster=cluster)
        rows.append(against(f"{packed.name}, {deaths}", loss, unpacked, f"{plain.name}, as many", target, len(seeds)))
        rows.append(against(f"{packed.name}, {deaths}", loss, steady, "without deaths", None, len(seeds)))
    return rows


def momentum(trained: Trained, rounds: tuple[int, ...], seeds: range, warm: str) -> list[Row]:
    """Outer Nesterov, lr .7, by momentum and rounds of H = 10, against plain averaging."""
    rows = []
    cases: list[tuple[str, int, str | None]] = [(f"{one} rounds", one, None) for one in rounds]
    for name, count, start in [*cases, (f"{rounds[0]} rounds, warm", rounds[0], warm)]:
        steps = count * H * WORKERS
        plain, *_ = trained.mean(ps.local_sgd(H), steps, seeds, warm=start)
        for one in MOMENTA:
            strategy = ps.diloco(H, momentum=one)
            bar = "<= 0.98" if strategy == ps.diloco(H) and count == 240 else None
            loss, *_ = trained.mean(strategy, steps, seeds, warm=start)
            rows.append(
                against(
                    f"momentum {one:g}, {name}", loss, plain, "local_sgd(10)", "<= 0.98" if bar else None, len(seeds)
                )
            )
    return rows


@functools.cache
def linked(near: int, late: int) -> Cluster:
    """All but `near` workers are so far away that an answer is there at the end of their step `late` after they sent."""
    link = Link(latency_s=(late - 0.5) * STEP_S / 2)
    groups = Group(near, Constant(STEP_S)) if near else None, Group(WORKERS - near, Constant(STEP_S), link)
    return Cluster(tuple(one for one in groups if one is not None))


def overlapped(trained: Trained, steps: int, seeds: range) -> list[Row]:
    """Workers that go on while their answers travel, against workers that wait. Where nobody waits for a round half of them are
    far away; else all are."""
    half, rows = WORKERS // 2, []
    spans = [(ps.local_sgd, 0, h) for h in (10, 20, 50)] + [(ps.diloco, 0, h) for h in (10, 20)]
    spans += [(ps.async_local_sgd, half, h) for h in (10, 20, 50)]
    cases = [
        (recipe(h, overlap=False), recipe(h), linked(near, late), "AdamW", words, target)
        for recipe, near, h in spans
        for late, words, target in (
            (1, "1 step", "<= 1.005"),
            (h // 4, "a quarter of H", "<= 1.005"),
            (h // 2, "half of H", "<= 1.01"),
        )
    ]
    cases += [(ps.async_sgd(), ps.async_sgd(ahead=1), linked(half, 1), one, "1 step", None) for one in OPTIMIZERS]
    for waits, goes, cluster, optimizer, words, target in cases:
        loss, _, seconds = trained.mean(goes, steps, seeds, cluster=cluster, unleased=optimizer)
        waited, _, waited_s = trained.mean(waits, steps, seeds, cluster=cluster, unleased=optimizer)
        name, count = f"{goes.name}, {optimizer}, answers {words} late", len(seeds)
        rows.append(against(name, loss, waited, waits.name, target, count))
        rows.append(against(f"{name}, time", seconds, waited_s, waits.name, None, count, "s"))
    return rows


def fragmented(trained: Trained, steps: int, seeds: range) -> list[Row]:
    """The model in parts, one of them in each exchange, against the whole model as often as each part."""
    rows = []
    for recipe in (ps.local_sgd, ps.diloco, ps.async_local_sgd):
        whole, *_ = trained.mean(recipe(20), steps, seeds)
        for fragments in (2, 4):
            strategy = recipe(20, fragments=fragments)
            loss, *_ = trained.mean(strategy, steps, seeds)
            rows.append(against(strategy.name, loss, whole, recipe(20).name, None, len(seeds)))
    return rows


def main() -> None:
    """All, or one part."""
    given = parser("Local steps on a character model.", runs=3)
    given.add_argument("--only", choices=CHOICES, help="one part")
    arguments = given.parse_args()
    torch.set_num_threads(1)
    seeds = range(1 if arguments.quick else arguments.runs)
    steps, rounds = (80, (2,)) if arguments.quick else (2400, ROUNDS)
    trained, rows = Trained(), []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "averaging"):
            rows += averaging(trained, steps, seeds)
        if arguments.only in (None, "packed"):
            rows += packed(trained, steps, seeds)
        if arguments.only in (None, "churn"):
            rows += churn(trained, 10.0 if arguments.quick else CHURN_S, seeds)
        if arguments.only in (None, "overlap"):
            rows += overlapped(trained, steps, seeds)
        if arguments.only in (None, "fragments"):
            rows += fragmented(trained, steps, seeds)
        if arguments.only in (None, "momentum"):
            rows += momentum(trained, rounds, seeds, warm_weights(trained, folder, 4 * steps))
    report("Local steps on a character model", rows, arguments.json)


if __name__ == "__main__":
    main()
