"""Robust folds: what a fold of 8 sites costs beside their mean, what it is worth where 2 of them lie, and plain loops beside it.

python benchmarks/_federated_robust.py [--quick] [--json FILE]
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from _mnist import load
from _report import Row, interleave, parser, progress, report, row
from plesio.strategy.answers import Combine, Krum, Mean, Median, TrimmedMean
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.combining import COMBINED
from plesio.tensors.mean import mean_into

SITES, LIARS, SIZE = 8, 2, 1_000_000
RULES: dict[str, Combine] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed mean": TrimmedMean(LIARS / SITES),
    "Krum": Krum(LIARS),
    "multi-Krum": Krum(LIARS, keep=4),
}
LIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda moved: moved,
    "3 times the opposite": lambda moved: -3 * moved,
    "noise": lambda moved: torch.randn_like(moved),
}
"""What a liar sends instead of how far it moved."""
SAMPLES, BATCH, ROUNDS = 300, 10, 8


def contributions(size: int) -> list[Arena]:
    layout = Layout([TensorSpec("weights", (size,), "float32", Kind.TRAINED, 0)])
    parts = [Arena.private(layout) for _ in range(SITES)]
    for seed, part in enumerate(parts):
        part.views[0].copy_(torch.randn(size, generator=torch.Generator().manual_seed(seed)) * (1 + seed % 3))
    return parts


def fold(rule: Combine, parts: Sequence[Arena], out: Arena) -> None:
    made = COMBINED[type(rule)]
    if made is None:
        mean_into(out, parts, [1 / SITES] * SITES)
    else:
        made(rule)(out, parts, 0)


def cost_ms(rule: Combine, parts: Sequence[Arena], out: Arena) -> float:
    began_s = time.thread_time()
    for _ in range(5):
        fold(rule, parts, out)
    return (time.thread_time() - began_s) * 1e3 / 5


def plain(rule: Combine, rows: Sequence[Sequence[float]]) -> list[float]:
    """As the papers have it, in loops over numbers."""
    if isinstance(rule, Krum):
        away = [[sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in rows] for one in rows]
        scores = [sum(sorted(one)[1 : SITES - rule.f - 1]) for one in away]  # the first is to itself
        chosen = sorted(range(SITES), key=scores.__getitem__)[: rule.keep]
        return [statistics.fmean(rows[one][at] for one in chosen) for at in range(len(rows[0]))]
    columns = [sorted(column) for column in zip(*rows, strict=True)]
    if isinstance(rule, Median):
        return [statistics.median(column) for column in columns]
    cut = int(rule.part * SITES) if isinstance(rule, TrimmedMean) else 0
    return [statistics.fmean(column[cut : SITES - cut]) for column in columns]


def difference(rule: Combine) -> float:
    """The largest between the fold and plain loops, over 2,000 numbers."""
    parts = contributions(2000)
    out = Arena.private(parts[0].layout)
    fold(rule, parts, out)
    expected = torch.tensor(plain(rule, [part.views[0].tolist() for part in parts]), dtype=torch.float64)
    return float((out.views[0].double() - expected).abs().max())


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def site(worker: ps.Worker, lie: Callable[[torch.Tensor], torch.Tensor], rounds: int) -> None:
    """A site with 300 images; the last two are liars."""
    _, images, labels, *_ = load()
    mine = slice(worker.rank * SAMPLES, (worker.rank + 1) * SAMPLES)
    images, labels = images[mine], labels[mine]
    model = build()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(rounds):
        began = copy.deepcopy(list(model.parameters()))
        for batch in torch.randperm(SAMPLES).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        if worker.rank >= SITES - LIARS:
            with torch.no_grad():
                for now, before in zip(model.parameters(), began, strict=True):
                    now.copy_(before + lie(now - before))
        worker.contribute(samples=SAMPLES)


def accuracy(rule: Combine, lie: str, rounds: int) -> float:
    run = ps.run(
        partial(site, lie=LIES[lie], rounds=rounds),
        ps.fedavg(combine=rule),
        workers=SITES,
        engine=ps.Simulated("uniform"),
    )
    _, _, _, images, labels = load()
    model = build()
    model.load_state_dict(run.state_dict)
    with torch.no_grad():
        share = float((model(images).argmax(1) == labels).float().mean())
    progress.print(f"{rule}, 2 of 8 send {lie}: {share:.3f}")
    return share


def robust(quick: bool, runs: int) -> list[Row]:
    """All rows."""
    parts = contributions(SIZE // 10 if quick else SIZE)
    out = Arena.private(parts[0].layout)
    costs = interleave({name: partial(cost_ms, rule, parts, out) for name, rule in RULES.items()}, runs, "fold")
    rows = [
        row(f"a fold of 8 sites, {parts[0].views[0].numel():,} parameters: {name}", costs[name], "ms", against="mean",
            against_values=costs["mean"])
        for name in RULES if name != "mean"
    ]  # fmt: skip
    rows += [
        row(f"{name}: largest difference from plain loops", [difference(rule)], "", target="<= 1e-6")
        for name, rule in RULES.items()
    ]
    for lie in LIES:
        shares = {name: accuracy(rule, lie, 2 if quick else ROUNDS) for name, rule in RULES.items()}
        rows += [
            row(f"2 of 8 sites send {lie}: accuracy, {name}", [share], "", against="mean", against_values=[shares["mean"]])
            for name, share in shares.items() if name != "mean"
        ]  # fmt: skip
    return rows


def main() -> None:
    arguments = parser("Robust folds.").parse_args()
    torch.set_num_threads(1)
    report("Robust folds", robust(arguments.quick, 1 if arguments.quick else arguments.runs), arguments.json)


if __name__ == "__main__":
    main()
