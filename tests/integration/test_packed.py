"""Deltas that travel packed."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.errors import StrategyError
from plesio.memory.packed import Packed
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.strategy.answers import Buffer, Cast, Codec, Delta, Equal, Int4, Int8, Outer, Replace, TopK
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.packing import Packing
from support import loops

CODECS: list[Codec] = [Cast(), Int8(), Int4(), TopK(0.2)]
SPECS = [
    TensorSpec("large", (40, 33), "float32", Kind.TRAINED, 0),
    TensorSpec("small", (1,), "float32", Kind.TRAINED, 1),
    TensorSpec("half", (70,), "bfloat16", Kind.TRAINED, 0),
    TensorSpec("frozen", (5,), "float32", Kind.FROZEN),
    TensorSpec("mean", (9,), "float32", Kind.BUFFER),
    TensorSpec("count", (), "int64", Kind.BUFFER),
]


def drawn(seed: int, size: float = 1.0) -> Arena:
    arena, source = Arena.private(Layout(SPECS)), torch.Generator().manual_seed(seed)
    for view in arena.views:
        numbers = torch.randn(view.shape, generator=source) * size
        view.copy_(numbers if view.is_floating_point() else numbers.abs() * 10)
    return arena


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_each_number_of_each_segment_is_in_the_mean_once(codec: Codec) -> None:
    layout = Layout(SPECS)
    packing, start, ends = Packing(layout, codec), drawn(0), [drawn(seed) for seed in (1, 2, 3)]
    slots = [Arena.private(layout) for _ in ends]
    held = [packing.memory() for _ in ends]
    for end, slot, error in zip(ends, slots, held, strict=True):
        packing.pack(start, end, slot, error)
    shares = [0.5, 0.3, 0.2]
    mean = packing.mean_into(Arena.private(layout), slots, shares)
    for place in (0, 1, 2):
        lacking = sum(share * one.views[place] for share, one in zip(shares, held, strict=True))
        wanted = sum(share * (start.views[place] - one.views[place]) for share, one in zip(shares, ends, strict=True))
        tolerance = 0.05 if place == 2 else 1e-5
        torch.testing.assert_close(mean.views[place] + lacking, wanted, rtol=tolerance, atol=tolerance)
    assert torch.equal(mean.views[5], torch.stack([one.views[5] for one in ends]).max())
    assert packing.nbytes() <= layout.nbytes
    assert packing.is_sound(slots[0])


def weights(strategy: Strategy, steps: int = 24) -> dict[str, torch.Tensor]:
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.momentum, steps=steps)
    return ps.run(train, strategy, workers=2, engine=ps.Simulated("uniform")).state_dict


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("recipe", [ps.local_sgd, ps.diloco], ids=lambda one: one.__name__)
def test_packed_deltas_train_nearly_as_plain_ones(recipe: Any, codec: str) -> None:
    plain, packed = weights(recipe(4)), weights(recipe(4, codec=codec))
    for name, value in plain.items():
        assert float((packed[name].float() - value.float()).abs().max()) < (0.3 if codec == "int4" else 0.02), name


def test_packed_deltas_are_held_in_a_buffer() -> None:
    def strategy(codec: Codec | None) -> Strategy:
        send, outer = Delta(codec), Outer("SGD", "share", lr=1.0)
        return Strategy(name="held", every=ps.Steps(2), send=send, gather=Buffer(2), weigh=Equal(), outer=outer)

    plain, packed = weights(strategy(None)), weights(strategy(Int8()))
    assert all(float((packed[name].float() - value.float()).abs().max()) < 0.05 for name, value in plain.items())


def test_the_report_counts_the_bytes_that_travel_and_fewer_are_sooner_over_a_slow_link() -> None:
    def train(worker: ps.Worker) -> None:
        model = nn.Linear(1000, 100, bias=False)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.steps(8):
            model(torch.ones(1, 1000)).sum().backward()
            optimizer.step()

    slow = ps.Simulated(ps.Cluster.preset("cross-region", 2).first(1))
    found = {
        codec: ps.run(train, ps.local_sgd(2, codec=codec), workers=1, engine=slow).summary
        for codec in (None, "int8", "int4")
    }
    assert found["int4"].wall_s < found["int8"].wall_s < found[None].wall_s
    exchanges, numbers = 4, 100_000
    assert found[None].bytes == exchanges * numbers * 8
    assert found["int8"].bytes == 2 * exchanges * (numbers + 4 * math.ceil(numbers / 256))
    assert found["int4"].bytes == 2 * exchanges * (numbers // 2 + 4 * math.ceil(numbers / 256))


@pytest.mark.filterwarnings("ignore:.*held a NaN")
def test_a_delta_that_is_not_finite_is_not_remembered() -> None:
    """Without the poisoned steps, which count for nothing, the run is the same."""

    def train(worker: ps.Worker, poisoned: bool) -> None:
        torch.manual_seed(0)
        model = nn.Linear(300, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(6):
            if step == 3 and poisoned:
                with torch.no_grad():
                    model.weight.mul_(float("nan"))
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
                continue
            if step == 3:
                continue
            loops.descend(optimizer, model(torch.full((2, 300), 0.01 * (step + 1))).square().mean())

    strategy = dataclasses.replace(ps.local_sgd(1, codec="int4"), adopt=Replace())
    one, other = (
        ps.run(partial(train, poisoned=flag), strategy, workers=1, engine=ps.Simulated("uniform"))
        for flag in (True, False)
    )
    assert sum(one.discarded.values()) == 1
    for name, value in other.state_dict.items():
        assert torch.equal(one.state_dict[name], value)


def test_feedback_may_be_left_out() -> None:
    strategy = ps.local_sgd(4, codec=TopK(0.1))
    without = dataclasses.replace(strategy, send=Delta(TopK(0.1), feedback=False))
    assert str(without.send) == "delta, top 10%, without feedback"
    assert Strategy.from_data("own", without.as_data()).send == without.send
    one, other = weights(strategy), weights(without)
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def shows(worker: ps.Worker, folder: str) -> None:
    """Writes down what it was shown at each version."""
    torch.manual_seed(0)
    model = nn.Linear(300, 2)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    source = torch.Generator().manual_seed(worker.rank)
    for step in range(12):
        loops.descend(optimizer, model(torch.randn(4, 300, generator=source)).square().mean())
        torch.save(model.weight.detach().clone(), f"{folder}/{worker.rank}-{step}")


@pytest.mark.parametrize("strategy", [ps.local_sgd(1, codec="int4"), ps.async_local_sgd(1, codec="int8")], ids=str)
def test_shown_parameters_stay_near_the_true_ones(strategy: Strategy, tmp_path: Path) -> None:
    run = ps.run(partial(shows, folder=str(tmp_path)), strategy, workers=3, engine=ps.Simulated("uniform"))
    last = [torch.load(tmp_path / f"{rank}-11") for rank in range(3)]
    true, begun = run.state_dict["weight"], torch.load(tmp_path / "0-0")
    moved = float((true - begun).abs().max())
    if strategy.in_lock_step:
        assert torch.equal(last[0], last[1])
        assert torch.equal(last[0], last[2])
        assert not torch.equal(last[0], true), "they are about the true ones"
        assert float((last[0] - true).abs().max()) < 0.1 * moved


def test_all_workers_of_a_round_share_one_packing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packings = []
    pack = Packing.pack

    def counted(self: Packing, start: Arena, now: Arena, slot: Arena, held: Arena | None, part: int) -> None:
        packings.append(held is None)
        pack(self, start, now, slot, held, part)

    monkeypatch.setattr(Packing, "pack", counted)
    train = partial(shows, folder=str(tmp_path))
    run = ps.run(train, ps.local_sgd(1, codec="int8"), workers=3, engine=ps.Simulated("uniform"))
    assert packings.count(True) == run.version == 12
    assert packings.count(False) == 36


def test_a_contribution_with_a_nan_gradient_leaves_the_error_memory_alone() -> None:
    """Its parameters are finite, for the step was left out; what it packs is discarded."""

    def half_bad(worker: ps.Worker) -> None:
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        replica = worker._exchange.replica  # type: ignore[union-attr]
        for number in worker.steps(8):
            before = replica._left_out.memory.clone()
            inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
            loops.descend(optimizer, model(inputs).square().mean() * (float("nan") if number == 4 else 1.0))
            if number % 2:
                changed.append(not torch.equal(before, replica._left_out.memory))

    changed: list[bool] = []
    with pytest.warns(RuntimeWarning, match="NaN"):
        ps.run(half_bad, ps.local_sgd(2, codec="int4"), workers=1, engine=ps.Simulated("uniform"))
    assert changed == [True, True, False, True]


def test_who_is_answered_twice_at_a_version_is_shown_its_buffers_again() -> None:
    layout = Layout(SPECS)
    ring, packed = [drawn(0) for _ in range(4)], [drawn(1) for _ in range(4)]
    versions = Versions(ring)
    shown = Packed(Int8(), versions, packed)
    shown.restore({"read": [[0, 0]], "made": [0]})
    (index,) = {versions.index_of(0)}
    assert shown.publish(0) == index
    moved = Arena.private(layout)
    moved.copy_from(ring[index])
    Packing(layout, Int8()).move(moved, packed[index])
    assert torch.equal(moved.memory, ring[index].memory), "a remote worker applies what lies there"


@pytest.mark.parametrize("codec", [5, 0.1, "int7", ""])
def test_what_is_no_codec_is_refused(codec: Any) -> None:
    words = f"unknown codec '{codec}'; known: bf16, fp16, int4, int8" if isinstance(codec, str) else "codec"
    for make in (lambda: ps.diloco(codec=codec), lambda: ps.local_sgd(codec=codec)):
        with pytest.raises(StrategyError, match=words):
            make()
    with pytest.raises(StrategyError, match=r"Delta\(codec=.*a codec, such as Int8\(\), or None"):
        Delta(codec)


@pytest.mark.parametrize("settings", [{"lr": math.nan}, {"momentum": 1.5}, {"momentum": None}])
def test_outer_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(StrategyError, match=next(iter(settings))):
        ps.diloco(**settings)
