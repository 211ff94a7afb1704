"""Momentum per worker with look-ahead, against plain arithmetic; and one worker against torch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from plesio.core.events import Fold, Member
from plesio.memory import momenta
from plesio.memory.folder import build_folder
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.strategy.answers import AfterFold, Buffer, LookAhead, WorkerMomentum
from plesio.strategy.recipes.asynchronous import async_sgd, buffered
from plesio.strategy.recipes.synchronous import sync_sgd
from plesio.tensors import operands
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.carrying import Carried, hand_over
from plesio.tensors.optimizer_spec import OptimizerSpec, hyper_parameters

ELEMENTS = 24
EVALUATOR = -1
Vector = np.ndarray[Any, np.dtype[np.float64]]
Make = Callable[[Sequence[torch.Tensor]], Optimizer]


def fold(worker: int, version: int, scale: float) -> Fold:
    """What the sequencer says when `worker` contributed."""
    member = Member(worker, 1, version, 0, 1.0, 1, 1)
    return Fold(version, (member,), scale)


class Server:
    """A folder with its arenas, as the server process holds them, around one vector of numbers."""

    def __init__(
        self,
        make: Make,
        workers: int,
        specs: Sequence[TensorSpec],
        start: Sequence[torch.Tensor],
        strategy: Strategy | None = None,
    ) -> None:
        layout = Layout(specs)
        ring = Versions([Arena.private(layout) for _ in range(workers + 3)])
        for buffer in ring.buffers:
            for view, value in zip(buffer.views, start, strict=True):
                view.copy_(value)
        self.ring = ring
        self.workers = workers
        self.slots = [Arena.private(layout) for _ in range(workers)]
        self.momenta: list[Arena] = []
        self.version = 0
        trained = [one.clone() for one, spec in zip(start, specs, strict=True) if spec.kind is Kind.TRAINED]
        spec = OptimizerSpec.of(make(trained))
        self.folder = build_folder(
            strategy or async_sgd(), [spec], ring, self.slots, workers, partial(self._new, layout)
        )
        for worker in range(workers):
            self.folder.publish(worker)

    def _new(self, layout: Layout, what: str) -> Arena:
        arena = Arena.private(layout)
        if what.startswith("momentum "):
            self.momenta.append(arena)
        return arena

    def push(self, worker: int, gradient: Sequence[torch.Tensor], scale: float | None = None) -> None:
        """Fold a gradient and send its worker on."""
        for view, value in zip(self.slots[worker].views, gradient, strict=True):
            view.copy_(value)
        self.version += 1
        self.folder.fold(fold(worker, self.version, 1.0 / self.workers if scale is None else scale))
        self.folder.publish(worker)

    def hold(self, worker: int, gradient: Sequence[torch.Tensor]) -> None:
        """Hold a gradient and send its worker on."""
        for view, value in zip(self.slots[worker].views, gradient, strict=True):
            view.copy_(value)
        self.folder.hold(worker, 1.0)
        self.folder.publish(worker)

    def fold_held(self, workers: Sequence[int], version: int, scale: float) -> None:
        """Fold what these workers had held, in this order."""
        members = tuple(Member(worker, 1, version, 0, 1.0 / len(workers), 1, 1) for worker in workers)
        self.folder.fold(Fold(version, members, scale, held=float(len(workers))))

    def sent(self, worker: int) -> list[torch.Tensor]:
        """What `worker` reads."""
        return list(self.ring.of(worker).views)

    def now(self) -> list[torch.Tensor]:
        """The global parameters."""
        return list(self.ring.buffers[self.folder.snapshot(EVALUATOR)].views)


class Plain:
    """The rule, with a vector for everything."""

    def __init__(self, workers: int, start: Vector, kind: type[Optimizer], settings: dict[str, Any]) -> None:
        self.n, self.w, self.kind, self.settings = workers, start.copy(), kind, settings
        self.v = [np.zeros_like(start) for _ in range(workers)]
        self.s, self.s_max, self.steps = np.zeros_like(start), np.zeros_like(start), 0
        self.live = set(range(workers))
        self.sent = [start.copy() for _ in range(workers)]
        self.gap_sum = self.gap_weight = 0.0
        self.scale: float | None = None
        self.ahead = np.zeros_like(start)

    def push(self, i: int, g: Vector, scale: float | None = None) -> None:
        self.fold(i, self.damped(i, g), scale)
        self.send(i)

    def damped(self, i: int, g: Vector) -> Vector:
        return self._damped(g, np.abs(self.w - self.sent[i]))

    def fold(self, i: int, g: Vector, scale: float | None = None) -> None:
        scale = 1.0 / self.n if scale is None else scale
        if "betas" in self.settings:
            scale *= self.n**0.25
        self.scale = scale if self.scale is None else self.scale + (scale - self.scale) / self.n
        self.steps += 1
        if "betas" in self.settings:
            self._adam(i, g, scale)
        else:
            self._sgd(i, g, scale)
        self.ahead = self.look_ahead()

    def begin_from(self, optimizer: Optimizer) -> None:
        """Everybody's momentum is the optimizer's; a shared second moment has seen everybody's steps."""
        states = [optimizer.state[one] for one in optimizer.param_groups[0]["params"]]
        whole = {key: flat([state[key] for state in states]) for key in states[0] if key != "step"}
        self.v = [whole.get("exp_avg", whole.get("momentum_buffer")).copy() for _ in range(self.n)]
        self.s = whole.get("exp_avg_sq", self.s).copy()
        self.s_max = whole.get("max_exp_avg_sq", self.s_max).copy()
        self.steps = self.n * int(states[0].get("step", 0))
        self.scale = 1.0 / self.n * (self.n**0.25 if "betas" in self.settings else 1.0)
        self.ahead = self.look_ahead()

    def send(self, i: int) -> None:
        self.sent[i] = self.w - (1 - 1 / len(self.live)) * (self.scale or 0.0) * self.ahead

    def _damped(self, g: Vector, gap: Vector) -> Vector:
        before = self.gap_sum / self.gap_weight if self.gap_weight else 0.0
        if gap.mean() > 0:
            self.gap_sum = 0.99 * self.gap_sum + 0.01 * float(gap.mean())
            self.gap_weight = 0.99 * self.gap_weight + 0.01
        return g / (1 + gap / (4 * before)) if before else g

    def look_ahead(self) -> Vector:
        lr = self.settings["lr"]
        if "betas" in self.settings:
            return lr * self.settings["betas"][0] * sum(self.v) / self._divisor()
        mu = self.settings["momentum"]
        return lr * (mu * mu if self.settings.get("nesterov") else mu) * sum(self.v)

    def _divisor(self) -> Vector:
        """Of an Adam step: the root of the second moment, times what takes the first one's bias away."""
        first, second = self.settings["betas"]
        s = self.s_max if self.settings.get("amsgrad") else self.s
        root = np.sqrt(s / (1 - second ** (self.steps / self.n))) + self.settings.get("eps", 1e-8)
        return root * (1 - first**self.steps)

    def _sgd(self, i: int, g: Vector, scale: float) -> None:
        lr, mu = self.settings["lr"], self.settings["momentum"]
        nesterov = self.settings.get("nesterov", False)
        g = g + self.settings.get("weight_decay", 0.0) * self.w
        self.v[i] = mu * self.v[i] + g
        self.w = self.w - scale * lr * (g + mu * self.v[i] if nesterov else self.v[i])

    def _adam(self, i: int, g: Vector, scale: float) -> None:
        lr, decay = self.settings["lr"], self.settings.get("weight_decay", 0.0)
        first, second = self.settings["betas"]
        second = second ** (1 / self.n)
        if self.kind is AdamW:
            self.w = self.w * (1 - scale * self.n**-0.25 * lr * decay)  # by its share of the samples
        else:
            g = g + decay * self.w
        self.v[i] = first * self.v[i] + (1 - first) * g
        self.s = second * self.s + (1 - second) * g * g
        self.s_max = np.maximum(self.s_max, self.s)
        self.w = self.w - scale * lr * self.v[i] / self._divisor()

    def forget(self, i: int) -> None:
        self.live.discard(i)
        self.v[i] = np.zeros_like(self.v[i])


