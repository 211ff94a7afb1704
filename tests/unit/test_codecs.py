"""Codecs: their error, their size, and that compiled kernels and torch give the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.errors import StrategyError
from plesio.strategy.answers import Cast, Codec, Int4, Int8, TopK
from plesio.tensors.codecs import packer_for
from plesio.tensors.codecs.packer import Packer
from support.codec_twins import twin_of
from support.long_forms import examples

CODECS: list[Codec] = [Cast(), Cast("fp16"), Int8(), Int4(), TopK(0.01), TopK(0.3)]
SIZES = [1, 2, 255, 256, 257, 1000]
DRAWS = ["normal", "tiny", "zero", "one large", "equal", "denormal"]


def drawn(kind: str, size: int, seed: int = 0) -> torch.Tensor:
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    if kind == "tiny":
        numbers *= 1e-30
    elif kind == "denormal":
        numbers *= 1e-42
    elif kind == "zero":
        numbers.zero_()
    elif kind == "one large":
        numbers[size // 2] = 1e4
    elif kind == "equal":
        numbers = numbers.sign()
    return numbers


def packed_by(
    codec: Codec, delta: torch.Tensor, held: torch.Tensor | None = None, by: Packer | None = None
) -> torch.Tensor:
    """The bytes; `held` is changed."""
    one = by or packer_for(codec)
    into = torch.full((one.room(delta.numel()) + 64,), 77, dtype=torch.uint8)
    start = torch.zeros_like(delta)
    size = one.pack(start, -delta, into, held)
    assert size == one.room(delta.numel())
    assert bool((into[size:] == 77).all()), "no byte is written beyond the room"
    assert one.is_sound(into[:size], delta.numel())
    return into[:size]


def unpacked(
    codec: Codec, packed: torch.Tensor, size: int, share: float = 1.0, by: Packer | None = None
) -> torch.Tensor:
    out = torch.zeros(size)
    (by or packer_for(codec)).add_into(packed, out, share)
    return out


def bound(codec: Codec, delta: torch.Tensor) -> torch.Tensor:
    """The largest error of each number."""
    if isinstance(codec, (Int8, Int4)):
        most = 127 if isinstance(codec, Int8) else 7
        padded = torch.nn.functional.pad(delta.abs(), (0, -delta.numel() % 256)).view(-1, 256)
        return (padded.amax(1, keepdim=True).expand(-1, 256).reshape(-1)[: delta.numel()]) * 0.5001 / most + 1e-36
    if isinstance(codec, Cast):
        return delta.abs() * (2.0**-8 if codec.dtype == "bf16" else 2.0**-11) + 1e-7
    return delta.abs()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_unpacked_is_near_what_was_packed(codec: Codec, kind: str, size: int) -> None:
    delta = drawn(kind, size)
    got = unpacked(codec, packed_by(codec, delta), size)
    assert bool(((got - delta).abs() <= bound(codec, delta)).all())


@given(
    codec=st.sampled_from(CODECS),
    kind=st.sampled_from(DRAWS),
    size=st.integers(1, 700),
    seed=st.integers(0, 1000),
    share=st.floats(0.001, 3.0),
)
@settings(max_examples=examples(30), deadline=None)
def test_compiled_kernels_and_torch_give_the_same_bits(
    codec: Codec, kind: str, size: int, seed: int, share: float
) -> None:
    found = []
    for by in (packer_for(codec), twin_of(packer_for(codec))):
        delta, held = drawn(kind, size, seed), drawn("normal", size, seed + 1) * 0.01
        packed = packed_by(codec, delta, held, by)
        found.append((packed, held, unpacked(codec, packed, size, share, by)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_was_sent_and_what_is_held_are_what_was_given(codec: Codec) -> None:
    given, held, sent = torch.zeros(600), torch.zeros(600), torch.zeros(600)
    for seed in range(5):
        delta = drawn("normal", 600, seed)
        given += delta
        sent += unpacked(codec, packed_by(codec, delta, held), 600)
    torch.testing.assert_close(sent + held, given, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [0.001, 0.01, 0.5])
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("size", SIZES)
def test_exactly_the_largest_are_kept(part: float, kind: str, size: int) -> None:
    delta = drawn(kind, size)
    count = max(1, round(part * size))
    packed = packed_by(TopK(part), delta)
    places = packed[: 4 * count].view(torch.int32).long()
    assert len(places.unique()) == count == len(packed) // 8
    left = torch.ones(size, dtype=torch.bool)
    left[places] = False
    assert not left.any() or float(delta[left].abs().max()) <= float(delta[places].abs().min())


@pytest.mark.parametrize("codec", [Int8(), Int4(), TopK(0.1)], ids=str)
def test_malformed_packings_are_told_from_others(codec: Codec) -> None:
    packed = packed_by(codec, drawn("normal", 300))
    one = packer_for(codec)
    assert not one.is_sound(packed[:-1], 300)
    assert not one.is_sound(packed, 1300)
    if isinstance(codec, TopK):
        for place, value in ((0, 400), (0, -1), (1, 0)):
            wrong = packed.clone()
            wrong[: 4 * 30].view(torch.int32)[place] = value
            assert not one.is_sound(wrong, 300) or value == 0 == int(packed[:4].view(torch.int32)[0]) - 1


@pytest.mark.parametrize("part", [0.0, 0.6, -1.0, float("nan")])
def test_a_part_outside_of_its_bounds_is_refused(part: float) -> None:
    with pytest.raises(StrategyError, match=r"above 0, at most \.5"):
        TopK(part)
