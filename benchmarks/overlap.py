"""Workers that train on while their answers travel: the share of the ideal, in virtual time, beside the same that wait.

    python benchmarks/overlap.py --json overlap.json

Half of 8 workers are 40 ms away (`cross-region`), steps take 20 ms, give or take 10%. They share a loader, so they fetch data,
too, and a run ends when there are none left. Then two workers behind 100 Mbit/s and 40 ms there and back, as in `bandwidth.py`,
which compute nothing here: 1e7 parameters, 90 ms a step. An exchange takes 0.96 s of the 1.8 s of 20 steps. At last the times of
12 short epochs, where one of 8 workers is 100 ms away.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from _report import Row, meets, parser, progress, report
from plesio.cluster import Cluster, Constant, Group, Link, LogNormal
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.observe.summary import Summary
from plesio.tensors.codecs import share_of

WORKERS, STEP_S, IDEAL = 8, 0.02, "always computing"
RATE, LATENCY_S, PARAMETERS, LARGE_STEP_S = 12.5e6, 0.02, 10_000_000, 0.09
FAR_S, EPOCH, EPOCHS = 0.1, 90, 12
RECIPES = {
    "async_local_sgd(16)": partial(ps.async_local_sgd, 16),
    "local_sgd(16)": partial(ps.local_sgd, 16),
    "diloco(16)": partial(ps.diloco, 16),
}
LARGE = {  # and with 4 bits
    "local_sgd(20)": partial(ps.local_sgd, 20),
    "local_sgd(20), 4 parts": partial(ps.local_sgd, 20, fragments=4),
    "local_sgd(50)": partial(ps.local_sgd, 50),
}
BARS = {"local_sgd(50)": ">= 0.97"}
WAYS = {"waiting": False, "going on": True}


def train(worker: ps.Worker, batches: int, epochs: int = 1) -> None:
    """A loop that shares a loader."""
    model = torch.nn.Linear(4, 2)
    data = DataLoader(TensorDataset(torch.randn(batches, 4), torch.randint(2, (batches,))), batch_size=1)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def simulated(strategy: ps.Strategy, cluster: Cluster, batches: int, epochs: int = 1) -> Summary:
    """What such a loop costs on these machines."""
    function = partial(train, batches=batches, epochs=epochs)
    return ps.run(function, strategy, workers=WORKERS, engine=ps.Simulated(cluster), progress=False).summary


def behind_slow_links(strategy: ps.Strategy, seconds: float) -> tuple[float, float]:
    """Steps a second, and those of workers that always compute."""
    cluster = Cluster((Group(2, Constant(LARGE_STEP_S), Link(LATENCY_S, RATE)),))
    nbytes = round(4 * PARAMETERS * share_of(strategy.send.codec) / strategy.send.fragments)
    workers = [TimedWorker(one, strategy, goes_on=strategy.goes_on(away=True)) for one in cluster.timetables(0)]
    run = VirtualRun(strategy, cluster, workers, push_nbytes=nbytes, answer_nbytes=nbytes, limits={"seconds": seconds})
    return run.run().steps / seconds, 2 / LARGE_STEP_S


def share(measure: str, steps_per_s: float, ideal: float, target: str | None) -> Row:
    """A row whose ratio is the share of the ideal."""
    ratio = steps_per_s / ideal
    progress.print(f"{measure}: {ratio:.3f}")
    return Row(
        measure, steps_per_s, "steps/s", IDEAL, ideal, ratio, target, meets(ratio, target) if target else None, 1
    )


def rows(quick: bool) -> list[Row]:
    """Each recipe, waiting and going on."""
    found = []
    batches, seconds = (800, 60.0) if quick else (20_000, 1800.0)
    for name, make in RECIPES.items():
        for way, overlap in WAYS.items():
            run = simulated(make(overlap=overlap), Cluster.preset("cross-region", WORKERS, STEP_S), batches)
            measure, bar = f"cross-region: {name}, {way}", ">= 0.97" if overlap else None
            found.append(share(measure, run.steps_per_s, run.steps_per_s / run.ideal_share, bar))
    for name, make in LARGE.items():
        for way, overlap in WAYS.items():
            measure, bar = f"100 Mbit/s: {name}, 4-bit, {way}", BARS.get(name, ">= 0.95") if overlap else None
            found.append(share(measure, *behind_slow_links(make(codec="int4", overlap=overlap), seconds), bar))
    near, far = Link(0.0001, 1.25e9), Link(FAR_S, 1.25e8)
    step = LogNormal(STEP_S, 0.1)
    cluster = Cluster((Group(WORKERS - 1, step, near), Group(1, step, far)))
    for way, overlap in WAYS.items():
        wall_s = simulated(ps.local_sgd(16, overlap=overlap), cluster, EPOCH, 2 if quick else EPOCHS).wall_s
        target = "<= 9" if overlap else None
        measure = f"one far worker, {EPOCHS} epochs of {EPOCH} batches: local_sgd(16), {way}"
        found.append(
            Row(measure, wall_s, "virtual s", None, None, None, target, meets(wall_s, target) if target else None, 1)
        )
    return found


if __name__ == "__main__":
    given = parser((__doc__ or "").splitlines()[0], runs=1).parse_args()
    report("Going on while answers travel, virtual time", rows(given.quick), given.json, threads="1")