MOMENTUM = {"lr": 0.1, "momentum": 0.9}
BETAS = {"lr": 0.01, "betas": (0.9, 0.99)}
RULES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, MOMENTUM),
    (SGD, {**MOMENTUM, "nesterov": True}),
    (SGD, {**MOMENTUM, "weight_decay": 0.01}),
    (Adam, BETAS),
    (Adam, {**BETAS, "weight_decay": 0.01, "eps": 1e-3}),
    (Adam, {**BETAS, "amsgrad": True}),
    (AdamW, {**BETAS, "weight_decay": 0.1}),
]
# Sixteen and eight float64 fill whole 64-byte lines: no padding between them, and one vector describes both.
SPECS = (TensorSpec("a", (4, 4), "float64", Kind.TRAINED, 0), TensorSpec("b", (8,), "float64", Kind.TRAINED, 0))


def pair(
    kind: type[Optimizer], settings: dict[str, Any], workers: int, strategy: Strategy | None = None
) -> tuple[Server, Plain]:
    """The library and the plain rule, at the same start."""
    start = np.random.default_rng(1).normal(size=ELEMENTS)
    server = Server(lambda tensors: kind(tensors, **settings), workers, SPECS, shaped(start), strategy)
    return server, Plain(workers, start, kind, settings)


