"""Tables: rows by 64-bit key, on one core, against torch's static embeddings and a dict; and in runs (`_tables_runs`; over
TCP `_tables_network`, dealt to several servers `_tables_servers`).

    python benchmarks/tables.py --json tables.json
    python benchmarks/tables.py --only fold,pull

The batch has 8,192 examples of 26 ids, log-uniform in fields of different sizes, the largest .4 of all rows. All times are CPU
times: the machine's cores are shared. torch gets the distinct ids of a batch, sorted and marked as coalesced: what it
needs to find those is not counted, here or there.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from _report import Row, interleave, parser, progress, report, row
from _tables_network import network
from _tables_runs import dlrm, exchange
from _tables_servers import servers
from plesio.server.row_chain import Chain
from plesio.system.memory import room
from plesio.tables.distinct import Distinct
from plesio.tables.index import CURSOR
from plesio.tables.links import write_rows
from plesio.tables.spec import RowAdagrad, RowAdam, RowOptimizer, Seen, TableSpec, Unused
from plesio.tables.store import COPIED, SLICE, Store, load_kernels

EXAMPLES, FIELDS, BATCHES = 8192, 26, 12
BIRTHS = 8192
SIZES = ((1_000_000, 16), (1_000_000, 64), (10_000_000, 16), (10_000_000, 64))
RULES: dict[str, tuple[RowOptimizer, Callable[[torch.Tensor], torch.optim.Optimizer]]] = {
    "row Adagrad": (RowAdagrad(), lambda weight: torch.optim.Adagrad([weight], lr=0.05)),
    "RowAdam": (RowAdam(), lambda weight: torch.optim.SparseAdam([weight], lr=0.001)),
}
RIVALS = {"row Adagrad": "torch Adagrad, sparse", "RowAdam": "torch SparseAdam"}


class Batch(NamedTuple):
    """The distinct ids of a batch, in the order in which they appear, and a gradient for each."""

    keys: Any
    gradients: Any
    touched: Any
    ids: Any


def cpu_s(task: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began_s = time.process_time()
    task()
    return time.process_time() - began_s


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def batches(rows: int, dim: int, source: np.random.Generator) -> list[Batch]:
    """Some batches of ids below `rows`."""
    shares = np.append(0.4, 0.6 * (weights := 1 / np.arange(1, FIELDS)) / weights.sum())
    sizes = np.maximum((shares * rows).astype(np.int64), 2)
    starts = np.append(0, sizes.cumsum()[:-1])
    found, distinct = [], Distinct()
    for _ in range(BATCHES):
        drawn = np.exp(source.random((EXAMPLES, FIELDS)) * np.log(sizes)).astype(np.int64) - 1
        ids = (drawn + starts).reshape(-1) % rows
        distinct.clear()
        distinct.add(ids)
        gradients = 0.01 * source.standard_normal((len(distinct), dim), np.float32)
        found.append(Batch(distinct.keys.copy(), gradients, np.ones(len(distinct), np.uint8), ids))
    return found


def grown(rows: int, dim: int, rule: RowOptimizer, **life: Any) -> tuple[Store, list[float]]:
    """A store of the keys below `rows`, born one after the other, and the CPU seconds of each batch of births."""
    store, took_s = Store(TableSpec("ids", dim, rule, **life)), []
    gradients, touched = np.zeros((BIRTHS, dim), np.float32), np.ones(BIRTHS, np.uint8)
    for begin in range(0, rows, BIRTHS):
        keys = np.arange(begin, min(begin + BIRTHS, rows))
        unborn, count = np.full(len(keys), -1), len(keys)
        began_s = time.process_time()
        store.fold(keys, unborn, gradients[:count], touched[:count], 1, 0)
        took_s.append(time.process_time() - began_s)
    return store, took_s


def fits(rows: int, dim: int, rule: RowOptimizer) -> bool:
    """Whether there is memory for the store and, beside it, torch's weight with its state."""
    theirs = 3 if isinstance(rule, RowAdam) else 2
    needed = rows * (4 * (TableSpec("ids", dim, rule).row_floats + 12) + 4 * dim * theirs) * 1.05
    free = min(room().values(), default=float("inf"))
    if needed > free:
        progress.print(f"left out: {rows:,} x {dim} needs {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free")
    return needed <= free


def fold(quick: bool, runs: int) -> Iterator[Row]:
    """Steps of known rows, against torch's sparse optimizers."""
    for rows, dim in ((20_000, 16),) if quick else SIZES:
        for name, (rule, _) in RULES.items():
            if fits(rows, dim, rule):
                yield _fold(name, rows, dim, runs)


