"""A model in parts: how it is cut, where its parts lie, and what travels with each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

import plesio as ps
from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, StrategyError
from plesio.protocol.payloads import Payloads
from plesio.protocol.worker import Aside, Contribution, GoOn
from plesio.strategy import Strategy
from plesio.strategy.answers import AfterFold, Clients, Delta, Fresh, Int4, Outer, Round
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, Layout, TensorSpec
from plesio.tensors.cut import cut, shared_out
from plesio.tensors.packing import Packing

SPECS = cut(
    [
        TensorSpec("a", (40,), "float32", Kind.TRAINED, 0),
        TensorSpec("frozen", (4,), "float32", Kind.FROZEN),
        TensorSpec("b", (3,), "float64", Kind.TRAINED, 0),
        TensorSpec("c", (30,), "float32", Kind.TRAINED, 1),
        TensorSpec("mean", (5,), "float32", Kind.BUFFER),
        TensorSpec("d", (200,), "float32", Kind.TRAINED, 0),
    ],
    2,
)


@given(some.lists(some.integers(0, 1000), min_size=1, max_size=40), some.data())
def test_parts_are_stretches_of_about_the_same_size(sizes: list[int], data: Any) -> None:
    parts = data.draw(some.integers(1, len(sizes)))
    found = shared_out(sizes, parts)
    assert found[0] == 0
    assert found[-1] == parts - 1
    assert all(later - one in (0, 1) for one, later in pairwise(found))
    held = [sum(size for size, part in zip(sizes, found, strict=True) if part == one) for one in range(parts)]
    assert max(held) <= sum(sizes) / parts + 2 * max(sizes)


def test_parts_of_equal_tensors_are_equal() -> None:
    assert shared_out([7] * 12, 4) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_part_has_segments_of_its_own() -> None:
    layout = Layout(SPECS)
    assert [(one.part, one.group, one.dtype, one.tensors) for one in layout.segments if one.kind is Kind.TRAINED] == [
        (0, 0, "float32", (0,)),
        (0, 0, "float64", (2,)),
        (0, 1, "float32", (3,)),
        (1, 0, "float32", (5,)),
    ]
    assert layout.parts == 2
    assert [layout.outside(part) for part in (0, 1, ALL_PARTS)] == [1 << 5, 0b1101, 0]
    assert [layout.payload_bytes(part) for part in (0, 1, ALL_PARTS)] == [160 + 24 + 120 + 20, 800 + 20, 1124]


def test_only_a_part_is_copied() -> None:
    layout = Layout(SPECS)
    ones, target = Arena.private(layout), Arena.private(layout)
    for one in ones.flat:
        one.fill_(1)
    target.copy_from(ones, Kind.TRAINED, Kind.BUFFER, part=0)
    assert [float(one.sum()) for one in target.views] == [40, 0, 3, 30, 5, 0]


@pytest.mark.parametrize("codec", [None, "int4"])
def test_the_parts_together_are_what_travels_of_the_whole(codec: str | None) -> None:
    """Buffers go with each; a packed part is unpacked alone."""
    layout = Layout(SPECS)
    payloads = Payloads(layout, ps.diloco(4, fragments=2, codec=codec))
    for about in (
        lambda part: Contribution(1, 1, aside=Aside(part=part)),
        lambda part: GoOn(1, False, Verdict.TAKEN, part=part),
    ):
        whole, first, second = (set(bytes_in(payloads.spans(about(part)))) for part in (ALL_PARTS, 0, 1))
        buffers = set(bytes_in(layout.stretches((Kind.BUFFER,))))
        assert first | second == whole
        assert first & second == buffers


def bytes_in(spans: Any) -> list[int]:
    return [place for start, end in spans for place in range(start, end)]


def test_a_part_is_packed_and_unpacked_alone() -> None:
    layout, packing = Layout(SPECS), Packing(Layout(SPECS), Int4())
    start, now, slot, out = (Arena.private(layout) for _ in range(4))
    for one in now.views:
        one.fill_(-7)
    packing.pack(start, now, slot, None, part=1)
    packing.mean_into(out, [slot], [1.0], layout.outside(1))
    assert [float(one.sum()) for one in out.views] == [0, 0, 0, 0, -35, 1400]
    packing.move(out, slot, part=1)
    assert [float(one.sum()) for one in out.views] == [0, 0, 0, 0, -35, 2800]


def test_a_part_is_at_least_a_tensor() -> None:
    with pytest.raises(ConfigurationError, match="fragments=5: a part of the model is at least one tensor, and 4 are"):
        cut(SPECS, 5)


REFUSED: list[tuple[Any, str]] = [
    (lambda: ps.diloco(20, fragments=3), "each part of the model is exchanged once in 20 steps, .* such as 18"),
    (lambda: ps.local_sgd(2, fragments=3), "such as 3"),
    (lambda: ps.async_local_sgd(4, fragments=0), r"async_local_sgd\(fragments=0\): fragments must be a whole"),
    (
        lambda: Strategy(name="mine", every=Clients(), send=Delta(fragments=2), outer=Outer("SGD", lr=1.0)),
        "a client's turn begins from a whole version",
    ),
    (
        lambda: Strategy(
            name="mine", send=Delta(fragments=2), outer=Outer("SGD", lr=1.0), gather=Round(first=2), admit=Fresh(0),
            release=AfterFold(cancel_late=True),
        ),
        "who is called off takes the parameters whole",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("build", "why"), REFUSED, ids=[why[:20] for _, why in REFUSED])
def test_what_cannot_be_in_parts(build: Any, why: str) -> None:
    with pytest.raises(StrategyError, match=why):
        build()


def test_seconds_are_those_of_the_whole_model() -> None:
    assert ps.local_sgd(ps.Seconds(2.0), fragments=4).every == ps.Seconds(0.5)


def test_a_part_that_is_not_finite_is_taken_anew() -> None:
    """And nothing of it is folded."""
    seen: list[bool] = []

    def train(worker: Any) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
        for step in range(12):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if step == 4:
                with torch.no_grad():
                    model[1].weight.fill_(torch.nan)
        seen.append(all(bool(one.isfinite().all()) for one in model.parameters()))

    with pytest.warns(RuntimeWarning):
        run = ps.run(train, ps.diloco(4, fragments=2), workers=1, engine=ps.Simulated("uniform"))
    assert seen == [True]
    assert all(bool(one.isfinite().all()) for one in run.state_dict.values())
    assert run.discarded