def shaped(vector: Vector) -> list[torch.Tensor]:
    whole = torch.from_numpy(vector)
    return [whole[:16].view(4, 4), whole[16:]]


def flat(tensors: Sequence[torch.Tensor]) -> Vector:
    result: Vector = torch.cat([one.reshape(-1) for one in tensors]).numpy()
    return result


def same(server: Server, plain: Plain) -> None:
    np.testing.assert_allclose(flat(server.now()), plain.w, rtol=1e-9, atol=1e-12)
    for worker in plain.live:
        np.testing.assert_allclose(flat(server.sent(worker)), plain.sent[worker], rtol=1e-9, atol=1e-12)


def drive(server: Server, plain: Plain, order: Sequence[int], scale: Callable[[int], float] | None = None) -> None:
    """The same gradients, of what each worker was sent, to both."""
    rng = np.random.default_rng(2)
    for worker in order:
        gradient = plain.sent[worker] * 0.5 + rng.normal(size=ELEMENTS)
        how_much = None if scale is None else scale(worker)
        server.push(worker, shaped(gradient), how_much)
        plain.push(worker, gradient, how_much)
        same(server, plain)


def out_of_order(workers: int, pushes: int = 60) -> list[int]:
    """Some come often, one hardly ever."""
    return random.Random(workers).choices(range(workers), weights=[1, *[5] * (workers - 1)], k=pushes)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("kind", "settings"), RULES)
def test_folding_matches_the_rule(kind: type[Optimizer], settings: dict[str, Any], workers: int) -> None:
    server, plain = pair(kind, settings, workers)
    assert server.folder.looks_ahead
    drive(server, plain, out_of_order(workers))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("kind", "settings"), RULES)
def test_folding_continues_from_initial_optimizer_state(
    kind: type[Optimizer], settings: dict[str, Any], workers: int
) -> None:
    server, plain = pair(kind, settings, workers)
    tensors = [one.clone().requires_grad_() for one in shaped(plain.w)]
    optimizer = kind(tensors, **settings)
    for gradient in np.random.default_rng(3).normal(size=(4, ELEMENTS)):
        for tensor, part in zip(tensors, shaped(gradient), strict=True):
            tensor.grad = part
        optimizer.step()
    carried = Carried.by(optimizer, tensors)
    assert carried is not None
    arenas = [Arena.private(Layout(SPECS)) for _ in range(1 + len(carried.keys))]
    plain.begin_from(optimizer)
    hand_over(optimizer, carried, tensors, arenas, first=True)
    server.folder.begin_from(carried, arenas[1:])
    for worker in range(workers):
        server.folder.publish(worker)
        plain.send(worker)
    same(server, plain)
    drive(server, plain, out_of_order(workers, 20))


