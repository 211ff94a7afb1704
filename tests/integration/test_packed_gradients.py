"""What scripts do with gradients that travel packed. Recipe by recipe: conformance/test_packed_gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.errors import ConfigurationError, StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import Cast, Codec, Gradient, Int4, Int8, Median, Replace, TopK
from plesio.tensors.codecs import packer_for
from support.codec_twins import twin_of
from support.loops import descend
from support.runs import by_name

STEPS, LR = 10, 0.2
UNIFORM = ps.Simulated("uniform")


class Two(nn.Module):
    """Two weights that lie side by side in memory, so that they share a block of int8 and int4; the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Parameter(torch.randn(16, 20) / 4)
        self.second = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        hidden = torch.tanh(x @ self.first.T)
        return torch.tanh(hidden @ self.second) if both else hidden


def batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * rank + number))


def loss_of(model: nn.Module, rank: int, number: int, both: bool = True) -> torch.Tensor:
    x = batch(rank, number)
    loss: torch.Tensor = (model(x, both) - x[:, :16].sign()).square().mean()
    return loss


class Packer:
    """One worker's packings, in torch's operations. Where the second does not count, what was left out of it stays."""

    def __init__(self, codec: Codec) -> None:
        self._by, self._left_out = twin_of(packer_for(codec)), torch.zeros(16 * 36)

    def __call__(self, first: torch.Tensor, second: torch.Tensor, counts: bool = True) -> list[torch.Tensor]:
        flat, of_second = torch.cat([first.flatten(), second.flatten()]), self._left_out[first.numel() :]
        kept = of_second.clone()
        if not counts:
            of_second.zero_()
        packed, out = torch.zeros(self._by.room(flat.numel()), dtype=torch.uint8), torch.zeros_like(flat)
        self._by.pack(flat, torch.zeros_like(flat), packed, self._left_out)
        self._by.add_into(packed, out, 1.0)
        if not counts:
            of_second.copy_(kept)
        return [one.view(16, -1) for one in out.split([first.numel(), second.numel()])]


def gradients(model: Two) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = model.first.grad, model.second.grad
    assert first is not None
    assert second is not None
    return first, second


def assert_near(run: ps.Run, model: Two) -> None:
    for name, one in model.named_parameters():
        torch.testing.assert_close(run.state_dict[name], one.data, rtol=1e-4, atol=1e-5)


def alone(codec: Codec | None) -> Strategy:
    """What it shows is whole, so that a plain loop knows it."""
    return dataclasses.replace(ps.sync_sgd(codec=codec), adopt=Replace())


def now_and_then(worker: ps.Worker) -> None:
    """The second weight has a gradient in every other step; one step adds up two passes."""
    model = Two()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 0, step, both=step % 2 == 0).backward()
        if step == 6:
            loss_of(model, 0, 100).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


@pytest.mark.parametrize("codec", [Int8(), Int4(), Cast(), TopK(0.1)], ids=str)
def test_of_a_parameter_without_a_gradient_what_was_left_out_waits(codec: Codec) -> None:
    run = ps.run(now_and_then, alone(codec), workers=1, engine=UNIFORM)
    model, packed = Two(), Packer(codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 0, step, both=step % 2 == 0).backward()
        if step == 6:
            loss_of(model, 0, 100).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        first, second = model.first.grad, model.second.grad
        assert first is not None
        model.first.grad, sent = packed(first, torch.zeros(16, 16) if second is None else second, second is not None)
        model.second.grad = sent if second is not None else None
        optimizer.step()
    assert_near(run, model)


def in_passes(worker: ps.Worker) -> None:
    """Two passes a step, in the second of which nobody has a gradient for the second weight."""
    model = Two()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5))
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(model, worker.rank, 2 * step + part, both=part == 0).backward()
        optimizer.step()


@pytest.mark.parametrize("codec", [Int4(), TopK(0.1)], ids=str)
def test_allreduce_packs_what_each_pass_of_a_step_adds(codec: Codec) -> None:
    run = ps.run(in_passes, ps.allreduce(codec=codec), workers=2)
    model, packers = Two(), [Packer(codec), Packer(codec)]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for step in range(STEPS):
        sent = []
        for rank, packed in enumerate(packers):
            optimizer.zero_grad()
            loss_of(model, rank, 2 * step).backward()
            sent.append(packed(*gradients(model)))
        mean = [sum(both) / 2 for both in zip(*sent, strict=True)]
        again = []
        for rank, packed in enumerate(packers):
            optimizer.zero_grad()
            loss_of(model, rank, 2 * step + 1, both=False).backward()
            assert model.first.grad is not None
            again.append(packed(mean[0] + model.first.grad, mean[1], False)[0])
        model.first.grad, model.second.grad = sum(again) / 2, mean[1]  # type: ignore[assignment]
        optimizer.step()
    assert_near(run, model)


CORRECTED = [
    ps.async_sgd,
    partial(ps.async_sgd, ahead=1),
    partial(ps.async_sgd, "delay_compensated"),
    partial(ps.async_sgd, "gap_aware"),
    partial(ps.async_sgd, "plain", ahead=1),
    ps.bounded_staleness,
    ps.buffered,
    ps.ringmaster,
    partial(ps.buffered, correct="plain"),
    ps.sync_sgd,
]


def few_numbers(worker: ps.Worker, dtype: torch.dtype = torch.float32) -> None:
    """A third of a gradient's numbers are not 0, others each time."""
    torch.manual_seed(0)
    model = nn.Linear(30, 10, bias=False).to(dtype)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5))
    for step in range(STEPS):
        x = torch.randn(4, 30, generator=torch.Generator().manual_seed(10 * step + worker.rank))
        x[:, torch.arange(30) % 3 != step % 3] = 0
        descend(optimizer, (model(x.to(dtype)) - 1).square().mean())


