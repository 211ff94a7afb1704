"""Corrections of stale gradients, against their formulas in numpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from plesio.core.events import Fold, Member
from plesio.memory.folder import CORRECTIONS, build_folder
from plesio.memory.publish import Versions
from plesio.memory.register import Register
from plesio.strategy.answers import DelayCompensated, GapAware
from plesio.strategy.recipes.asynchronous import async_sgd
from plesio.tensors import operands
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.corrections import Correction, DelayCompensation, GapAwareness, GapDamping
from plesio.tensors.optimizer_spec import OptimizerSpec

# Eight float64 fill a 64-byte line: no padding. Two groups make two segments; the buffer is none of their business.
LAYOUT = Layout(
    [
        TensorSpec("a", (2, 4), "float64", Kind.TRAINED, 0),
        TensorSpec("b", (16,), "float64", Kind.TRAINED, 1),
        TensorSpec("statistics", (8,), "float64", Kind.BUFFER),
    ]
)
Vectors = list[np.ndarray[Any, np.dtype[np.float64]]]


def arena(vectors: Vectors) -> Arena:
    result = Arena.private(LAYOUT)
    for part, values in zip(result.flat, vectors, strict=True):
        part.copy_(torch.from_numpy(values))
    return result


def draw(rng: np.random.Generator) -> Vectors:
    return [rng.normal(size=size) for size in (8, 16, 8)]


def near(got: Arena, wanted: Sequence[Any]) -> None:
    for part, values in zip(got.flat, wanted, strict=True):
        np.testing.assert_allclose(part.numpy(), values, rtol=1e-12)


@pytest.fixture(params=[1 << 18, 5])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and in pieces that end anywhere."""
    monkeypatch.setattr(operands, "CHUNK", request.param)


@pytest.mark.parametrize("make", [lambda: GapAwareness(GapAware()), GapDamping])
def test_padding_is_excluded_from_means(make: Callable[[], GapAwareness | GapDamping]) -> None:
    """A scalar, padded to sixteen numbers, is corrected as sixteen equal ones are."""
    slopes = []
    for count in (1, 16):
        layout = Layout([TensorSpec("w", (count,), "float32", Kind.TRAINED, 0)])
        correction = make()
        for step in range(3):
            gradient, now, then = (Arena.private(layout) for _ in range(3))
            gradient.views[0].fill_(1.0)
            now.views[0].fill_(0.5 + step)
            correction.correct(gradient, now, then)
            correction.stepped(then, now)
        slopes.append(float(gradient.views[0][0]))
    assert slopes[0] == pytest.approx(slopes[1])
    assert 0.0 < slopes[0] < 1.0


def test_gap_awareness_of_what_was_absent_goes_on_from_what_it_knew() -> None:
    """Both tensors move alike, and the second one is absent for a long time: from its first step on it is damped alike."""
    layout = Layout(
        [TensorSpec("a", (16,), "float32", Kind.TRAINED, 0), TensorSpec("b", (16,), "float32", Kind.TRAINED, 1)]
    )
    correction = GapAwareness(GapAware(decay=0.9))
    for step in range(60):
        absent = 0b10 if 5 <= step < 50 else 0
        gradient, before, after = (Arena.private(layout) for _ in range(3))
        for place in range(2):
            gradient.views[place].fill_(1.0)
            after.views[place].fill_(1.0 if not absent or place == 0 else 0.0)
        correction.correct(gradient, after, before, absent)
        if not absent:
            assert torch.allclose(gradient.views[0], gradient.views[1])
        correction.stepped(before, after, absent)


@pytest.mark.usefixtures("_pieces")
def test_delay_compensation_matches_its_formula() -> None:
    rng = np.random.default_rng(1)
    g, now, then = draw(rng), draw(rng), draw(rng)
    gradient = arena(g)
    DelayCompensation(DelayCompensated(lam=0.7, adaptive=False), None).correct(gradient, arena(now), arena(then))
    near(gradient, [g[i] + 0.7 * g[i] * g[i] * (now[i] - then[i]) for i in (0, 1)] + [g[2]])