@pytest.mark.parametrize(("kind", "settings"), RULES)
def test_momentum_of_a_departed_worker_is_ignored(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    server, plain = pair(kind, settings, 3)
    drive(server, plain, [0, 1, 2, 1, 0, 2])
    server.folder.forget(1)
    plain.forget(1)
    drive(server, plain, [0, 2, 2, 0])
    server.folder.forget(0)
    plain.forget(0)
    drive(server, plain, [2, 2, 2])
    np.testing.assert_array_equal(flat(server.sent(2)), flat(server.now()), "nobody is left to look ahead to")


@pytest.mark.parametrize(("kind", "settings"), RULES)
def test_contributions_are_scaled(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    server, plain = pair(kind, settings, 3)
    drive(server, plain, out_of_order(3), scale=lambda worker: 1 / (3 + worker))


@pytest.mark.parametrize(("kind", "settings"), RULES)
def test_buffered_contributions_are_folded_together(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    """Held contributions move nothing until the fold; each then moves its worker's momentum, in order."""
    server, plain = pair(kind, settings, 4, buffered(3))
    rng = np.random.default_rng(2)
    for version, members in enumerate([(0, 1, 2), (2, 2, 3), (1, 0, 1), (3, 0, 2)], start=1):
        held = []
        for worker in members:
            gradient = plain.sent[worker] * 0.5 + rng.normal(size=ELEMENTS)
            held.append(plain.damped(worker, gradient))
            server.hold(worker, shaped(gradient))
            plain.send(worker)
            same(server, plain)
        server.fold_held(members, version, 3 / 4)
        for worker, gradient in zip(members, held, strict=True):
            plain.fold(worker, gradient)
        for worker in members[:1]:
            server.folder.publish(worker)
            plain.send(worker)
        same(server, plain)


def test_a_departed_workers_held_contribution_leaves_no_momentum() -> None:
    server, _ = pair(SGD, MOMENTUM, 3, buffered(2))
    server.hold(0, shaped(np.ones(ELEMENTS)))
    server.folder.forget(0)
    server.hold(1, shaped(np.ones(ELEMENTS)))
    server.fold_held((0, 1), 1, 2 / 3)
    assert not server.momenta[0].flat[0].any(), "it counts, but will not act any more"
    assert server.momenta[1].flat[0].any()


def test_the_sum_of_momenta_is_recomputed_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(momenta, "RESUM_EVERY", 4)
    server, plain = pair(SGD, MOMENTUM, 3)
    drive(server, plain, out_of_order(3))
    server.slots[0].memory.zero_()
    assert server.folder.looks_ahead
    total = server.folder._step.sum
    whole = server.momenta[0].flat[0] + server.momenta[1].flat[0] + server.momenta[2].flat[0]
    assert torch.equal(total.flat[0], whole), "60 pushes: just added up afresh"


def test_chunk_size_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "CHUNK", 5)
    server, plain = pair(Adam, BETAS, 2)
    drive(server, plain, out_of_order(2, 20))


def test_new_settings_apply_to_the_next_fold() -> None:
    server, plain = pair(Adam, BETAS, 2)
    drive(server, plain, [0, 1, 1])
    plain.settings = {**BETAS, "lr": 0.002, "betas": (0.8, 0.99)}
    groups = hyper_parameters(Adam([torch.zeros(1)], **plain.settings))
    for worker in (0, 1):
        server.folder.set_groups(worker, msgspec.msgpack.decode(msgspec.msgpack.encode(groups)))
    drive(server, plain, [0, 1, 1])


def test_a_workers_parameters_are_stable_until_its_push() -> None:
    server, _ = pair(SGD, MOMENTUM, 3)
    server.push(1, shaped(np.ones(ELEMENTS)))
    held = flat(server.sent(1)).copy()
    for worker in (0, 2, 2, 0, 0, 2):
        server.push(worker, shaped(np.ones(ELEMENTS)))
        server.now()
        np.testing.assert_array_equal(flat(server.sent(1)), held)


def test_workers_get_the_parameters_extrapolated_by_momentum() -> None:
    """After each other worker's next push the parameters are near what was sent."""
    server, _ = pair(SGD, MOMENTUM, 8)
    for worker in range(8):
        server.push(worker, shaped(np.ones(ELEMENTS)))
    sent, before = flat(server.sent(7)).copy(), flat(server.now()).copy()
    for worker in range(7):
        server.push(worker, shaped(np.zeros(ELEMENTS)))
    np.testing.assert_allclose(sent - before, flat(server.now()) - before, rtol=0.02)


ODD = (
    TensorSpec("a", (3, 5), "float32", Kind.TRAINED, 0),
    TensorSpec("statistics", (3,), "float32", Kind.BUFFER),
    TensorSpec("b", (7,), "float32", Kind.TRAINED, 1),
    TensorSpec("c", (5,), "float32", Kind.TRAINED, 0),
)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SGD, {"lr": 0.1}),
        (SGD, MOMENTUM),
        (SGD, {**MOMENTUM, "nesterov": True, "weight_decay": 1e-3}),
        (SGD, {**MOMENTUM, "dampening": 0.3, "maximize": True}),
        (Adam, BETAS),
        (Adam, {**BETAS, "amsgrad": True, "weight_decay": 0.01}),
        (AdamW, {"lr": 0.01}),
        (RMSprop, {**MOMENTUM, "centered": True}),
    ],
)
def test_one_worker_equals_the_plain_optimizer_bit_for_bit(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    def make(tensors: Sequence[torch.Tensor]) -> Optimizer:
        a, b, c = tensors
        return kind([{"params": [a, c]}, {"params": [b], "lr": 0.03}], **settings)

    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(spec.shape, generator=generator) for spec in ODD]
    server = Server(make, 1, ODD, start)
    mine = [start[0].clone(), start[2].clone(), start[3].clone()]
    optimizer = make(mine)
    for step in range(40):
        if step == 20:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            server.folder.set_groups(0, hyper_parameters(optimizer))
        gradient = [torch.randn(spec.shape, generator=generator) for spec in ODD]
        server.push(0, gradient)
        for tensor, slope in zip(mine, (gradient[0], gradient[2], gradient[3]), strict=True):
            tensor.grad = slope
        optimizer.step()
        for read in (server.sent(0), server.now()):
            trained = (read[0], read[2], read[3])
            assert all(torch.equal(got, want) for got, want in zip(trained, mine, strict=True)), f"step {step}"
            assert torch.equal(read[1], gradient[1]), "a model's buffers are taken over whole"