@pytest.mark.few(4)
@pytest.mark.parametrize("recipe", CORRECTED, ids=lambda one: one().name)
def test_a_packing_that_leaves_nothing_out_changes_nothing(recipe: Callable[..., Strategy]) -> None:
    """To rounding, whatever becomes of a stale gradient: it is unpacked first."""
    plain, packed = (
        ps.run(few_numbers, recipe(codec=codec), workers=3, engine=ps.Simulated("heavy-tail"), seed=2)
        for codec in (None, TopK(0.5))
    )
    assert packed.version == plain.version
    torch.testing.assert_close(packed.state_dict["weight"], plain.state_dict["weight"], rtol=1e-5, atol=1e-6)


def poisoned(worker: ps.Worker, at: int) -> None:
    """Worker 1 has a NaN in that step."""
    model = Two()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR))
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model, worker.rank, step) * (torch.nan if (worker.rank, step) == (1, at) else 1)).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.*NaN:RuntimeWarning")
@pytest.mark.parametrize("make", [alone, ps.allreduce], ids=["sync_sgd", "allreduce"])
def test_a_gradient_with_a_nan_does_not_count_and_is_not_remembered(make: Any) -> None:
    codec = Int4()
    run = ps.run(partial(poisoned, at=4), make(codec=codec), workers=2)
    assert run.discarded == {"not finite": 1}
    model, packers = Two(), [Packer(codec), Packer(codec)]
    for step in range(STEPS):
        sent = []
        for rank, packed in enumerate(packers):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            if (rank, step) != (1, 4):
                sent.append(packed(*gradients(model)))
        for one, numbers in zip(model.parameters(), zip(*sent, strict=True), strict=True):
            one.data -= LR * sum(numbers) / len(sent)
    assert_near(run, model)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_where_ddp_reduces_it_reduces_in_half_precision(half: str) -> None:
    plain, packed = (ps.run(in_passes, ps.allreduce("torch", codec=one), workers=2) for one in (None, half))
    apart = max(float((packed.state_dict[name] - one).abs().max()) for name, one in plain.state_dict.items())
    assert 0 < apart < 0.01


def test_a_codec_that_packs_nothing_of_the_model_is_told() -> None:
    with pytest.warns(RuntimeWarning, match=r"a codec packs float32, and the parameters here are of bfloat16"):
        ps.run(partial(few_numbers, dtype=torch.bfloat16), ps.sync_sgd(codec="int8"), workers=1, engine=UNIFORM)


def looks_up(worker: ps.Worker) -> None:
    model = nn.Embedding(10, 4, sparse=True)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR))
    descend(optimizer, model(torch.tensor([1, 2])).square().mean())


def test_rows_of_a_sparse_embedding_are_not_packed() -> None:
    with pytest.raises(ConfigurationError, match=r"weight is of an embedding with sparse=True.*take ps\.Table"):
        ps.run(looks_up, ps.sync_sgd(codec="int8"), workers=1)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: dataclasses.replace(ps.hogwild(), send=Gradient(Int8())), "workers write into memory that they share"),
    (lambda: ps.allreduce("torch", codec="int8"), "in bf16 and fp16 at most; use one of these, or sync_sgd"),
    (lambda: dataclasses.replace(ps.async_sgd("gap_aware"), adopt=Replace(Int8())), "leave the codec out of adopt"),
    (lambda: dataclasses.replace(ps.async_sgd("plain", ahead=1), adopt=Replace(Int8(), ahead=1)), "computes ahead"),
    (lambda: dataclasses.replace(ps.allreduce(), adopt=Replace(Int8())), "takes the mean gradient"),
    (lambda: ps.sync_sgd(codec="int7"), "unknown codec 'int7'; known: bf16, fp16, int4, int8"),
    (lambda: Gradient(0.1), "a codec, such as Int8(), or None"),  # type: ignore[arg-type]
    (lambda: ps.run(looks_up, ps.sync_sgd(codec="int8"), workers=1, ranks=2), "what is sent is packed"),
    (lambda: dataclasses.replace(ps.first_of(2, codec="int8"), combine=Median()), "plain numbers"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_packed_is_refused_in_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((StrategyError, ConfigurationError)) as refused:
        make()
    assert words in str(refused.value)


def test_a_strategy_says_and_remembers_how_its_gradients_are_packed() -> None:
    for one in (ps.sync_sgd(codec=TopK(0.01)), ps.async_sgd(codec="int8"), ps.allreduce(codec="bf16")):
        assert Strategy.from_data(one.name, one.as_data()) == one
    assert ps.sync_sgd().as_data()["send"] == {"is": "Gradient"}, "as journals of before have it"
    assert ps.recipe("async_sgd", codec="int8").name == "async_sgd(codec=int8)"
    assert str(Gradient(TopK(0.01), feedback=False)) == "gradient, top 1%, without feedback"


@pytest.mark.parametrize("strategy", [ps.sync_sgd(codec="int8"), ps.async_sgd("plain", codec="int8")], ids=by_name)
def test_what_travels_is_a_quarter(strategy: Strategy, tmp_path: Path) -> None:
    run = ps.run(few_numbers, strategy, workers=2, engine=UNIFORM)
    whole = ps.run(
        few_numbers, dataclasses.replace(strategy, send=Gradient(), adopt=Replace()), workers=2, engine=UNIFORM
    )
    assert 0.25 < run.summary.bytes / whole.summary.bytes <= 0.26