def _fold(name: str, rows: int, dim: int, runs: int) -> Row:
    rule, optimizer_of = RULES[name]
    found, (store, _) = batches(rows, dim, np.random.default_rng(0)), grown(rows, dim, rule)
    weight = torch.nn.Parameter(torch.empty(rows, dim).uniform_(-0.05, 0.05))
    folds, steps = _folds(store, found), _steps(weight, optimizer_of(weight), found)
    folds(), steps()
    millions = sum(len(batch.keys) for batch in found) / 1e6
    tasks = {"ours": lambda: millions / cpu_s(folds), "theirs": lambda: millions / cpu_s(steps)}
    done = interleave(tasks, runs, f"fold {name}, {rows:,} x {dim}")
    return row(
        f"fold, {name}, {rows:,} x {dim}",
        done["ours"],
        "M rows/s",
        against=RIVALS[name],
        against_values=done["theirs"],
        target=">= 6",
    )


def _folds(store: Store, found: list[Batch]) -> Callable[[], None]:
    places = [store.pull(batch.keys, np.empty_like(batch.gradients)) for batch in found]

    def folds() -> None:
        for batch, known in zip(found, places, strict=True):
            store.fold(batch.keys, known, batch.gradients, batch.touched, 2, 1)

    return folds


def _steps(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, found: list[Batch]) -> Callable[[], None]:
    warnings.filterwarnings("ignore", "Sparse invariant checks")
    sparse = []
    for batch in found:
        order = np.argsort(batch.keys)
        indices, values = torch.from_numpy(batch.keys[order])[None], torch.from_numpy(batch.gradients[order])
        sparse.append(torch.sparse_coo_tensor(indices, values, weight.shape, is_coalesced=True))

    def steps() -> None:
        for gradient in sparse:
            weight.grad = gradient
            optimizer.step()

    return steps


def pull(quick: bool, runs: int) -> Iterator[Row]:
    """Values of known keys, against a dict with its gather; and the distinct ids of a batch against `torch.unique`."""
    rows, dim = (20_000, 16) if quick else (10_000_000, 16)
    found, (store, _) = batches(rows, dim, np.random.default_rng(0)), grown(rows, dim, RowAdagrad())
    count = sum(len(batch.keys) for batch in found)
    outs = [np.empty_like(batch.gradients) for batch in found]
    by_key, table = {key: key for key in range(rows)}, np.zeros((rows, dim), np.float32)

    def ours() -> float:
        return count / cpu_s(lambda: [store.pull(one.keys, out) for one, out in zip(found, outs, strict=True)]) / 1e6

    def theirs() -> float:
        def look_up() -> None:
            for batch in found:
                table[[by_key[key] for key in batch.keys.tolist()]]

        return count / cpu_s(look_up) / 1e6

    done = interleave({"pull": ours, "dict": theirs}, runs, f"pull {rows:,} x {dim}")
    name = f"pull, {rows:,} x {dim}"
    yield row(name, done["pull"], "M rows/s", target=">= 10")
    yield row(name, done["pull"], "M rows/s", against="dict, gather", against_values=done["dict"], target=">= 6")
    distinct, ids = Distinct(), [batch.ids for batch in found]

    def add() -> None:
        for one in ids:
            distinct.clear()
            distinct.add(one)

    def unique() -> None:
        for one in ids:
            torch.unique(torch.from_numpy(one), return_inverse=True)

    tasks = {"ours": lambda: len(ids) / cpu_s(add), "theirs": lambda: len(ids) / cpu_s(unique)}
    done = interleave(tasks, runs, "distinct")
    yield row(
        f"distinct ids of {EXAMPLES:,} x {FIELDS}",
        done["ours"],
        "batches/s",
        against="torch.unique",
        against_values=done["theirs"],
    )


def growth(quick: bool, runs: int) -> Iterator[Row]:
    """Memory of a row, and the longest stop on the way to 1e7 rows."""
    rows = 50_000 if quick else 10_000_000
    longest, rates, row_bytes = [], [], 0.0
    for _ in range(runs):
        before = resident()
        store, took_s = grown(rows, 16, RowAdagrad())
        row_bytes = max((resident() - before) / rows, store.nbytes / rows, row_bytes)
        longest.append(1000 * max(took_s))
        rates.append(rows / sum(took_s) / 1e6)
        del store
        progress.print(f"births: longest {longest[-1]:.1f} ms, median {1000 * statistics.median(took_s):.2f} ms")
    yield row(f"memory of a row, {rows:,} x 16, row Adagrad", [row_bytes], "B", target="<= 105")
    yield row(f"longest stop of {BIRTHS:,} births until {rows:,} rows", longest, "ms of CPU", target="<= 15")
    yield row(f"births until {rows:,} rows", rates, "M rows/s")