@pytest.mark.usefixtures("_pieces")
def test_adaptive_delay_compensation_matches_its_formula() -> None:
    rng = np.random.default_rng(2)
    rule = DelayCompensated(lam=2.0, decay=0.9, eps=1e-3)
    correction = DelayCompensation(rule, Arena.private(LAYOUT))
    mean_square = [np.zeros(8), np.zeros(16)]
    for _ in range(5):
        g, now, then = draw(rng), draw(rng), draw(rng)
        gradient = arena(g)
        correction.correct(gradient, arena(now), arena(then))
        mean_square = [0.9 * mean_square[i] + 0.1 * g[i] ** 2 for i in (0, 1)]
        lam = [2.0 / np.sqrt(mean_square[i] + 1e-3) for i in (0, 1)]
        near(gradient, [g[i] + lam[i] * g[i] * g[i] * (now[i] - then[i]) for i in (0, 1)] + [g[2]])


@pytest.mark.usefixtures("_pieces")
def test_gap_awareness_matches_its_formula() -> None:
    rng = np.random.default_rng(3)
    correction = GapAwareness(GapAware(decay=0.9))
    mean_step, weight = [0.0, 0.0], 0.0
    for _ in range(5):
        g, now, then, after = draw(rng), draw(rng), draw(rng), draw(rng)
        gradient = arena(g)
        correction.correct(gradient, arena(now), arena(then))
        for i in (0, 1):
            if weight:
                g[i] = g[i] / (1 + np.abs(now[i] - then[i]) / (mean_step[i] / weight))
        near(gradient, g)
        correction.stepped(arena(now), arena(after))
        weight = 0.9 * weight + 0.1
        mean_step = [0.9 * mean_step[i] + 0.1 * float(np.abs(after[i] - now[i]).mean()) for i in (0, 1)]


@pytest.mark.usefixtures("_pieces")
def test_gap_damping_matches_its_formula() -> None:
    rng = np.random.default_rng(4)
    correction = GapDamping()
    mean_gap, weight = [0.0, 0.0], 0.0
    for _ in range(5):
        g, now, then = draw(rng), draw(rng), draw(rng)
        gradient = arena(g)
        correction.correct(gradient, arena(now), arena(then))
        gap = [np.abs(now[i] - then[i]) for i in (0, 1)]
        for i in (0, 1):
            if weight:
                g[i] = g[i] / (1 + gap[i] / (4 * mean_gap[i] / weight))
        near(gradient, g)
        weight = 0.99 * weight + 0.01
        mean_gap = [0.99 * mean_gap[i] + 0.01 * float(gap[i].mean()) for i in (0, 1)]


@pytest.mark.parametrize(
    "correction",
    [
        DelayCompensation(DelayCompensated(adaptive=False), None),
        DelayCompensation(DelayCompensated(), Arena.private(LAYOUT)),
        GapAwareness(GapAware()),
        GapDamping(),
    ],
)
def test_a_fresh_gradient_is_unchanged(correction: Correction) -> None:
    rng = np.random.default_rng(5)
    w, other = arena(draw(rng)), arena(draw(rng))
    correction.correct(arena(draw(rng)), w, other)
    correction.stepped(w, other)
    gradient = arena(draw(rng))
    before = gradient.memory.clone()
    correction.correct(gradient, w, w)
    assert torch.equal(gradient.memory, before), "bit for bit"


def registered(rule: DelayCompensated | GapAware | None) -> tuple[Register, Correction]:
    """That of a strategy's answer, or the one that goes with look-ahead."""
    state, build = Register(lambda _: Arena.private(LAYOUT)), CORRECTIONS.get(type(rule))
    correction = build(rule, partial(state.array, part="correction")) if build is not None else GapDamping()
    state.parts["correction"] = correction
    return state, correction


@pytest.mark.parametrize("rule", [DelayCompensated(), GapAware(decay=0.9), None])
def test_a_restored_correction_continues_bit_for_bit(rule: DelayCompensated | GapAware | None) -> None:
    rng = np.random.default_rng(8)
    (kept, one), (state, other) = registered(rule), registered(rule)
    for _ in range(3):
        one.correct(arena(draw(rng)), arena(draw(rng)), arena(draw(rng)))
        one.stepped(arena(draw(rng)), arena(draw(rng)))
    tensors, numbers = kept.kept()
    state.restore(msgspec.json.decode(msgspec.json.encode(numbers)), tensors)
    for _ in range(3):
        g, now, then = draw(rng), arena(draw(rng)), arena(draw(rng))
        gradients = arena(g), arena(g)
        for correction, gradient in zip((one, other), gradients, strict=True):
            correction.correct(gradient, now, then)
            correction.stepped(then, now)
        assert torch.equal(gradients[0].memory, gradients[1].memory), "bit for bit"
        assert not torch.equal(gradients[0].memory, arena(g).memory)


