"""Models that are exchanged in parts, against plain loops. Time is virtual, and links are so long that each answer is there at
the end of a known step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.cluster.machines import Link
from plesio.strategy import Strategy
from plesio.strategy.answers import Codec, Int8, TopK
from plesio.tensors.codecs import packer_for
from plesio.tensors.codecs.packer import Packer
from support import loops
from support.codec_twins import assert_close_by_steps

pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
Weights = dict[str, torch.Tensor]
PARTS = {2: [["0.weight"], ["0.bias", "2.weight", "2.bias"]], 3: [["0.weight"], ["0.bias"], ["2.weight", "2.bias"]]}
"""Of 192, 32, 96 and 12 bytes."""


def clone(weights: Weights) -> Weights:
    return {name: value.detach().clone() for name, value in weights.items()}


@dataclass
class Outer:
    """SGD, or Nesterov's, by the mean of what came; each tensor has a momentum of its own."""

    lr: float
    momentum: float = 0.0
    past: Weights = field(default_factory=dict)

    def move(self, common: Weights, deltas: list[Weights]) -> None:
        for name in deltas[0]:
            moved = sum(one[name] for one in deltas) / len(deltas)
            self.past[name] = self.momentum * self.past.get(name, torch.zeros_like(moved)) + moved
            common[name] -= self.lr * (moved + self.momentum * self.past[name])


class Worker:
    """`base` is what each tensor moved from since it was exchanged; `since`: how many steps ago."""

    def __init__(self, rank: int, codec: Codec | None) -> None:
        self.rank, self.model = rank, loops.mlp()
        self.optimizer = loops.momentum(self.model)
        self.weights = {name: value.data for name, value in self.model.named_parameters()}
        self.base = clone(self.weights)
        self.since = dict.fromkeys(self.base, 0)
        self.held = {name: torch.zeros_like(value) for name, value in self.base.items()}
        self.packer = packer_for(codec) if codec is not None else None

    def step(self, rows: slice) -> None:
        inputs, labels = loops.data()
        loops.descend(self.optimizer, loops.loss_of(self.model, inputs[rows], labels[rows]))
        self.since = {name: steps + 1 for name, steps in self.since.items()}

    def send(self, part: list[str], late: int) -> Weights:
        deltas = {name: self.base[name] - self.weights[name] for name in part if self.since[name]}
        if self.packer is not None:
            deltas = packed(self.packer, deltas, self.held)
        for name in part:
            self.since[name] = 0
            if late:
                self.base[name] = self.weights[name].clone()
        return deltas

    def take(self, part: list[str], common: Weights, late: int) -> None:
        for name in part:
            since = self.weights[name] - self.base[name] if late else 0.0
            self.base[name] = common[name].clone()
            self.weights[name].copy_(common[name] + since)


def packed(packer: Packer, deltas: Weights, held: Weights | None) -> Weights:
    """The library's codec on a part's numbers as they lie in memory, each tensor's from a multiple of 16 on; with feedback."""
    if not deltas:
        return {}
    sizes = [aligned(one).numel() for one in deltas.values()]
    flat = torch.cat([aligned(one) for one in deltas.values()])
    error = torch.cat([aligned(held[name]) for name in deltas]) if held is not None else None
    into, out = torch.zeros(packer.room(flat.numel()), dtype=torch.uint8), torch.zeros_like(flat)
    packer.pack(flat, torch.zeros_like(flat), into, error)
    packer.add_into(into, out, 1.0)
    if held is not None and error is not None:
        held |= as_tensors(deltas, error.split(sizes))
    return as_tensors(deltas, out.split(sizes))


def as_tensors(like: Weights, flat: Sequence[torch.Tensor]) -> Weights:
    return {
        name: part[: one.numel()].view_as(one).clone() for (name, one), part in zip(like.items(), flat, strict=True)
    }


