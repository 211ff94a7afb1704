"""Which phase a run goes over to: what forecasts have to say for it, and how often that may be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.choosing import Chooser
from plesio.errors import StrategyError
from plesio.strategy.choosing import Choosing
from plesio.strategy.measured import REACHED, how_near, reached
from support.long_forms import examples

RULES = Choosing(every_s=1.0, apart_s=3.0)
Speeds = list[float | None]
speeds_of_three = st.lists(st.none() | st.floats(0.1, 100.0), min_size=3, max_size=3)


def changes(heard: Sequence[Speeds], rules: Choosing = RULES, phase: int = 0) -> list[tuple[int, int]]:
    """When it changed, and to what: it hears one forecast a second, and each change is made at once."""
    chooser, found = Chooser(rules), []
    for now, speeds in enumerate(heard):
        wanted = chooser.hear(float(now), phase, speeds)
        if wanted is not None:
            found.append((now, wanted))
            phase = wanted
    return found


def test_the_tightest_of_those_that_are_about_as_fast_is_taken_after_two_forecasts() -> None:
    assert changes([[10.0, 19.0, 20.0]] * 9) == [(1, 1)]
    assert changes([[10.0, 17.0, 20.0]] * 9) == [(1, 2)]


def test_a_quarter_faster_is_not_taken_for_less() -> None:
    assert changes([[10.0, 12.4, 12.4]] * 9) == []
    assert changes([[10.0, 12.6, 12.4]] * 9) == [(1, 1)]


def test_one_forecast_that_disagrees_begins_the_count_anew() -> None:
    fast, even = [10.0, 20.0, 20.0], [10.0, 10.0, 10.0]
    assert changes([fast, even, fast, even]) == []
    assert changes([fast, even, fast, fast]) == [(3, 1)]
    assert changes([[10.0, 20.0, 20.0], [10.0, 10.0, 20.0], [10.0, 10.0, 20.0]]) == [(2, 2)]


def test_a_tighter_one_is_taken_back_when_the_straggler_has_gone() -> None:
    slow, even = [10.0, 20.0, 20.0], [19.0, 20.0, 20.0]
    assert changes([slow] * 3 + [even] * 5) == [(1, 1), (5, 0)]


def test_what_cannot_be_forecast_is_not_taken_and_not_left() -> None:
    assert changes([[10.0, None, None]] * 5) == []
    assert changes([[None, 50.0, 50.0]] * 5) == []
    assert changes([[10.0, None, 20.0]] * 5) == [(1, 2)]


def test_a_change_by_hand_is_left_alone_for_as_long_as_its_own() -> None:
    chooser = Chooser(RULES)
    assert chooser.hear(0.0, 0, [10.0, 20.0, 20.0]) is None
    heard = [chooser.hear(float(now), 2, [20.0, 10.0, 10.0]) for now in range(1, 6)]
    assert heard == [None, None, None, 0, None]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(speeds_of_three, max_size=40), st.integers(0, 2), st.integers(1, 4), st.floats(0, 8))
def test_every_change_is_wanted_by_as_many_forecasts_and_far_from_the_last(
    heard: list[Speeds], phase: int, in_a_row: int, apart_s: float
) -> None:
    rules = Choosing(in_a_row=in_a_row, apart_s=apart_s)
    made = changes(heard, rules, phase)
    for (earlier, _), (later, _) in pairwise(made):
        assert later - earlier >= max(apart_s, in_a_row)
    for now, to in made:
        assert now + 1 >= in_a_row
        assert to != phase
        for speeds in heard[now + 1 - in_a_row : now + 1]:
            present, there = speeds[phase], speeds[to]
            assert present is not None
            assert there is not None
            best = max(one for one in speeds if one is not None)
            assert there * rules.close >= best * (1 - 1e-9)
            assert to < phase or there >= rules.better * present
            assert not any(one is not None and one >= best / rules.close for one in speeds[:to])
        phase = to


@settings(max_examples=examples(40), deadline=None)
@given(speeds_of_three, st.integers(0, 2), st.lists(st.floats(0.97, 1.03), min_size=60, max_size=60))
def test_forecasts_that_vary_little_make_one_change_at_most_in_each_direction(
    speeds: Speeds, phase: int, noise: list[float]
) -> None:
    """Noise below the root of better / close cannot make a run go back to where it came from and away again."""
    draws = iter(noise)
    heard = [[one if one is None else one * next(draws) for one in speeds] for _ in range(20)]
    places = [phase, *(to for _, to in changes(heard, phase=phase))]
    assert len(changes([speeds] * 20, phase=phase)) <= 1
    assert all(not (a == c and a != b) for a, b, c in zip(places, places[1:], places[2:], strict=False))


@pytest.mark.parametrize(
    "wrong", [{"every_s": 0}, {"apart_s": -1.0}, {"in_a_row": 0}, {"close": 1.3}, {"close": 0.9}, {"better": "much"}]
)
def test_rules_that_cannot_be_are_refused_with_their_value(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(StrategyError, match=f"{name}={value!r}"):
        Choosing(**wrong)  # type: ignore[arg-type]


# What docs/convergence.md says, for the program

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_table_is_that_of_the_benchmark() -> None:
    found: dict[str, dict[int, float]] = {}
    for row in json.loads((RESULTS / "convergence.json").read_text()):
        name, _, workers, rate = row["measure"].partition(": ")[0].rsplit(", ", 3)
        if rate != "lr x1":
            continue
        name = {"async_sgd(plain)": "async_sgd(correct=plain)"}.get(name, name)
        of_name, number = found.setdefault(name, {}), int(workers.removeprefix("N="))
        of_name[number] = min(of_name.get(number, 9.0), round(row["ratio"], 4))
    behind = [
        row["value"] for row in json.loads((RESULTS / "transformer.json").read_text()) if "32 workers" in row["measure"]
    ]
    found["async_sgd"][32] = round(100 / (100 + max(behind)), 4)
    assert found == REACHED


def test_of_another_number_of_workers_the_next_larger_one_speaks() -> None:
    assert reached("async_sgd", 2) == reached("async_sgd", 4) == (REACHED["async_sgd"][4], 4)
    assert reached("async_sgd", 9) == (REACHED["async_sgd"][16], 16)
    assert reached("async_sgd", 17) == (REACHED["async_sgd"][32], 32)
    assert reached("async_sgd", 33) is None
    assert reached("sync_sgd", 1000) == (1.0, 1000)
    assert "33 workers" in how_near("async_sgd", 33)
