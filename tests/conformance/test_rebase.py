"""Workers that go on while their answers travel, against plain loops. Time is virtual, and links are so long that each answer is
there at the end of a known step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.cluster.machines import Link
from plesio.strategy import Strategy
from plesio.strategy.answers import Codec, Every, Int8, PostLocal, Steps, TopK
from plesio.tensors.codecs import packer_for
from support import loops
from support.codec_twins import assert_close_by_steps

STEPS, EVERY = 15, Steps(4)
"""The last contribution has 3 steps, in which the answer to the one before has come."""
pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
Weights = dict[str, torch.Tensor]


@dataclass
class Sent:
    """The parameters that a worker began from, those it has now, and the version that its first step was computed from."""

    rank: int
    start: Weights
    now: Weights
    began: int


Fold = Callable[[Weights, list[Sent], int], None]
"""Moves the common weights by what was sent, with so many workers."""


def averaged(common: Weights, sent: list[Sent], workers: int) -> None:
    for name, value in common.items():
        value.copy_(sum(one.now[name] for one in sent) / len(sent))


def by_parts(common: Weights, sent: list[Sent], workers: int) -> None:
    for one in sent:
        for name, value in common.items():
            value -= (one.start[name] - one.now[name]) / workers


def elastic(alpha: float) -> Fold:
    def fold(common: Weights, sent: list[Sent], workers: int) -> None:
        for name, value in common.items():
            value += alpha * (sent[0].now[name] - value)

    return fold


def outer(lr: float, momentum: float, nesterov: bool) -> Fold:
    past: Weights = {}

    def fold(common: Weights, sent: list[Sent], workers: int) -> None:
        for name, value in common.items():
            moved = sum(one.start[name] - one.now[name] for one in sent) / len(sent)
            past[name] = momentum * past.get(name, torch.zeros_like(value)) + moved
            value -= lr * (moved + momentum * past[name] if nesterov else past[name])

    return fold


class Packer:
    """The library's codec on all trained numbers as they lie in memory, each tensor's from a multiple of 16 on; with feedback."""

    def __init__(self, codec: Codec) -> None:
        self._packer = packer_for(codec)
        self._held: torch.Tensor | None = None

    def __call__(self, start: Weights, now: Weights, feedback: bool = True) -> Weights:
        """`now`, as whoever has `start` unpacks it."""
        before, after = (torch.cat([aligned(one) for one in each.values()]) for each in (start, now))
        if feedback and self._held is None:
            self._held = torch.zeros_like(before)
        packed = torch.zeros(self._packer.room(before.numel()), dtype=torch.uint8)
        self._packer.pack(before, after, packed, self._held)
        self._packer.add_into(packed, before, -1.0)
        parts = before.split([aligned(one).numel() for one in start.values()])
        return {name: part[: one.numel()].view_as(one) for (name, one), part in zip(start.items(), parts, strict=True)}


def aligned(one: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(one.flatten(), (0, -one.numel() % 16))


@dataclass
class Server:
    """Folds what workers sent, one by one or when all have sent; what it answers each is kept until that is taken."""

    fold: Fold
    common: Weights
    trained: set[str]
    workers: int
    in_rounds: bool
    back: Codec | None
    version: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    answers: dict[int, tuple[int, Weights]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._came: list[Sent] = []
        self._shown = {rank: clone(self.common) for rank in range(self.workers)}

    def hear(self, one: Sent) -> None:
        self.staleness[self.version - one.began] += 1
        self._came.append(one)
        if self.in_rounds and len(self._came) < self.workers:
            return
        came, self._came = self._came, []
        for name, value in self.common.items():
            if name not in self.trained:  # the model's buffers
                every = torch.stack([sent.now[name] for sent in came])
                value.copy_(every.mean(0) if value.is_floating_point() else every.max())
        self.fold(only(self.trained, self.common), came, self.workers)
        self.version += 1
        for sent in came:
            shown = self._shown[sent.rank]
            if self.back is None:
                shown = clone(self.common)
            else:
                shown |= Packer(self.back)(only(self.trained, shown), only(self.trained, self.common), feedback=False)
            self._shown[sent.rank] = shown
            self.answers[sent.rank] = self.version, shown


def clone(weights: Weights) -> Weights:
    return {name: value.detach().clone() for name, value in weights.items()}


def only(names: set[str], weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if name in names}


class Going:
    """A worker that takes each answer `late` steps after it sent, or before it sends again; 0: it waits for it."""

    def __init__(self, rank: int, late: int, model: nn.Module, optimizers: loops.Optimizers, alpha: float) -> None:
        self.rank, self.late, self.alpha = rank, late, alpha
        self.model, self.optimizer = model, optimizers(model)
        self.trained = {name for name, _ in model.named_parameters()}
        self.start = only(self.trained, clone(model.state_dict()))
        self.version = self.began = self.steps = 0
        self.packer: Packer | None = None
        self.in_flight = self.waits = False

    def step(self, rows: slice) -> None:
        inputs, labels = loops.data()
        loops.descend(self.optimizer, loops.loss_of(self.model, inputs[rows], labels[rows]))
        self.steps += 1

    def send(self) -> Sent:
        now = clone(self.model.state_dict())
        sent = Sent(self.rank, self.start, dict(now), self.began)
        if self.packer is not None:
            sent.now |= self.packer(self.start, only(self.trained, now))
        self.start, self.began, self.steps, self.in_flight = only(self.trained, now), self.version, 0, True
        return sent

    def take(self, version: int, common: Weights) -> None:
        """What was done since it sent, on top of the version; or of a part of the way to that."""
        for name, mine in self.model.state_dict().items():
            if name in self.trained:
                base = self.start[name] + self.alpha * (common[name] - self.start[name])
                mine.copy_(base + (mine - self.start[name]))
                self.start[name] = base
            else:
                mine.copy_(common[name])
        self.version, self.in_flight = version, False
        if not self.steps:
            self.began = version


def going_on(
    fold: Fold,
    late: Sequence[int],
    *,
    every: Every = EVERY,
    build: loops.Build = loops.mlp,
    optimizers: loops.Optimizers = loops.momentum,
    in_rounds: bool = True,
    alpha: float = 1.0,
    there: Codec | None = None,
    back: Codec | None = None,
) -> tuple[Weights, Counter[int]]:
    """The common weights, and how stale how many contributions were; one that is `late` arrives half way between its sending and
    its answer."""
    workers = [Going(rank, one, build(), optimizers, alpha) for rank, one in enumerate(late)]
    server = Server(fold, clone(workers[0].model.state_dict()), workers[0].trained, len(late), in_rounds, back)
    under_way: list[tuple[float, Sent]] = []

    def arrive(until: float) -> None:
        for one in sorted(under_way, key=lambda one: (one[0], one[1].rank)):
            if one[0] <= until:
                under_way.remove(one)
                server.hear(one[1])

    for one in workers:
        one.packer = Packer(there) if there is not None else None
    for step in range(1, STEPS + 1):
        arrive(step - 0.1)
        for one in workers:
            one.step(loops.rows_of((step - 1) * len(late) + one.rank, 8, 96))
            if one.in_flight and one.steps == one.late:
                one.take(*server.answers[one.rank])
            if every.due(one.steps, 0.0, one.version) or step == STEPS:
                if one.in_flight:  # it waits
                    one.take(*server.answers[one.rank])
                one.waits = one.version < every.after or not one.late
                under_way.append((step + (0.0 if one.waits else max(0.0, one.late - 0.5) / 2), one.send()))
        arrive(step)
        for one in workers:
            if one.in_flight and one.waits:
                one.take(*server.answers[one.rank])
    arrive(STEPS + max(late))
    return server.common, server.staleness


def ran(
    strategy: Strategy,
    late: Sequence[int],
    build: loops.Build = loops.mlp,
    optimizers: loops.Optimizers = loops.momentum,
) -> tuple[Weights, Counter[int]]:
    """What plesio makes of it, where the round trip of each worker takes half a step less than `late` steps of a second."""
    groups = [Group(1, Constant(1.0), Link(latency_s=(one - 0.5) / 2) if one else Link()) for one in late]
    train = partial(loops.follow, build=build, optimizers=optimizers, steps=STEPS)
    run = ps.run(train, strategy, workers=len(late), engine=ps.Simulated(Cluster(tuple(groups))))
    staleness: Counter[int] = Counter()
    for counted in run.summary.staleness.by_worker.values():
        staleness.update(counted)
    return run.state_dict, staleness


def assert_same(got: tuple[Weights, Counter[int]], wanted: tuple[Weights, Counter[int]]) -> None:
    for name, value in wanted[0].items():
        torch.testing.assert_close(got[0][name], value, rtol=1e-6, atol=1e-6)
    assert got[1] == wanted[1]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


ROUNDS: dict[str, tuple[Strategy, Callable[[], Fold]]] = {
    "local_sgd": (ps.local_sgd(4, overlap=True), lambda: averaged),
    "diloco": (ps.diloco(4, overlap=True), lambda: outer(0.7, 0.6, True)),
    "slowmo": (ps.slowmo(4, overlap=True), lambda: outer(1.0, 0.5, False)),
}


@pytest.mark.few(7)
@pytest.mark.parametrize("late", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_whose_answers_are_late(name: str, late: int) -> None:
    strategy, fold = ROUNDS[name]
    wanted = going_on(fold(), [late] * 3)
    assert_same(ran(strategy, [late] * 3), wanted)
    assert wanted[1] == {0: 3, 1: 9}, "the first round's steps alone are of the version before"


@pytest.mark.parametrize("late", [1, 3])
def test_rounds_of_adamw(late: int) -> None:
    strategy, fold = ROUNDS["diloco"]
    assert_same(ran(strategy, [late] * 3, optimizers=adamw), going_on(fold(), [late] * 3, optimizers=adamw))


@pytest.mark.parametrize("late", [1, 3])
def test_batch_norm_statistics_are_those_of_the_version(late: int) -> None:
    """What a worker counted in them while the answer travelled is dropped."""
    wanted = going_on(averaged, [late] * 3, build=loops.batch_norm, optimizers=loops.sgd)
    assert_same(ran(ps.local_sgd(4, overlap=True), [late] * 3, loops.batch_norm, loops.sgd), wanted)


def test_local_steps_that_begin_later() -> None:
    """Before that all wait, as in lock step."""
    wanted = going_on(averaged, [1] * 3, every=PostLocal(4, 3))
    assert_same(ran(ps.post_local_sgd(4, after=3, overlap=True), [1] * 3), wanted)


@pytest.mark.parametrize("late", [[1, 1, 1], [3, 3, 3], [0, 0, 2], [0, 3, 3]], ids=str)
def test_each_contribution_alone(late: list[int]) -> None:
    """Workers beside the server wait by default: their answer is there at once."""
    strategy = ps.async_local_sgd(4, overlap=None if 0 in late else True)
    assert_same(ran(strategy, late), going_on(by_parts, late, in_rounds=False))


@pytest.mark.parametrize("late", [1, 3])
def test_elastic_averaging(late: int) -> None:
    wanted = going_on(elastic(0.3), [late] * 3, in_rounds=False, alpha=0.3)
    assert_same(ran(ps.elastic_averaging(4, alpha=0.3, overlap=True), [late] * 3), wanted)


PACKED: dict[str, tuple[Callable[..., Strategy], dict[str, Any]]] = {
    "local_sgd": (ps.local_sgd, {"fold": lambda: outer(1.0, 0.0, False)}),
    "diloco": (ps.diloco, {"fold": lambda: outer(0.7, 0.6, True)}),
    "async_local_sgd": (ps.async_local_sgd, {"fold": lambda: by_parts, "in_rounds": False}),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("codec", [Int8(), TopK(0.2)], ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_what_travels_packed(name: str, codec: Codec, late: int) -> None:
    """Both ways; top-k on the way to the server alone. What packing left out is in the next contribution."""
    recipe, rule = PACKED[name]
    back = None if isinstance(codec, TopK) else codec
    wanted = going_on(late=[late] * 3, **{**rule, "fold": rule["fold"]()}, there=codec, back=back)
    weights, staleness = ran(recipe(4, codec=codec, overlap=True), [late] * 3)
    assert_close_by_steps(weights, wanted[0])
    assert staleness == wanted[1]


# Where there is no link

RECIPES: dict[str, Callable[..., Strategy]] = {
    "local_sgd": partial(ps.local_sgd, 4),
    "diloco": partial(ps.diloco, 4),
    "slowmo": partial(ps.slowmo, 4),
    "post_local_sgd": partial(ps.post_local_sgd, 4, after=3),
    "async_local_sgd": partial(ps.async_local_sgd, 4),
    "local_sgd int8": partial(ps.local_sgd, 4, codec="int8"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", RECIPES)
def test_beside_the_server_workers_wait_by_default(name: str) -> None:
    """Bit for bit: `overlap=None` is `overlap=False` there."""
    got, wanted = (ran(RECIPES[name](overlap=one), [0] * 3) for one in (None, False))
    assert all(torch.equal(got[0][key], value) for key, value in wanted[0].items())
    assert got[1] == wanted[1]


@pytest.mark.parametrize("name", ["local_sgd", "diloco", "post_local_sgd"])
def test_beside_the_server_an_answer_is_one_step_late(name: str) -> None:
    """With `overlap=True`: a worker looks at the end of a step. A round's version is the same whenever it is made."""
    got, wanted = ran(RECIPES[name](overlap=True), [0] * 3), ran(RECIPES[name](overlap=True), [1] * 3)
    assert all(torch.equal(got[0][key], value) for key, value in wanted[0].items())
    assert got[1] == wanted[1]


@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("name", ["local_sgd", "async_local_sgd"])
def test_one_worker_is_plain_pytorch(name: str, late: int) -> None:
    """To rounding: nobody else moved the parameters meanwhile."""
    got, _ = ran(RECIPES[name](overlap=True), [late])
    for key, value in loops.plain_pytorch(loops.mlp, loops.momentum, STEPS).items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-6)