def test_overflowing_gaps_are_not_averaged() -> None:
    correction, rng = GapDamping(), np.random.default_rng(6)
    far = arena([np.full(8, np.inf), np.ones(16), np.ones(8)])
    correction.correct(arena(draw(rng)), arena(draw(rng)), far)
    gradient = arena([np.ones(8), np.ones(16), np.ones(8)])
    correction.correct(gradient, arena([np.ones(8), np.ones(16), np.ones(8)]), arena(draw(rng)))
    assert torch.equal(gradient.flat[0], torch.ones(8, dtype=torch.float64)), "no usual gap is known yet"


def test_each_worker_is_compensated_from_its_own_backup() -> None:
    """A shared backup would show no delay: the last worker served would overwrite it."""
    rng = np.random.default_rng(7)
    start = draw(rng)
    slots = [Arena.private(LAYOUT) for _ in range(2)]
    ring = Versions([arena(start) for _ in range(4)])
    groups = [{"params": [torch.zeros(8)]}, {"params": [torch.zeros(16)]}]
    spec = OptimizerSpec.of(torch.optim.SGD(groups, lr=0.1))
    strategy = async_sgd(DelayCompensated(lam=0.5, adaptive=False))
    folder = build_folder(strategy, [spec], ring, slots, 2, lambda _: Arena.private(LAYOUT))
    for worker in (0, 1):
        folder.publish(worker)
    w = [part.copy() for part in start[:2]]
    backups = [[part.copy() for part in w] for _ in range(2)]
    for version, worker in enumerate([0, 0, 0, 1, 0, 1, 1, 0], start=1):
        g = draw(rng)
        for part, values in zip(slots[worker].flat, g, strict=True):
            part.copy_(torch.from_numpy(values))
        folder.fold(Fold(version, (Member(worker, 1, version, 0, 1.0, 1, 1),), 0.5))
        folder.publish(worker)
        for i in (0, 1):
            w[i] = w[i] - 0.05 * (g[i] + 0.5 * g[i] * g[i] * (w[i] - backups[worker][i]))
        backups[worker] = [part.copy() for part in w]
        for i in (0, 1):
            np.testing.assert_allclose(ring.of(worker).flat[i].numpy(), w[i], rtol=1e-12)


@pytest.mark.parametrize("make", [lambda: GapAwareness(GapAware()), GapDamping])
def test_overflow_does_not_warn(make: Callable[[], GapAwareness | GapDamping]) -> None:
    """As in torch: a diverging run shows in its figures."""
    correction = make()
    near_by, far = (
        arena([np.zeros(8), np.zeros(16), np.zeros(8)]),
        arena([np.full(8, 1e308), np.full(16, np.inf), np.zeros(8)]),
    )
    other = arena([np.full(8, -1e308), np.full(16, np.inf), np.zeros(8)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for before, after in ((near_by, far), (far, other)):
            correction.correct(arena(draw(np.random.default_rng(1))), after, before)
            correction.stepped(before, after)
    assert not told


def test_a_vanishing_mean_step_keeps_gradients_finite() -> None:
    """The mean step falls below float32's range; a gap of 0 measured in it is 0."""
    layout = Layout([TensorSpec("w", (16,), "float32", Kind.TRAINED, 0)])
    here, there, gradient = (Arena.private(layout) for _ in range(3))
    there.views[0].fill_(1.0)
    gradient.views[0].fill_(1.0)
    correction = GapAwareness(GapAware(decay=0.9))
    correction.stepped(here, there)
    for _ in range(10_000):
        correction.stepped(there, there)
        correction.correct(gradient, there, there)
    assert torch.equal(gradient.views[0], torch.ones(16))