def checkpoint(quick: bool, runs: int) -> Iterator[Row]:
    """A checkpoint of a table of which a part changed: what is written, and how long the rows are copied."""
    rows, dim, slice_rows = (200_000 if quick else 10_000_000), 16, 1 << 16
    store, _ = grown(rows, dim, RowAdagrad())
    changed = np.sort(np.random.default_rng(0).choice(rows, rows // 20, replace=False))
    unknown, gradients = np.full(len(changed), -1), np.zeros((len(changed), dim), np.float32)
    store.fold(changed, unknown, gradients, np.ones(len(changed), np.uint8), 2, 1)
    row_bytes = 4 * store.spec.row_floats + 16  # a key and a version
    with tempfile.TemporaryDirectory() as folder:
        first, later = Path(folder, "1"), Path(folder, "2")
        first.mkdir()
        later.mkdir()
        write_rows(first, 0, {"ids": store.kept()})
        chain = Chain(first, {"table-0.safetensors": ""}, 1)
        write_rows(later, chain.link_into(later), {"ids": store.kept(chain.since)})
        ratio = (later / "table-0.1.safetensors").stat().st_size / (row_bytes * len(changed))
    yield row(
        f"checkpoint of {len(changed):,} changed rows of {rows:,}, bytes", [ratio], "times theirs", target="<= 1.2"
    )
    for name, since in (("all", -1), ("those that changed", 1)):
        longest = [_longest(store, since, slice_rows // COPIED) for _ in range(runs)]
        yield row(f"slice of {slice_rows:,} rows x {dim}, {name}, longest", longest, "ms of CPU", target="<= 10")
        copied = [_copied_s(store, since) for _ in range(runs)]
        yield row(f"copy of {rows:,} rows x {dim}, {name}", copied, "s of CPU")


def _copied_s(store: Store, since: int) -> float:
    return cpu_s(lambda: store.kept(since))


def _longest(store: Store, since: int, pieces: int) -> float:
    """Milliseconds that so many pieces after each other took at most."""
    took_ms, kept = [], []
    slices = store.slices(since)
    while True:
        began_s = time.process_time()
        one = next(slices, None)
        took_ms.append(1000 * (time.process_time() - began_s))
        if one is None:
            return max(sum(took_ms[at : at + pieces]) for at in range(0, len(took_ms), pieces))
        kept.append(one)  # as a checkpoint does


def sweep(quick: bool, runs: int) -> Iterator[Row]:
    """Rows that are admitted and expire: the longest slice, all of whose rows are dead; folds; memory of a key that waits."""
    rows, dim = (50_000, 16) if quick else (10_000_000, 16)
    longest, rates, idle = [], [], []
    for _ in range(runs):
        store, _ = grown(rows, dim, RowAdagrad(), expire=Unused(10))
        idle.append(1000 * max(cpu_s(partial(store.sweep, 11)) for _ in range(rows // SLICE)))
        store._at.numbers[CURSOR] = 0
        took_s = [cpu_s(partial(store.sweep, 12)) for _ in range(rows // SLICE)]
        assert store.held < SLICE
        longest.append(1000 * max(took_s))
        rates.append(rows / sum(took_s) / 1e6)
        progress.print(f"sweeps: longest {longest[-1]:.2f} ms, median {1000 * statistics.median(took_s):.2f} ms")
    yield row(f"longest sweep of {SLICE:,} rows, all dead, of {rows:,} x {dim}", longest, "ms of CPU", target="<= 2")
    yield row(f"longest sweep of {SLICE:,} rows, none dead", idle, "ms of CPU", target="<= 2")
    yield row("rows swept, all dead", rates, "M rows/s")
    yield _fold_of_the_mortal(rows, dim, runs)
    store, _ = grown(rows, dim, RowAdagrad(), admit=Seen(3))
    yield row(f"memory of a key that waits, {rows:,}", [store.nbytes / store.candidates], "B", target="<= 35")


def _fold_of_the_mortal(rows: int, dim: int, runs: int) -> Row:
    found = batches(rows, dim, np.random.default_rng(0))
    mortal, endless = (_folds(grown(rows, dim, RowAdagrad(), expire=one)[0], found) for one in (Unused(10), None))
    millions = sum(len(batch.keys) for batch in found) / 1e6
    mortal(), endless()
    tasks = {"ours": lambda: millions / cpu_s(mortal), "theirs": lambda: millions / cpu_s(endless)}
    done = interleave(tasks, runs, "fold of rows that expire")
    name = f"fold, row Adagrad, {rows:,} x {dim}, rows expire"
    return row(name, done["ours"], "M rows/s", against="they do not", against_values=done["theirs"])


SECTIONS: dict[str, Callable[[bool, int], Iterable[Row]]] = {
    "fold": fold,
    "pull": pull,
    "growth": growth,
    "checkpoint": checkpoint,
    "sweep": sweep,
    "exchange": exchange,
    "network": network,
    "servers": servers,
    "dlrm": dlrm,
}


def main() -> None:
    """Every section, or those asked for."""
    options = parser("Tables on one core, against torch's embeddings and a dict.", runs=5)
    options.add_argument("--only", default=",".join(SECTIONS), metavar="NAMES", help="sections, with commas between")
    arguments = options.parse_args()
    unknown = set(arguments.only.split(",")) - SECTIONS.keys()
    if unknown:
        options.error(f"--only: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    load_kernels()
    rows: list[Row] = []
    for name in arguments.only.split(","):
        rows += SECTIONS[name](arguments.quick, 1 if arguments.quick else arguments.runs)
    report("Tables: rows by key", rows, arguments.json)


if __name__ == "__main__":
    main()
