"""What tables cost in quality: AUC on MovieLens-100k, and on a synthetic stream whose ids die, against torch in one process.

    python benchmarks/_tables_quality.py --json benchmarks/results/tables_auc.json

The model, its rates and the data are those of `examples/dlrm.py`: one pass in the order of time, tested on the last tenth. The
rates are torch's best of 6 pairs on the tenth before that, for both data sets within the spread of two seeds. Workers are
simulated: gradients, rows and their staleness are real, so that anybody gets these figures. torch has `nn.Embedding(sparse=True)`
and Adagrad by element, tables have `RowAdagrad`. The batch of 256 is shared out among the workers, and nothing is retuned for
them. `async_sgd` shares the dense network's rate out, too; `lr_scale="full"` does not. Rows always step by their own rate.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import plesio as ps
from _report import Row, parser, progress, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import dlrm

WORKERS = 8
BAR = 0.002
SCALE = 0.05  # of new rows, as of a table's
QUICK = 5_000  # examples of a smoke run

Ways = dict[str, Callable[[int], float]]
"""AUC by seed."""


class Split:
    """A stream, cut before its last tenth."""

    def __init__(self, ids: torch.Tensor, labels: torch.Tensor, quick: bool) -> None:
        if quick:
            ids, labels = ids[:QUICK], labels[:QUICK]
        cut = len(ids) * 9 // 10
        self.training = TensorDataset(ids[:cut], labels[:cut])
        self.test = ids[cut:], labels[cut:]

    def score(self, model: nn.Module) -> dict[str, float]:
        ids, labels = self.test
        return {"auc": dlrm.auc(model(ids), labels)}

    def numbered(self, rows: int | None = None) -> tuple[Split, int]:
        """The same with the numbers of rows in place of ids: one for each, or so many that are shared by a hash; and how many."""
        parts = [self.training.tensors[0], self.test[0]]
        distinct, numbers = torch.cat(parts).unique(return_inverse=True)
        if rows is not None:
            places = torch.randint(rows, (len(distinct),), generator=torch.Generator().manual_seed(0))
            numbers = places[numbers]
        training, test = numbers.split([len(one) for one in parts])
        other = Split.__new__(Split)
        other.training, other.test = TensorDataset(training, self.training.tensors[1]), (test, self.test[1])
        return other, len(distinct) if rows is None else rows


def torch_alone(split: Split, rows: int, seed: int) -> float:
    torch.manual_seed(seed)
    table = nn.Embedding(rows, dlrm.DIM, sparse=True)
    nn.init.uniform_(table.weight, -SCALE, SCALE)
    ids, labels = split.training.tensors
    net = dlrm.Net(ids.shape[1], table)
    optimizers = (
        torch.optim.Adagrad(table.parameters(), lr=dlrm.TABLE_LEARNING_RATE),
        torch.optim.Adam(net.top.parameters(), lr=dlrm.LEARNING_RATE),
    )
    for some, wanted in zip(ids.split(dlrm.BATCH), labels.split(dlrm.BATCH), strict=True):
        net.zero_grad()
        binary_cross_entropy_with_logits(net(some), wanted).backward()
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        return split.score(net)["auc"]


def tables(split: Split, strategy: ps.Strategy, workers: int, seed: int) -> float:
    run = ps.run(
        partial(dlrm.train, data=split.training, batch=dlrm.BATCH // workers),
        strategy,
        workers=workers,
        seed=seed,
        engine=ps.Simulated("uniform"),
        evaluate=split.score,
        evaluate_every_s=1e6,  # at the end only
        progress=False,
    )
    return run.history[-1].metrics["auc"]


def by_tables(split: Split) -> Ways:
    strategies = ps.async_sgd(), ps.async_sgd(lr_scale="full"), ps.sync_sgd(), ps.sync_sgd(rows="each")
    several: Ways = {f"{WORKERS} workers, {one.name}": partial(tables, split, one, WORKERS) for one in strategies}
    return {"1 worker": partial(tables, split, ps.async_sgd(), 1), **several}


def means(ways: Ways, runs: int, title: str) -> dict[str, float]:
    found = {}
    for name, way in ways.items():
        values = [way(seed) for seed in range(1, 1 + runs)]
        found[name] = statistics.fmean(values)
        spread = ", ".join(f"{one:.4f}" for one in values)
        progress.print(f"{title}, {name}: {found[name]:.4f} ({spread})")
    return found


def line(measure: str, value: float, runs: int, against: str, other: float) -> Row:
    return Row(measure, round(value, 4), "AUC", against, round(other, 4), value / other, None, None, runs)


def auc(quick: bool = False, runs: int = 3) -> list[Row]:
    """MovieLens-100k: against torch. No rows where it is not here."""
    data = dlrm.ratings()
    if data is None:
        progress.print(f"no MovieLens-100k here. {dlrm.HOW_TO_GET}")
        return []
    split, title = Split(*data, quick=quick), "MovieLens-100k"
    alone = means({"torch alone": partial(torch_alone, *split.numbered())}, runs, title)["torch alone"]
    found, rows = means(by_tables(split), runs, title), []
    for name, value in found.items():
        rows.append(line(f"{title}: table, {name}", value, runs, "torch alone", alone))
    for name, value in found.items():
        less, target = round(alone - value, 4), f"<= {BAR:g}"
        rows.append(Row(f"{title}: lost by it, {name}", less, "AUC", None, None, None, target, less <= BAR, runs))
    return rows


def drift(quick: bool = False, runs: int = 3) -> list[Row]:
    """The synthetic stream, of which the best AUC is known: that of the logits that its labels were drawn by."""
    (ids, labels), logits = dlrm.planted()
    split, title = Split(ids, labels, quick=quick), "synthetic, with drift"
    first, last = len(split.training), len(split.training) + len(split.test[1])
    best = dlrm.auc(logits[first:last], split.test[1])
    every, tenth = split.numbered(), split.numbered(split.numbered()[1] // 10)
    ways: Ways = {
        "torch alone, a row an id": partial(torch_alone, *every),
        "torch alone, ids hashed into a tenth": partial(torch_alone, *tenth),
        **{f"table, {name}": way for name, way in by_tables(split).items()},
    }
    found = means(ways, runs, title)
    return [line(f"{title}: {name}", value, runs, "the planted model", best) for name, value in found.items()]


def section(json: Path | None = None, quick: bool = False, runs: int = 3) -> list[Row]:
    """Both, printed and written."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
    try:
        rows = [*auc(quick, runs), *drift(quick, runs)]
    finally:
        torch.set_num_threads(threads)
    report(f"AUC of tables, means of {runs} seeds", rows, json)
    return rows


def main() -> None:
    """The section alone."""
    arguments = parser("AUC of tables against torch.").parse_args()
    section(arguments.json, arguments.quick, 1 if arguments.quick else arguments.runs)


if __name__ == "__main__":
    main()