NORMED = (
    TensorSpec("a", (5,), "float32", Kind.TRAINED, 0),
    TensorSpec("statistics", (3,), "float32", Kind.BUFFER),
)


@pytest.mark.parametrize("settings", [MOMENTUM, {"lr": 0.1}], ids=["look-ahead", "no momentum"])
def test_buffers_move_by_the_share_of_contributing_workers(settings: dict[str, Any]) -> None:
    start, ones = ([make(spec.shape) for spec in NORMED] for make in (torch.zeros, torch.ones))
    server = Server(partial(SGD, **settings), 4, NORMED, start)
    for worker, wanted in ((1, 1 / 4), (2, 1 - (3 / 4) ** 2)):
        server.push(worker, ones)
        for read in (server.sent(worker), server.now()):
            torch.testing.assert_close(read[1], torch.full((3,), wanted))


def test_buffers_move_by_the_share_of_buffered_contributions() -> None:
    start, ones = ([make(spec.shape) for spec in NORMED] for make in (torch.zeros, torch.ones))
    server = Server(partial(SGD, lr=0.1), 4, NORMED, start, buffered(2))
    for worker in (0, 3):
        server.hold(worker, ones)
    torch.testing.assert_close(server.now()[1], torch.zeros(3))
    server.fold_held((0, 3), 1, 1 / 2)
    torch.testing.assert_close(server.now()[1], torch.full((3,), 1 / 2))


