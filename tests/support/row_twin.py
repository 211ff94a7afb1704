"""A model with a table, and a plain model of what its rows are to become: dicts and float64, driven by a run's journal."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

import plesio as ps
from plesio.core.events import Abandoned, Discard, Fold, Joined, Pushed, RowsWanted
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from plesio.tables.spec import RowOptimizer, TableSpec
from plesio.tables.store import Store

DIM = 3
STEPS = 12
LR, SEED = 0.1, 5
Life = Mapping[str, Any]
"""When a table's rows come and go: `admit` and `expire`."""
ENDLESS: Life = MappingProxyType({})


class Net(nn.Module):
    """A row is pulled towards its id, each id by itself; the dense part is beside the point."""

    def __init__(self, optimizer: RowOptimizer, life: Life = ENDLESS) -> None:
        super().__init__()
        self.ids = ps.Table(DIM, optimizer, seed=SEED, **life)
        self.top = nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.ids(ids)
        miss = rows - target(ids.numpy())
        return 0.5 * miss.square().sum() + self.top(rows.detach()).square().mean()


def target(ids: Any) -> torch.Tensor:
    return torch.tensor((np.asarray(ids) % 7).astype(np.float32)).unsqueeze(-1)


def passes(rank: int, step: int, way: str = "") -> list[np.ndarray]:
    """The ids of a worker's step, by forward pass: some twice, some everybody's. `way`: see `train`."""
    drawn = np.random.default_rng((rank, step)).integers(0, 40, 9)
    ids = np.where(drawn < 4, drawn + np.iinfo(np.int64).min, drawn)
    if way == "drifts":
        ids = ids + 8 * step  # an id comes in five steps, and never again
    return [ids] if way in ("", "looks", "ahead", "drifts") else [ids[:6], ids[3:]]


ADAGRAD = ps.RowAdagrad(LR)


def train(
    worker: Any,
    optimizer: RowOptimizer = ADAGRAD,
    steps: int = STEPS,
    way: str = "",
    poison: tuple[int, int] | None = None,
    dies: Path | None = None,
    life: Life = ENDLESS,
) -> None:
    """Steps of 9 ids each, whatever the `way`: "looks" also reads other ids without gradients; "twice" has two forward passes and
    one backward pass; "accumulates" has two of both. "ahead" and "twice ahead" ask ahead for the rows of the next first pass.
    The ids of "drifts" die.

    `poison`: the gradients of that worker's step are NaN. `dies`: worker 1 kills itself in its fifth step, or in a later one if
    that was called off, after it pulled rows, unless that file is there.
    """
    torch.manual_seed(0)
    net = Net(optimizer, life)
    net, dense = worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.01))
    numbers: Any = range(steps)
    if way.endswith("ahead"):
        numbers = worker.ahead(numbers, lambda step: {net.ids: torch.tensor(passes(worker.rank, step, way)[0])})
    for step in numbers:
        with worker.step():
            worker.count(9)
            dense.zero_grad()
            if way == "looks":
                with torch.no_grad():
                    net(torch.tensor([1, 39, 1000 + step]))
            losses = []
            for ids in passes(worker.rank, step, way):
                losses.append(net(torch.tensor(ids)) * (float("nan") if poison == (worker.rank, step) else 1.0))
                if way == "accumulates":
                    losses.pop().backward()
            if losses:
                torch.stack(losses).sum().backward()
            if dies is not None and worker.rank == 1 and step >= 4 and not dies.exists():
                dies.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            dense.step()


Gradients = dict[int, np.ndarray]
Key = tuple[int, int, int]


class Twin:
    """The rows, as keys' values and accumulators. `clock`: how many times rows stepped."""

    def __init__(self, optimizer: RowOptimizer, admit: ps.Seen | None = None, expire: ps.Unused | None = None) -> None:
        self.optimizer, self.admit = optimizer, admit
        self.life = expire.versions if expire is not None else float("inf")
        self.clock = 0
        self.stepped: dict[int, int] = {}  # when each row stepped last
        self.counts: dict[int, tuple[int, int]] = {}  # of keys without a row: how often they came, and when last
        self.refused = self.died = 0
        self.values: dict[int, np.ndarray] = {}
        self.sums: dict[int, float] = defaultdict(float)
        self._fresh = Store(TableSpec("ids", DIM, optimizer, seed=SEED))

    def first(self, key: int) -> np.ndarray:
        """The values of a row that is not born."""
        if self.admit is not None:
            return np.zeros(DIM)
        return self.born(key)

    def born(self, key: int) -> np.ndarray:
        out = np.empty((1, DIM), np.float32)
        self._fresh.pull(np.array([key]), out)
        return out[0].astype(np.float64)

    def step(self, gradients: Gradients) -> None:
        self.clock += 1
        for key, gradient in gradients.items():
            if key not in self.values and not self._admits(key):
                continue
            self.stepped[key] = self.clock
            value = self.values[key] if key in self.values else self.born(key)
            if isinstance(self.optimizer, ps.RowAdagrad):
                self.sums[key] += float(np.mean(gradient**2))
                gradient = gradient / (np.sqrt(self.sums[key]) + self.optimizer.eps)
            self.values[key] = value - self.optimizer.lr * gradient
        for key in [key for key, last in self.stepped.items() if self.clock - last > self.life]:
            del self.values[key], self.stepped[key]
            self.sums.pop(key, None)
            self.died += 1

    def _admits(self, key: int) -> bool:
        came, last = self.counts.pop(key, (0, self.clock))
        came = 1 if self.clock - 1 - last > self.life else came + 1
        if self.admit is None or came >= self.admit.times:
            return True
        self.counts[key] = came, self.clock
        self.refused += 1
        return False

    def waiting(self) -> dict[int, tuple[int, int]]:
        """The keys that wait for a row."""
        return {key: one for key, one in self.counts.items() if self.clock - one[1] <= self.life}


