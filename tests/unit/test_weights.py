"""How far a contribution moves the weights: staleness weights, shares of a fold, the learning rate."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plesio.core.events import Fold
from plesio.strategy import recipes
from plesio.strategy.answers import BySamples, DelayAdaptive, Equal, Hinge, Inverse, Polynomial, UserOptimizer, Weigh
from plesio.strategy.answers.weigh import SMALLEST
from plesio.strategy.questions import Arrival
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.mean import Accumulator
from support.sequencing import Run, only


@pytest.mark.parametrize(
    ("weigh", "staleness", "workers", "samples", "expected"),
    [
        (Equal(), 0, 4, 8, 1.0),
        (Equal(), 9, 4, 8, 1.0),
        (Inverse(), 0, 4, 8, 1.0),  # 1 / max(tau, 1)
        (Inverse(), 1, 4, 8, 1.0),
        (Inverse(), 4, 4, 8, 1 / 4),
        (Polynomial(), 0, 4, 8, 1.0),  # (1 + tau)^-a
        (Polynomial(), 3, 4, 8, 1 / 2),
        (Polynomial(a=2.0), 2, 4, 8, 1 / 9),
        (Polynomial(a=0), 7, 4, 8, 1.0),
        (Hinge(), 0, 4, 8, 1.0),  # 1 up to b, then 1 / (a (tau - b) + 1)
        (Hinge(), 4, 4, 8, 1.0),
        (Hinge(), 5, 4, 8, 1 / 11),
        (Hinge(a=2.0, b=1), 3, 4, 8, 1 / 5),
        (DelayAdaptive(), 0, 4, 8, 1.0),  # min(1, N / tau)
        (DelayAdaptive(), 4, 4, 8, 1.0),
        (DelayAdaptive(), 5, 4, 8, 4 / 5),
        (DelayAdaptive(), 16, 4, 8, 1 / 4),
        (BySamples(), 0, 4, 8, 8.0),
        (BySamples(), 5, 4, 96, 96.0),
        (BySamples(), 0, 4, 0, 1.0),
    ],
)
def test_weights_match_their_formulas(
    weigh: Weigh, staleness: int, workers: int, samples: int, expected: float
) -> None:
    assert weigh.weight(Arrival(staleness, workers, samples, 0, 0.0)) == pytest.approx(expected)


class Noted:
    """Notes what it is told."""

    unconditional = False
    normalised = False

    def __init__(self) -> None:
        self.told: list[Arrival] = []

    def weight(self, one: Arrival) -> float:
        self.told.append(one)
        return 1.0


def test_weights_receive_version_and_progress() -> None:
    noted = Noted()
    run = Run(recipes.async_sgd(), workers=2)
    run.sequencer._weigh = noted
    for worker in (0, 1, 0):
        run.lease(worker, total=8)
        run.push(worker, samples=10, batches=1)
    run.push(1, samples=0, steps=3)
    assert noted.told == [
        Arrival(staleness=0, workers=2, work=10, version=0, epochs=0.0),
        Arrival(staleness=1, workers=2, work=10, version=1, epochs=1 / 8),
        Arrival(staleness=1, workers=2, work=10, version=2, epochs=2 / 8),
        Arrival(staleness=1, workers=2, work=10, version=3, epochs=3 / 8),  # none are told: as before
    ]


@pytest.mark.parametrize("weigh", [Inverse(), Polynomial(), Hinge(b=2), DelayAdaptive()], ids=repr)
def test_every_staleness_weight_scales_the_step_down(weigh: Weigh) -> None:
    run = Run(recipes.async_sgd(weigh=weigh), workers=2)
    for _ in range(4):
        run.push(0)
    (fold,) = only(Fold, run.push(1))
    assert fold.scale == pytest.approx(1 / 2 * weigh.weight(Arrival(4, 2, 32, 4, 0.0)))
    assert fold.scale < 1 / 2


@pytest.mark.parametrize(("folded", "workers", "expected"), [(1, 4, 0.25), (3, 4, 0.75), (4, 4, 1.0), (9, 4, 1.0)])
def test_a_fold_of_k_of_n_is_scaled_by_k_over_n(folded: int, workers: int, expected: float) -> None:
    assert UserOptimizer().scale(folded, workers) == expected
    assert UserOptimizer(lr_scale="full").scale(folded, workers) == 1.0


anything = st.floats(0.0, 1e308)
weights = st.one_of(
    st.sampled_from([one() for one in get_args(Weigh)]),
    st.builds(Polynomial, anything),
    st.builds(Hinge, st.floats(1e-308, 1e308), st.integers(0, 5)),
)


@given(weights, st.integers(0, 2**63), st.integers(1, 64), st.integers(0, 2**31))
def test_weights_are_positive_and_fall_with_staleness(weigh: Weigh, staleness: int, workers: int, samples: int) -> None:
    weight = weigh.weight(Arrival(staleness, workers, samples, 0, 0.0))
    assert SMALLEST <= weight <= max(samples, 1)
    assert weight >= weigh.weight(Arrival(staleness + 1, workers, samples, 0, 0.0)), "who is later counts no more"


@settings(deadline=None)
@given(weights, st.integers(1, 4), st.lists(st.integers(0, 3), min_size=4, max_size=40))
@example(Polynomial(1e6), 2, [0, 0, 1, 2])
@example(Hinge(a=1e308, b=0), 2, [0, 0, 0, 0, 1, 2])
def test_the_shares_of_every_fold_add_up_to_one(weigh: Weigh, k: int, pushes: list[int]) -> None:
    run = Run(recipes.buffered(k, weigh=weigh), workers=4)
    for fold in [one for worker in pushes for one in only(Fold, run.push(worker, samples=worker))]:
        assert sum(member.share for member in fold.members) == pytest.approx(1.0)
        assert all(member.share > 0 for member in fold.members)
        assert SMALLEST * k / 4 <= fold.scale <= 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_mean_of_the_smallest_weights_is_finite(dtype: str) -> None:
    """Held contributions are scaled on arrival and divided by the sum of weights at the fold."""
    layout = Layout((TensorSpec("gradient", (3,), dtype, Kind.TRAINED, 0),))
    part, total = (Arena(layout, torch.zeros(layout.nbytes, dtype=torch.uint8)) for _ in range(2))
    gradient = part.views[0]
    gradient.copy_(torch.tensor([1.0, 1e-6, torch.finfo(gradient.dtype).max / 2], dtype=gradient.dtype))
    held = Accumulator(total, 4)
    held.add(part, SMALLEST)
    assert held.take_mean(SMALLEST).views[0].isfinite().all()
