"""Distinct keys against a dict, and sums by key against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.tables.distinct import Distinct, Sum

IDS = st.lists(st.sampled_from([0, -1, 2**63 - 1, -(2**63)]) | st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1))


@settings(deadline=None)
@given(rounds=st.lists(st.lists(IDS, max_size=4), max_size=3))
def test_distinct_is_a_dict(rounds: list[list[list[int]]]) -> None:
    distinct = Distinct()
    for batches in rounds:
        distinct.clear()
        plain: dict[int, int] = {}
        for ids in batches:
            wanted = [plain.setdefault(one, len(plain)) for one in ids]
            assert distinct.add(np.array(ids, np.int64)).tolist() == wanted
            assert distinct.keys.tolist() == list(plain)
            assert len(distinct) == len(plain)


def test_many_keys_and_many_clears() -> None:
    distinct, source = Distinct(), np.random.default_rng(0)
    for _ in range(20):
        distinct.clear()
        ids = source.integers(0, 30_000, 50_000)
        positions = distinct.add(ids)
        np.testing.assert_array_equal(distinct.keys[positions], ids)
        assert len(distinct) == len(np.unique(ids))
        first = np.sort(np.unique(ids, return_index=True)[1])
        np.testing.assert_array_equal(distinct.keys, ids[first])


def test_the_generation_comes_round() -> None:
    distinct = Distinct()
    distinct.add(np.array([1]))
    distinct._generation = 2**32 - 1
    assert distinct.add(np.array([1])).tolist() == [1]
    distinct.clear()
    assert distinct.add(np.array([2, 1])).tolist() == [0, 1]


def test_sums_by_key() -> None:
    total, source = Sum(3), np.random.default_rng(0)
    for _ in range(3):
        plain: dict[int, tuple[np.ndarray, int]] = {}
        for weight in (0.5, 0.3, 1.0):
            keys = source.permutation(3000)[:1000]
            gradients = source.standard_normal((1000, 3)).astype(np.float32)
            touched = source.integers(0, 2, 1000).astype(np.uint8)
            total.add(keys, gradients, touched, weight)
            for key, gradient, one in zip(keys.tolist(), gradients, touched.tolist(), strict=True):
                summed, before = plain.get(key, (np.zeros(3, np.float32), 0))
                if one:
                    summed = summed + np.float32(weight) * gradient if before else np.float32(weight) * gradient
                plain[key] = summed, before | one
        keys, gradients, touched = total.take()
        assert keys.tolist() == list(plain)
        assert touched.tolist() == [one for _, one in plain.values()]
        wanted = np.array([summed for summed, _ in plain.values()])
        np.testing.assert_array_equal(gradients[touched == 1], wanted[touched == 1])
    assert len(total.take()[0]) == 0
