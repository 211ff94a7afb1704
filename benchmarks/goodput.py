"""What failures leave of the machines' time, as in the paper of Decoupled DiLoCo (arXiv 2604.21428), and of the loss.

    python benchmarks/goodput.py --json FILE [--quick] [--only goodput]

Goodput, in virtual time: so many chips, each of which fails once a year, are shared among so many workers. A failure takes its
worker down for 19.5 s. Workers that all stop at each failure then have the paper's 58% and 40% on 1.2M and 2.4M chips (elastic
data parallelism). A step takes 1 s, give or take 10%.

"stepping" is the share of all workers' time in which they step. That is what the paper counts. "folded" is the share that got
into a version. A worker that dies loses what it had not sent. What is under way when the run ends, after 480 to 6,000 s, is
missing, too.

Loss: a GPT of 28,512 parameters (`transformer.py`) on 8 workers of 2.4M chips, at equal samples and at equal time, and without
failures. The figures are means of `--runs` seeds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import torch

import plesio as ps
import transformer
from _report import Row, meets, parser, progress, report, whole
from plesio.cluster import Cluster, Crash, Group, LogNormal, Restart, Timetable
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.strategy import Strategy

YEAR_S, DOWN_S, H = 365.25 * 24 * 3600.0, 19.5, 24
STEP = LogNormal(1.0, 0.1)
RECIPES: dict[str, Callable[..., Strategy]] = {
    "sync_sgd": ps.sync_sgd,
    "diloco(24)": partial(ps.diloco, H),
    "decoupled(24)": partial(ps.decoupled, H),
    "async_local_sgd(24)": partial(ps.async_local_sgd, H),
}
CHIPS, WORKERS = (150_000, 600_000, 1_200_000, 2_400_000), (8, 16, 64, 256, 1024)
PAPER = {(1_200_000, 8): 0.88, (1_200_000, 16): 0.93, (2_400_000, 8): 0.80, (2_400_000, 16): 0.86}
"""Its goodput with as many learners; with one, 0.40 on 2.4M chips, and 0.18 where that is not elastic."""


@cache
def failing(chips: int, workers: int, seconds: float, seed: int = 1) -> Cluster:
    """Each worker fails once a year for each of its chips."""
    faults: list[Any] = []
    for worker in range(workers):
        rng = random.Random(f"{seed} {chips} {workers} {worker}")
        at_s = rng.expovariate(chips / workers / YEAR_S)
        while at_s < seconds:
            faults += [Crash(worker=worker, at_s=at_s), Restart(worker=worker, at_s=at_s + DOWN_S)]
            at_s += DOWN_S + rng.expovariate(chips / workers / YEAR_S)
    return Cluster((Group(workers, STEP),), faults=tuple(faults))


class Watched(TimedWorker):
    """Adds up the time in which it steps, until it dies or the run ends."""

    stepped_s = 0.0

    def __init__(self, timetable: Timetable, strategy: Strategy, deaths_s: list[float], end_s: float) -> None:
        super().__init__(timetable, strategy, goes_on=strategy.goes_on(away=False))
        self._draw_s, self._step_s = timetable.step_s, self._stepped
        self._deaths_s, self._end_s = deaths_s, end_s

    def begin(self, incarnation: int) -> None:
        super().begin(incarnation)
        self._dies_s = [*self._deaths_s, self._end_s][incarnation - 1]

    def _stepped(self, now_s: float) -> float:
        step_s = self._draw_s(now_s)
        until_s = min(now_s + step_s, self._dies_s, self._end_s)
        self.stepped_s += max(0.0, until_s - now_s)
        return step_s


def goodput(strategy: Strategy, chips: int, workers: int, seconds: float) -> tuple[float, float]:
    """The shares of all workers' time in which they step, and whose steps are in a version."""
    cluster = failing(chips, workers, seconds)
    deaths: dict[int, list[float]] = {worker: [] for worker in range(workers)}
    for one in cluster.turns():
        if isinstance(one, Crash):
            deaths[one.worker].append(one.at_s)
    crew = [Watched(one, strategy, deaths[rank], seconds) for rank, one in enumerate(cluster.timetables(1))]
    run = VirtualRun(strategy, cluster, crew, limits={"seconds": seconds}, timeline=False)
    steps, whole_s = run.run().steps, workers * seconds
    return sum(one.stepped_s for one in crew) / whole_s, steps * statistics.fmean(drawn_s()) / whole_s


@cache
def drawn_s() -> list[float]:
    step_s = Timetable(STEP.draws(1, random.Random(1))).step_s
    return [step_s(0.0) for _ in range(100_000)]