@pytest.mark.parametrize(("kind", "settings"), [(SGD, MOMENTUM), (Adam, {"lr": 0.01})])
def test_a_folder_that_is_scaled_folds_as_one_of_that_many_workers(
    kind: type[Optimizer], settings: dict[str, Any]
) -> None:
    start = shaped(np.linspace(-1.0, 1.0, ELEMENTS))
    scaled, plain = (Server(partial(kind, **settings), workers, SPECS, start) for workers in (4, 2))
    for absent in (2, 3):
        scaled.folder.forget(absent)
    scaled.folder.share_among(2)
    for turn in range(6):
        for server in (scaled, plain):
            server.push(turn % 2, shaped(np.linspace(1.0, turn, ELEMENTS)), scale=1 / 2)
        torch.testing.assert_close(scaled.sent(turn % 2), plain.sent(turn % 2))


def test_adams_second_moment_goes_on_when_workers_come() -> None:
    """As many samples as before count in it, so that its root stays what it was. The rate goes by the power of 1/4."""
    server, ones = Server(partial(Adam, lr=0.01), 4, SPECS, shaped(np.zeros(ELEMENTS))), shaped(np.ones(ELEMENTS))
    server.folder.share_among(2)
    moved = []
    for turn in range(80):
        if turn == 76:
            server.folder.share_among(4)
        before = [one.clone() for one in server.now()]
        server.push(0, ones, scale=1.0)
        moved.append(float((before[0] - server.now()[0]).abs().max()))
    assert moved[76:] == pytest.approx([2 ** (1 / 4) * moved[75]] * 4, rel=0.005)


def test_an_optimizer_without_momentum_is_folded_plainly() -> None:
    for make in (partial(SGD, lr=0.1), partial(Adagrad, lr=0.1)):
        assert not Server(make, 2, SPECS, shaped(np.zeros(ELEMENTS))).folder.looks_ahead


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_momentum_in_one_group_enables_look_ahead(first: float) -> None:
    make = groups_of(SGD, {**MOMENTUM, "momentum": first}, {"momentum": 0.9 - first})
    assert Server(make, 2, APART, shaped(np.zeros(ELEMENTS))).folder.looks_ahead


DAMPENED = {**MOMENTUM, "dampening": 0.3}


def test_a_rejoining_workers_first_momentum_is_undampened() -> None:
    """It is the whole first gradient; dampening starts with the second."""
    server, _ = pair(SGD, DAMPENED, 2)
    for worker, momentum in ((0, 1.0), (0, 0.9 + 0.7), (1, 1.0)):
        server.push(worker, shaped(np.ones(ELEMENTS)))
        np.testing.assert_allclose(server.momenta[worker].flat[0].numpy(), momentum)
        server.ring.of(worker).copy_from(server.ring.buffers[server.folder.snapshot(EVALUATOR)])  # no gap to damp
    server.folder.forget(0)
    server.folder.publish(0)
    server.push(1, shaped(np.zeros(ELEMENTS)))
    server.folder.publish(0)
    server.ring.of(0).copy_from(server.ring.buffers[server.folder.snapshot(EVALUATOR)])
    server.push(0, shaped(np.ones(ELEMENTS)))
    np.testing.assert_allclose(server.momenta[0].flat[0].numpy(), 1.0)


