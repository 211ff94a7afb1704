"""Parameters of half precision, which the server steps in float32: the folder against loops in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

import plesio as ps
from plesio.core.events import Fold, Member
from plesio.memory.folder import Folder, build_folder, state_copies
from plesio.memory.gather import held_by
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.strategy.answers import Average, Privacy
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.outer_optimizer import described

Make = Callable[[list[torch.nn.Parameter]], Optimizer]
SIZE = 70
"""Padded otherwise in bfloat16 than in float32."""
SPECS = (
    TensorSpec("w", (SIZE,), "bfloat16", Kind.TRAINED, 0),
    TensorSpec("exact", (3,), "float32", Kind.TRAINED, 0),
    TensorSpec("b", (5, 2), "bfloat16", Kind.TRAINED, 0),
    TensorSpec("mean", (2,), "bfloat16", Kind.BUFFER),
    TensorSpec("fixed", (2,), "bfloat16", Kind.FROZEN),
)
OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(SGD, lr=0.001),
    "momentum": partial(SGD, lr=0.001, momentum=0.9, weight_decay=0.01),
    "adamw": partial(AdamW, lr=0.001),
    "rmsprop": partial(RMSprop, lr=0.001),
    "adagrad": partial(Adagrad, lr=0.01),
}
ONE_BY_ONE: dict[str, Callable[[], Strategy]] = {
    "sync_sgd": ps.sync_sgd,
    "async_sgd": ps.async_sgd,
    "async_sgd plain": partial(ps.async_sgd, "plain"),
    "gap_aware": partial(ps.async_sgd, "gap_aware"),
    "delay_compensated": partial(ps.async_sgd, "delay_compensated"),
}


class Server:
    """A folder around tensors of `specs`, which are ones at first."""

    def __init__(
        self, strategy: Strategy, make: Make | None = None, workers: int = 1, specs: Sequence[TensorSpec] = SPECS
    ) -> None:
        self.strategy, self.workers, self.version = strategy, workers, 0
        layout = Layout(specs)
        codec = strategy.adopt.codec is not None
        blocks = [Arena.private(layout) for _ in range((workers + 3) * (1 + codec))]
        self.ring, packed = Versions(blocks[: workers + 3]), blocks[workers + 3 :]
        self.slots = [Arena.private(layout) for _ in range(workers)]
        for buffer in self.ring.buffers:
            for view in buffer.views:
                view.fill_(1.0)
        made: list[OptimizerSpec] = []
        if make is not None:
            made = [OptimizerSpec.of(make([torch.nn.Parameter(torch.zeros(2))]))]
        elif strategy.outer.own_optimizer:
            made = [described(strategy.outer, 1, workers)]
        self.arenas = 0
        self.folder: Folder = build_folder(strategy, made, self.ring, self.slots, workers, self._new(layout), packed)
        for worker in range(workers):
            self.folder.publish(worker)

    def _new(self, layout: Layout) -> Callable[[str], Arena]:
        def new(_: str) -> Arena:
            self.arenas += 1
            return Arena.private(layout.wide)

        return new

    def fold(self, came: Sequence[float | torch.Tensor]) -> None:
        """One contribution of each of the first workers, of which each tensor is filled with its number."""
        self.version += 1
        for worker, value in enumerate(came):
            for view in self.slots[worker].views:
                view.copy_(torch.as_tensor(value).expand(view.shape))
            if held_by(self.strategy):
                self.folder.hold(worker, 1.0)
        share = 1 / len(came)
        members = tuple(Member(worker, 1, self.version, 0, share, 1, 1) for worker in range(len(came)))
        scale = self.strategy.outer.scale(len(came), self.workers)
        held = float(len(came)) if held_by(self.strategy) else None
        self.folder.fold(Fold(self.version, members, scale, held))
        for worker in range(self.workers):
            self.folder.publish(worker)

    @property
    def shown(self) -> Arena:
        return self.ring.buffers[self.ring.current]

    @property
    def master(self) -> dict[str, torch.Tensor]:
        kept = self.folder.kept().tensors
        return {key: value for key, value in kept.items() if key.startswith("master ")}


@pytest.fixture(params=[False, True], ids=["small", "kernels"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        for place in ("one_pass", "server_optimizer"):
            monkeypatch.setattr(f"plesio.tensors.{place}.LARGE", 0)
        monkeypatch.setattr("plesio.memory.folder.LARGE", 0)


def test_torch_alone_loses_small_steps() -> None:
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = SGD([weight], lr=1e-4)
    weight.grad = -torch.ones(1, dtype=torch.bfloat16)
    for _ in range(10):
        optimizer.step()
    assert weight.item() == 1.0


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd"])
def test_ten_thousand_small_steps_are_all_made(name: str) -> None:
    """Each of 1e-4 of the weight, in float32 to a thousandth."""
    server = Server(ONE_BY_ONE[name](), partial(SGD, lr=1e-4), specs=SPECS[:1])
    for _ in range(10_000):
        server.fold([-1.0])
    torch.testing.assert_close(server.master["master 0"], torch.full((SIZE,), 2.0), rtol=1e-3, atol=0)
    assert torch.equal(server.shown.views[0], server.master["master 0"].to(torch.bfloat16))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_one_worker_steps_as_the_optimizer_steps_float32(make: Make, name: str) -> None:
    """Bit for bit under SGD, else to float32's rounding; what is published is it, rounded; what is frozen stays."""
    server = Server(ONE_BY_ONE[name](), make)
    weights = [torch.nn.Parameter(torch.ones(spec.shape)) for spec in SPECS[:3]]
    optimizer = make(weights)
    source = torch.Generator().manual_seed(1)
    for _ in range(8):
        gradient = torch.randn((), generator=source).to(torch.bfloat16)
        server.fold([gradient])
        for weight in weights:
            weight.grad = gradient.float().expand(weight.shape).clone()
        optimizer.step()
        for place in (0, 2):
            exact = server.master[f"master {place}"]
            if isinstance(optimizer, SGD):
                assert torch.equal(exact, weights[place])
            torch.testing.assert_close(exact, weights[place].detach())
            assert torch.equal(server.shown.views[place], exact.to(torch.bfloat16))
        torch.testing.assert_close(server.shown.views[1], weights[1].detach())
    assert torch.equal(server.shown.views[3], gradient.expand(2))
    assert torch.equal(server.shown.views[4], torch.ones(2, dtype=torch.bfloat16))