def goodputs(quick: bool) -> list[Row]:
    rows = []
    for chips in CHIPS[-1:] if quick else CHIPS:
        for workers in WORKERS[:2] if quick else WORKERS:
            seconds = 300.0 if quick else max(480.0, min(6000.0, 60_000 / workers))
            learners = PAPER.get((chips, workers))
            for name, make in RECIPES.items():
                stepping, folded = goodput(make(), chips, workers, seconds)
                where = f"{chips / 1e6:g}M chips, {workers} workers, {name}"
                progress.print(f"{where}: stepping {stepping:.3f}, folded {folded:.3f}")
                rival = f"the paper's, M={workers}" if learners else None
                ratio = stepping / learners if learners else None
                target = f">= {(learners - 0.05) / learners:.3f}" if learners and name.startswith("decoupled") else None
                met = meets(ratio, target) if ratio and target else None
                rows.append(Row(f"{where}: stepping", stepping, "share", rival, learners, ratio, target, met, 1))
                rows.append(Row(f"{where}: folded", folded, "share", None, None, None, None, None, 1))
    return rows


# What it makes of the loss


Job = tuple[str, int, int, bool]
"""Recipe, batches, seed, and whether workers fail."""


def trained(job: Job) -> tuple[float, float]:
    """Nats a character on held-out text, and the virtual seconds."""
    name, batches, seed, fails = job
    torch.set_num_threads(1)
    horizon_s = 20.0 * batches / 8
    cluster = failing(CHIPS[-1], 8, horizon_s, seed) if fails else Cluster((Group(8, STEP),))
    work = partial(transformer.train, batches=batches, warm_up=transformer.WARM_UP, seed=seed)
    run = ps.run(work, RECIPES[name](), workers=8, engine=ps.Simulated(cluster), seed=seed)
    model = transformer.Transformer()
    model.load_state_dict(run.state_dict)
    with torch.no_grad():
        places = torch.arange(transformer.SPLIT, len(transformer.TEXT) - transformer.LENGTH - 1, transformer.LENGTH)
        loss = transformer.loss_of(model.eval(), places).item()
    progress.print(
        f"{name}, {batches} batches, seed {seed}, failures {fails}: {loss:.4f} in {run.summary.wall_s:.0f} s"
    )
    return loss, run.summary.wall_s


def losses(quick: bool, runs: int, jobs: int) -> list[Row]:
    """Of each recipe against `diloco`. At equal time each trains as many batches, with its cosine over these, as it can until the
    first has trained all."""
    batches, seeds, rows = 240 if quick else 3200, range(1 if quick else runs), []

    def means(todo: dict[tuple[str, bool], int]) -> dict[tuple[str, bool], tuple[float, float]]:
        """The loss and the time, by recipe and whether workers fail, of so many batches."""
        every = [(name, many, seed, fails) for (name, fails), many in todo.items() for seed in seeds]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            ran = dict(zip(every, pool.map(trained, every), strict=True))
        each = {(name, fails): [ran[name, many, seed, fails] for seed in seeds] for (name, fails), many in todo.items()}
        return {
            key: (statistics.fmean(loss for loss, _ in one), statistics.fmean(time_s for _, time_s in one))
            for key, one in each.items()
        }

    def row(name: str, words: str, value: float, rival: float, unit: str = "nats", target: str | None = None) -> Row:
        met = meets(value / rival, target) if target else None
        return Row(f"{name}, {words}", value, unit, "diloco(24)", rival, value / rival, target, met, len(seeds))

    target = {"decoupled(24)": "<= 1.01"}
    found = means({(name, fails): batches for fails in (False, True) for name in RECIPES})
    for (name, fails), (loss, took_s) in found.items():
        words, (rival, rival_s) = "2.4M chips" if fails else "no failures", found["diloco(24)", fails]
        rows.append(row(name, f"{words}, equal samples", loss, rival, target=None if fails else target.get(name)))
        rows.append(row(name, f"{words}, time", took_s, rival_s, "s"))
    first_s = min(took_s for (_, fails), (_, took_s) in found.items() if fails)
    equal = means({(name, True): round(batches * first_s / found[name, True][1]) for name in RECIPES})
    rival = equal["diloco(24)", True][0]
    return rows + [row(name, "2.4M chips, equal time", loss, rival) for (name, _), (loss, _) in equal.items()]


if __name__ == "__main__":
    made = parser(__doc__ or "", runs=3)
    made.add_argument("--only", choices=("goodput", "loss"))
    made.add_argument("--jobs", type=whole, default=os.cpu_count(), metavar="N", help="how many runs train at once")
    given: argparse.Namespace = made.parse_args()
    parts = {"goodput": lambda: goodputs(given.quick), "loss": lambda: losses(given.quick, given.runs, given.jobs)}
    found = [row for name, part in parts.items() if given.only in (None, name) for row in part()]
    report("goodput and loss under failures", found, given.json)
