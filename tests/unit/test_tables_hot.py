"""Hot keys: found among many cold ones, with their shares, by any number of servers."""

from __future__ import annotations

import numpy as np
import pytest

from plesio.tables.dealing import deal
from plesio.tables.hot import EVERY, LEAST, MOST, SLOTS, HotKeys, hottest, is_looked_at

HOT = np.array([0, -1, 2**63 - 1])
TIMES = 200


def contributions(cold: int) -> list[np.ndarray]:
    """`HOT` are in each, in every second and in every fourth."""
    draw = np.random.default_rng(0)
    each = (draw.integers(1, 2**62, cold, np.int64) for _ in range(TIMES))
    return [np.append(np.unique(some), HOT[: 1 + (k % 2 == 0) + (k % 4 == 0)]) for k, some in enumerate(each)]


@pytest.mark.parametrize("cold", [10, 15_000])
def test_hot_keys_are_found_among_cold_ones_with_their_shares(cold: int) -> None:
    found = HotKeys()
    for keys in contributions(cold):
        found.add(keys)
    told = found.shares(TIMES, exact=True)
    assert [key for key, _ in told] == HOT.tolist()
    assert [share for _, share in told] == pytest.approx([1.0, 0.5, 0.25], abs=0.03)
    assert all(share <= most for (_, share), most in zip(told, (1.0, 0.5, 0.25), strict=True)), "none is counted twice"


def test_servers_find_what_one_finds() -> None:
    whole, parts = HotKeys(), [HotKeys() for _ in range(3)]
    for keys in contributions(100):
        whole.add(keys)
        for part, own in zip(parts, deal(keys, 3), strict=True):
            part.add(keys[own])
    told = (one for part in parts for one in part.shares(TIMES, exact=True))
    assert hottest(told) == whole.shares(TIMES, exact=True)


def test_few_are_told_of_and_none_before_some_contributions_were_looked_at() -> None:
    found, keys = HotKeys(), np.arange(3 * MOST)
    for times in range(1, LEAST + 1):
        assert found.shares(times - 1, exact=True) == ()
        found.add(keys)
    told = found.shares(LEAST, exact=False)
    assert (len(told), {share for _, share in told}) == (MOST, {1.0})


def test_one_that_becomes_hot_late_takes_a_cold_ones_place() -> None:
    found = HotKeys()
    found.add(np.arange(4 * SLOTS))
    for _ in range(2 * LEAST):
        found.add(HOT[1:2])
    assert [key for key, _ in found.shares(2 * LEAST, exact=True)] == [-1]


@pytest.mark.parametrize("worker", [0, 1, 7])
@pytest.mark.parametrize("period", [1, 2, 3, 8, 11, 32])
def test_one_of_32_contributions_is_looked_at_whatever_the_period(worker: int, period: int) -> None:
    looked = sum(is_looked_at(worker, number) for number in range(period, 8000 * period, period))
    assert looked * EVERY / 8000 == pytest.approx(1.0, abs=0.25)
    assert not is_looked_at(worker, 0), "what is only read"