def test_initial_momentum_is_dampened_from_the_next_gradient() -> None:
    tensors = shaped(np.random.default_rng(1).normal(size=ELEMENTS))
    optimizer = SGD(tensors, **DAMPENED)
    gradients = [shaped(one) for one in np.random.default_rng(3).normal(size=(5, ELEMENTS))]

    def step(gradient: Sequence[torch.Tensor]) -> None:
        for tensor, slope in zip(tensors, gradient, strict=True):
            tensor.grad = slope
        optimizer.step()

    step(gradients[0])
    step(gradients[1])
    server = Server(lambda new: SGD(new, **DAMPENED), 1, SPECS, tensors)
    carried = Carried.by(optimizer, tensors)
    assert carried is not None
    arenas = [Arena.private(Layout(SPECS)) for _ in range(1 + len(carried.keys))]
    torch_goes_on = copy.deepcopy(optimizer.state_dict())
    hand_over(optimizer, carried, tensors, arenas, first=True)
    optimizer.load_state_dict(torch_goes_on)
    server.folder.begin_from(carried, arenas[1:])
    for gradient in gradients[2:]:
        server.push(0, gradient, 1.0)
        step(gradient)
        assert all(torch.equal(got, want) for got, want in zip(server.now(), tensors, strict=True))


APART = (SPECS[0], TensorSpec("b", (8,), "float64", Kind.TRAINED, 1))


def resumed(server: Server, make: Make, strategy: Strategy) -> Server:
    """A server that goes on from what this one keeps, as a checkpoint does; a file makes lists of tuples."""
    again = Server(make, server.workers, APART, server.now(), strategy)
    tensors, numbers = server.folder.kept()
    again.folder.begin_anew()
    again.folder.state.restore(msgspec.json.decode(msgspec.json.encode(numbers)), tensors)
    assert again.folder.kept().tensors.keys() == tensors.keys()
    for worker in range(server.workers):
        again.folder.publish(worker)
    return again


def groups_of(kind: type[Optimizer], settings: dict[str, Any], other: dict[str, Any]) -> Make:
    """The first tensor with `settings`, the second one with `other` beside."""
    return lambda tensors: kind([{"params": [tensors[0]]}, {"params": [tensors[1]], **other}], **settings)


@pytest.mark.parametrize("resume_at", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        (groups_of(SGD, {**MOMENTUM, "dampening": 0.3}, {}), async_sgd()),
        (groups_of(SGD, {**MOMENTUM, "momentum": 0.0}, {"momentum": 0.9, "dampening": 0.3}), async_sgd()),
        (groups_of(Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1}, {}), sync_sgd()),
    ],
    ids=["dampening", "momentum of the second group alone", "Adagrad"],
)
def test_one_worker_resumes_from_a_checkpoint_bit_for_bit(make: Make, strategy: Strategy, resume_at: int) -> None:
    """Also from before the first fold, and after a first gradient of zeros."""
    start = shaped(np.random.default_rng(1).normal(size=ELEMENTS))
    mine = [one.clone() for one in start]
    optimizer, server = make(mine), Server(make, 1, APART, start, strategy)
    for step in range(8):
        if step == resume_at:
            server = resumed(server, make, strategy)
        gradient = shaped(np.random.default_rng(step).normal(size=ELEMENTS) * (step > 0))
        for tensor, slope in zip(mine, gradient, strict=True):
            tensor.grad = slope
        optimizer.step()
        server.push(0, gradient, 1.0)
        assert all(torch.equal(got, want) for got, want in zip(server.now(), mine, strict=True)), f"step {step}"


def test_a_pending_contribution_of_a_dead_worker_is_folded_undamped() -> None:
    """Its base version is unknown: it counts undamped and leaves no momentum."""
    waiting = Strategy(
        name="waiting", gather=Buffer(2), release=AfterFold(), correct=WorkerMomentum(), adopt=LookAhead()
    )
    server, _ = pair(SGD, MOMENTUM, 2, waiting)
    before = flat(server.now()).copy()
    for slot in server.slots:
        for view in slot.views:
            view.fill_(1.0)
    server.folder.forget(0)
    members = tuple(Member(worker, 1, 1, 0, 0.5, 1, 1) for worker in (0, 1))
    server.folder.fold(Fold(1, members, 1.0))
    np.testing.assert_allclose(flat(server.now()), before - 0.1)
    assert not server.momenta[0].flat[0].any()
    assert server.momenta[1].flat[0].any()