SEVERAL: dict[str, tuple[Strategy, Make | None]] = {
    "sync_sgd": (ps.sync_sgd(), partial(SGD, lr=1.0)),
    "buffered": (ps.buffered(3, correct="plain"), partial(SGD, lr=1.0)),
    "diloco": (ps.diloco(5, lr=1.0, momentum=0.0), None),
    "diloco, packed": (ps.diloco(5, lr=1.0, momentum=0.0, codec="int8"), None),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_means_are_taken_in_float32(case: str) -> None:
    """1, 2^-7 and 2^-7 have a mean of more bits than bfloat16 has."""
    strategy, make = SEVERAL[case]
    server = Server(strategy, make, 3, SPECS[:1])
    came = [1.0, 2.0**-7, 2.0**-7]
    server.fold(came)
    torch.testing.assert_close(server.master["master 0"], torch.full((SIZE,), 1 - sum(came) / 3), rtol=1e-6, atol=0)


def test_a_mean_of_parameters_keeps_what_rounding_took_off() -> None:
    """One worker of four moves by the least that bfloat16 can: after four rounds that is one such step."""
    server = Server(ps.local_sgd(5), workers=4)
    least = 2.0**-7
    for steps in range(1, 9):
        shown = float(server.shown.views[0][0])
        server.fold([shown + least, shown, shown, shown])
        assert torch.equal(server.master["master 0"], torch.full((SIZE,), 1 + steps * least / 4))
    assert float(server.shown.views[0][0]) == 1 + 2 * least


def test_parameters_move_a_small_part_of_the_way() -> None:
    """1/1000 of the way to 2 is less than bfloat16 can move by."""
    rate = 0.001
    server = Server(ps.elastic_averaging(alpha=rate))
    assert server.strategy.outer == Average(rate)
    for _ in range(100):
        server.fold([2.0])
    torch.testing.assert_close(server.master["master 0"], torch.full((SIZE,), 2 - (1 - rate) ** 100), rtol=1e-5, atol=0)


def test_noise_is_added_to_the_float32_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.tensors.noise.gaussian", lambda count: torch.full((count,), 2.0**-14))
    privacy = Privacy(clip=1.0, noise=1.0, delta=1e-5, per_round=1)
    server = Server(ps.fedavg(privacy=privacy), specs=SPECS[:3])
    server.fold([2.0**-3])
    moved = torch.full((SIZE,), 2.0**-3 + 2.0**-14)
    assert torch.equal(server.master["master 0"], 1 - moved)


@pytest.mark.parametrize("workers", [2])
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.buffered(2)], ids=["async_sgd", "buffered"])
def test_look_ahead_is_from_the_master_copy(strategy: Strategy, workers: int) -> None:
    """Steps that are too small for bfloat16, by several workers."""
    server = Server(strategy, partial(SGD, lr=1e-5, momentum=0.5), workers)
    for _ in range(300):
        server.fold([-1.0, -1.0][: int(strategy.gather.size(workers))])
    exact = server.master["master 0"]
    assert exact.unique().numel() == 1
    assert 1.002 < float(exact[0]) < 1.02
    assert torch.equal(server.shown.views[0], exact.to(torch.bfloat16))


def test_float16_is_stepped_in_float32_too() -> None:
    server = Server(ps.sync_sgd(), partial(SGD, lr=1e-5), specs=(TensorSpec("w", (3,), "float16", Kind.TRAINED, 0),))
    for _ in range(1000):
        server.fold([-1.0])
    torch.testing.assert_close(server.shown.views[0].float(), torch.full((3,), 1.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd(), ps.allreduce()], ids=str)
def test_without_half_precision_or_a_step_at_the_server_there_is_no_master(strategy: Strategy) -> None:
    specs = SPECS[1:2] if strategy.in_memory is None else SPECS
    layout = Layout(specs)
    assert (layout.wide is layout) == (strategy.in_memory is None)
    made = Server(
        strategy.in_memory or strategy, partial(SGD, lr=0.1) if strategy.in_memory is None else None, specs=specs
    )
    assert "master" not in made.folder.kept().numbers


@pytest.mark.parametrize("name", ["sync_sgd", "async_sgd", "buffered", "delay_compensated"])
def test_the_memory_that_is_checked_for_is_the_memory_that_is_taken(name: str) -> None:
    strategy = {**ONE_BY_ONE, "buffered": partial(ps.buffered, 2)}[name]()
    make = OPTIMIZERS["adamw"]
    server = Server(strategy, make, 2)
    server.fold([1.0, 1.0][: int(strategy.gather.size(2))])
    spec: Any = OptimizerSpec.of(make([torch.nn.Parameter(torch.zeros(2))]))
    assert server.arenas <= state_copies(strategy, [spec], Layout(SPECS), 2)