class Member:
    """A worker of one incarnation: what all rows were whenever it was served, by contribution, and at which step it is."""

    def __init__(self) -> None:
        self.step = 0
        self.served: dict[int, list[Gradients]] = defaultdict(list)
        self.awaits = 0  # the contribution that it wants rows for ahead, when the one before is folded


def twin_of(folder: Path, strategy: Strategy, optimizer: RowOptimizer, way: str = "", life: Life = ENDLESS) -> Twin:
    """Rows as the journal of a run says, for `train`."""
    twin, members = Twin(optimizer, **life), defaultdict(Member)
    sent: dict[Key, Gradients] = {}
    over: set[Key] = set()
    late = strategy.release.after_fold and not strategy.rows.at_once
    for decision in read_journal(folder).decisions():
        event, effects = decision.event, decision.effects
        one = members[event.worker] if hasattr(event, "worker") else Member()
        if isinstance(event, RowsWanted):
            if event.ahead and late and (event.worker, event.incarnation, event.number - 1) not in over:
                one.awaits = event.number
            else:
                one.served[event.number].append(dict(twin.values))
        elif isinstance(event, Joined):
            members[event.worker] = Member()
        elif isinstance(event, Abandoned):
            one.step += 1
        elif isinstance(event, Pushed):
            made = sent[event.worker, event.incarnation, event.number] = _sent(twin, one, event, way)
            if strategy.rows.at_once and event.rows and not any(_is_of(event, other) for other in effects):
                twin.step(made)
        if not strategy.rows.at_once:
            for fold in decision.folds:
                twin.step(_mean(sent, fold))
        over.update(_decided(effects))
        for key in _decided(effects):
            if (member := members[key[0]]).awaits == key[2] + 1:
                member.served[member.awaits].append(dict(twin.values))
                member.awaits = 0
    return twin


def _sent(twin: Twin, one: Member, event: Pushed, way: str) -> Gradients:
    """The gradients in a contribution. A pass that has new keys pulls those: they are as they were when that was served."""
    served, window = iter(one.served.pop(event.number, [])), {}
    gradients: Gradients = defaultdict(lambda: np.zeros(DIM))
    for step in range(one.step, one.step + event.steps):
        for ids in passes(event.worker, step, way):
            keys = [int(key) for key in ids]
            if any(key not in window for key in keys):
                rows = next(served)
                window = {key: rows[key] if key in rows else twin.first(key) for key in keys} | window
            for key in keys:
                gradients[key] = gradients[key] + window[key] - float(key % 7)
    assert not [*served], "each pull is one of a pass"
    one.step += event.steps
    return dict(gradients)


def _decided(effects: Iterable[Any]) -> list[Key]:
    """The contributions that something becomes of."""
    folded = [one for fold in effects if isinstance(fold, Fold) for one in fold.members]
    discarded = [one for one in effects if isinstance(one, Discard)]
    return [(one.worker, one.incarnation, one.number) for one in (*folded, *discarded)]


def _is_of(event: Pushed, other: Any) -> bool:
    """Whether it says that the contribution does not count; a fold calls off those of others."""
    return isinstance(other, Discard) and (other.worker, other.number) == (event.worker, event.number)


def _mean(sent: dict[Key, Gradients], fold: Fold) -> Gradients:
    total: Gradients = defaultdict(lambda: np.zeros(DIM))
    for member in fold.members:
        for key, gradient in sent.pop((member.worker, member.incarnation, member.number)).items():
            total[key] = total[key] + member.share * gradient
    return total


def assert_rows(run: ps.Run, twin: Twin) -> None:
    """The run's rows are the twin's."""
    rows = run.tables["ids"].get_extra_state()
    assert sorted(rows["keys"].tolist()) == sorted(twin.values)
    for key, value in zip(rows["keys"].tolist(), rows["values"], strict=True):
        np.testing.assert_allclose(value, twin.values[key], rtol=2e-5, atol=2e-5)
    if twin.admit is not None:
        waiting = zip(*(rows[part].tolist() for part in ("candidates", "counts", "counted")), strict=True)
        assert {key: (came, last) for key, came, last in waiting} == twin.waiting()
