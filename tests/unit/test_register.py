"""What a server keeps is declared once: checkpoints, a server that survives and another strategy read the declarations."""

from __future__ import annotations

from typing import Any

import plesio as ps
from plesio.memory.register import Register, When
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.carrying import Part

LAYOUT = Layout([TensorSpec("w", (2,), "float32", Kind.TRAINED, 0)])


class Counter(Part):
    """A number, with an array beside it."""

    def __init__(self, state: Register, name: str, kept: bool = True, like: str | None = None) -> None:
        self.count, self.is_kept, self.like = 0, kept, like
        state.parts[name] = self
        self.array = state.array(f"array of {name}", When.FOLD, part=name)

    def numbers(self) -> Any:
        return {"count": self.count}

    def take(self, numbers: Any) -> None:
        self.count = numbers["count"]


def registered() -> tuple[Register, Counter, Counter]:
    state = Register(lambda _: Arena.private(LAYOUT))
    return state, Counter(state, "correction", like="correct"), Counter(state, "held", kept=False)


def test_a_checkpoint_has_the_arrays_and_numbers_of_what_is_kept() -> None:
    (state, one, held), (other, its, _) = registered(), registered()
    one.count, held.count = 3, 4
    one.array.flat[0].fill_(5.0)
    kept = state.kept()
    assert kept.numbers == {"correction": {"count": 3}}
    assert list(kept.tensors) == ["array of correction"]
    other.restore(kept.numbers, kept.tensors)
    assert (its.count, float(its.array.flat[0][0])) == (3, 5.0)


def test_a_log_has_the_numbers_of_all() -> None:
    (state, one, held), (other, its, its_held) = registered(), registered()
    one.count, held.count = 3, 4
    other.take(state.numbers())
    assert (its.count, its_held.count) == (3, 4)


def test_an_array_changes_when_it_was_declared_to_and_by_whom() -> None:
    state, one, held = registered()
    own = [state.array("momentum", When.STEP, worker) for worker in range(2)]
    total, sums = state.array("sum", When.STEP), state.array("buffer", When.HOLD)
    assert state.changing(When.STEP, (1,)) == [total, own[1]]
    assert state.changing(When.FOLD) == [one.array, held.array]
    assert state.changing(When.HOLD) == [sums]
    assert {*map(id, state.arrays)} == {id(each) for each in (one.array, held.array, *own, total, sums)}


def test_a_part_goes_on_under_a_strategy_with_the_same_answer() -> None:
    state, *_ = registered()
    gaps, delays = ps.async_sgd("gap_aware"), ps.async_sgd("delay_compensated")
    assert list(state.going_on(gaps, gaps)) == ["correction"]
    assert not list(state.going_on(gaps, delays))