def aligned(one: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(one.flatten(), (0, -one.numel() % 16))


def in_rounds(
    outer: Outer,
    h: int,
    fragments: int,
    steps: int,
    late: int,
    workers: int,
    codec: Codec | None = None,
    back: Codec | None = None,
) -> Weights:
    """A part in each round. In the end everybody sends what is left."""
    crew = [Worker(rank, codec) for rank in range(workers)]
    common, parts, under_way = clone(crew[0].weights), PARTS[fragments], None
    shown, rounds = clone(common), count()

    def show(part: list[str]) -> None:
        missing = {name: common[name] - shown[name] for name in part}
        for name, value in packed(packer_for(back), missing, None).items() if back is not None else ():
            shown[name] += value
        if back is None:
            shown.update({name: common[name].clone() for name in part})

    for step in range(1, steps + 1):
        for one in crew:
            one.step(loops.rows_of((step - 1) * workers + one.rank, 8, 96))
        if under_way is not None and step - under_way[0] == late:
            for one in crew:
                one.take(under_way[1], shown, late)
            under_way = None
        if step % (h // fragments) == 0:
            part = parts[next(rounds) % fragments]
            outer.move(common, [one.send(part, late) for one in crew])
            show(part)
            if late:
                under_way = step, part
            else:
                for one in crew:
                    one.take(part, shown, late)
    if under_way is not None:
        for one in crew:
            one.take(under_way[1], shown, late)
    for part in parts:
        outer.move(common, [one.send(part, 0) for one in crew])
    return common


def one_by_one(h: int, fragments: int, steps: int, workers: int) -> Weights:
    """Nobody waits: what each sends is folded as it comes, the first worker's first."""
    crew = [Worker(rank, None) for rank in range(workers)]
    common, parts = clone(crew[0].weights), PARTS[fragments]
    for step in range(1, steps + 1):
        for one in crew:
            one.step(loops.rows_of((step - 1) * workers + one.rank, 8, 96))
        if step % (h // fragments) == 0:
            for one in crew:
                part = parts[(step // (h // fragments) - 1) % fragments]
                Outer(1.0 / workers).move(common, [one.send(part, 0)])
                one.take(part, common, 0)
    for one in crew:
        Outer(1.0 / workers).move(common, [one.send([name for part in parts for name in part], 0)])
    return common


def ran(strategy: Strategy, steps: int, late: int = 0, workers: int = 2) -> Weights:
    """What plesio makes of it, where a round trip takes half a step less than `late` steps of a second."""
    link = Link(latency_s=(late - 0.5) / 2) if late else Link()
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=steps)
    engine = ps.Simulated(Cluster((Group(workers, Constant(1.0), link),)))
    return ps.run(train, strategy, workers=workers, engine=engine).state_dict


def assert_close(got: Weights, wanted: Weights) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-6)


RULES: dict[str, tuple[Callable[..., Strategy], Callable[[], Outer]]] = {
    "local_sgd": (ps.local_sgd, lambda: Outer(1.0)),
    "diloco": (ps.diloco, lambda: Outer(0.7, 0.6)),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("steps", [23, 24])
@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("fragments", [2, 3])
@pytest.mark.parametrize("name", RULES)
def test_rounds_of_parts(name: str, fragments: int, late: int, steps: int) -> None:
    """24: the last step is an exchange, and then the other parts are sent."""
    recipe, outer = RULES[name]
    wanted = in_rounds(outer(), 6, fragments, steps, late, workers=2)
    assert_close(ran(recipe(6, fragments=fragments, overlap=late > 0), steps, late), wanted)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("fragments", [2, 3])
def test_equal_workers_are_all_in_a_round_of_those_that_are_there(fragments: int, late: int) -> None:
    wanted = in_rounds(Outer(0.7, 0.6), 6, fragments, 23, late, workers=2)
    assert_close(ran(ps.decoupled(6, fragments=fragments, overlap=late > 0), 23, late), wanted)


@pytest.mark.parametrize("fragments", [2, 3])
def test_parts_folded_as_they_come(fragments: int) -> None:
    wanted = one_by_one(6, fragments, 23, workers=3)
    assert_close(ran(ps.async_local_sgd(6, fragments=fragments, overlap=False), 23, workers=3), wanted)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("codec", [TopK(0.3), Int8()], ids=str)
def test_parts_that_travel_packed(codec: Codec, late: int) -> None:
    """Both ways; top-k to the server alone. What packing left out of a part is in what is sent, or shown, of it next."""
    back = None if isinstance(codec, TopK) else codec
    wanted = in_rounds(Outer(0.7, 0.6), 6, 2, 23, late, 2, codec, back)
    assert_close_by_steps(ran(ps.diloco(6, fragments=2, codec=codec, overlap=late > 0), 23, late), wanted)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("steps", [23, 24])
@pytest.mark.parametrize("recipe", [ps.local_sgd, ps.async_local_sgd])
def test_one_worker_is_plain_pytorch(recipe: Callable[..., Strategy], steps: int, late: int) -> None:
    """To rounding: nobody else moves any part."""
    got = ran(recipe(6, fragments=3, overlap=late > 0), steps, late, workers=1)
    for name, value in loops.plain_pytorch(loops.mlp, loops.momentum, steps).items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("late", [0, 1])
def test_a_loop_that_says_when_it_contributes(late: int) -> None:
    """Also of no samples: what was done before stays, and is sent. In the end all is in the weights."""

    def train(worker: ps.Worker) -> None:
        inputs, labels = loops.data()
        model = loops.mlp()
        model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
        for step in range(9):
            rows = loops.rows_of(step, 8, 96)
            loops.descend(optimizer, loops.loss_of(model, inputs[rows], labels[rows]))
            if step in (2, 3, 8):
                worker.contribute(samples=8)
                worker.contribute(samples=0)

    engine = ps.Simulated(Cluster((Group(1, Constant(1.0), Link(latency_s=(late - 0.5) / 2) if late else Link()),)))
    run = ps.run(train, ps.local_sgd(30, fragments=3, overlap=late > 0), workers=1, engine=engine)
    for name, value in loops.plain_pytorch(loops.mlp, loops.momentum, 9).items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-5, atol=1e-6)
