"""A store of rows against a dict, NumPy and torch's optimizers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.errors import CheckpointError, ConfigurationError, SharedMemoryError
from plesio.tables import reserved
from plesio.tables.spec import RowAdagrad, RowAdam, RowOptimizer, RowSGD, TableSpec
from plesio.tables.store import Store
from support.long_forms import examples

EXTREMES = [0, -1, 2**63 - 1, -(2**63)]
KEYS = st.lists(st.sampled_from(EXTREMES) | st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), unique=True)
RULES: list[RowOptimizer] = [
    RowSGD(lr=0.1),
    RowAdagrad(lr=0.1, initial=0.25),
    RowAdagrad(lr=0.1, initial=0.25, by_element=True),
    RowAdam(lr=0.01),
    RowAdam(lr=0.01, by_table=True),
]
DIMS = (1, 7, 16, 24, 40)
SOURCE = np.random.default_rng(0)


def pulled(store: Store, keys: Any) -> tuple[Any, Any]:
    out = np.empty((len(keys), store.spec.dim), np.float32)
    return store.pull(np.array(keys, np.int64), out), out


def fold(store: Store, keys: Any, gradients: Any, version: int = 1, seen: int = 0, **more: Any) -> Any:
    keys = np.array(keys, np.int64)
    places = more.pop("places", np.full(len(keys), -1))
    touched = more.pop("touched", np.ones(len(keys), np.uint8))
    return store.fold(keys, places, gradients, touched, version, seen, **more)


def drawn(rows: int, dim: int) -> Any:
    return SOURCE.standard_normal((rows, dim)).astype(np.float32)


def some_keys(count: int) -> Any:
    return np.unique(np.append(SOURCE.integers(-(2**63), 2**63 - 1, count), EXTREMES))


class Plain:
    """Rows in a dict, stepped by NumPy in float32: row Adagrad with sixteen sums, halved, and what is left behind them."""

    def __init__(self, rule: RowAdagrad) -> None:
        self.rule = rule
        self.rows: dict[int, tuple[Any, Any, int]] = {}

    def step(self, key: int, first: Any, gradient: Any, version: int) -> None:
        values, squares, _ = self.rows.get(key, (first, np.float32(self.rule.initial), 0))
        squares = squares + self.sum_of_squares(gradient) / np.float32(len(gradient))
        step = np.float32(self.rule.lr) / (np.sqrt(squares) + np.float32(self.rule.eps))
        self.rows[key] = values - step * gradient, squares, version

    @staticmethod
    def sum_of_squares(gradient: Any) -> Any:
        whole = len(gradient) - len(gradient) % 16
        sums, rest = np.zeros(16, np.float32), np.float32(0)
        for begin in range(0, whole, 16):
            sums = sums + gradient[begin : begin + 16] ** 2
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        for one in gradient[whole:]:
            rest = rest + one * one
        return sums[0] + rest


@settings(deadline=None, max_examples=examples(20))
@given(folds=st.lists(KEYS, max_size=8), dim=st.sampled_from(DIMS))
def test_a_store_is_a_dict(folds: list[list[int]], dim: int) -> None:
    rule = RowAdagrad(lr=0.1, initial=0.5)
    store, plain = Store(TableSpec("ids", dim, rule, seed=3)), Plain(rule)
    for version, keys in enumerate(folds, 1):
        places, first = pulled(store, keys)
        assert [place >= 0 for place in places] == [key in plain.rows for key in keys]
        gradients, weight = drawn(len(keys), dim), np.float32(0.5)
        stale = [version - 2 - plain.rows[key][2] for key in keys if key in plain.rows]
        result = fold(store, keys, gradients, version, version - 3, places=places, weight=0.5)
        born = sum(key not in plain.rows for key in keys)
        for key, values, gradient in zip(keys, first, gradients, strict=True):
            plain.step(key, values, gradient * weight, version)
        late = [1 - one for one in stale if one < 1]
        assert result == (len(keys), born, len(late), sum(late), 0, 0)
    kept = store.kept()
    assert kept["keys"].tolist() == list(plain.rows)
    for at, (values, squares, version) in enumerate(plain.rows.values()):
        assert kept["values"][at].tobytes() == values.astype(np.float32).tobytes()
        assert (kept["state"][at, 0], kept["versions"][at]) == (squares, version)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_many_rows_are_found_after_many_splits(rule: RowOptimizer, dim: int) -> None:
    store, keys = Store(TableSpec("ids", dim, rule)), some_keys(20_000)
    before = pulled(store, keys)[1]
    for part in np.array_split(keys, 7):
        fold(store, part, np.zeros((len(part), dim), np.float32))
    places, after = pulled(store, keys)
    assert places.tolist() == list(range(len(keys)))
    assert store.rows == len(keys)
    np.testing.assert_array_equal(before, after)
    assert (pulled(store, keys ^ 1 << 20)[0] == -1).all()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch's own
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    ("rule", "optimizer", "every", "ulps"),
    [
        (RowSGD(lr=0.1), partial(torch.optim.SGD, lr=0.1), 1, 0),
        (
            RowAdagrad(lr=0.1, initial=0.25, by_element=True),
            partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.25),
            1,
            1,
        ),
        (RowAdam(lr=0.01, by_table=True), partial(torch.optim.SparseAdam, lr=0.01), 3, 1),
        (RowAdam(lr=0.01), partial(torch.optim.SparseAdam, lr=0.01), 1, None),
    ],
    ids=["SGD", "Adagrad by element", "Adam by table, now and then", "Adam"],
)
def test_rows_step_as_torch_does(rule: RowOptimizer, optimizer: Any, every: int, ulps: int | None, dim: int) -> None:
    """So many units in the last place off; with None, to the last digit."""
    store, weight = beside_torch(rule, dim, lambda weight: optimizer([weight]), every)
    if ulps is None:
        np.testing.assert_allclose(store, weight, rtol=2e-6, atol=1e-8)
    else:
        assert off_by_ulps(store, weight) <= ulps


def off_by_ulps(one: Any, other: Any) -> float:
    """In units in the last place of the largest value: torch's square roots are not all rounded to the nearest number."""
    return float(np.abs(one - other).max() / np.spacing(np.abs(other).max()))


def beside_torch(rule: RowOptimizer, dim: int, optimizer_of: Any, every: int = 1) -> tuple[Any, Any]:
    """The values of 50 rows after each of five steps, from the same ones, by the store and by torch: of all of them, or of one
    in so many, by turns."""
    store, keys = Store(TableSpec("ids", dim, rule)), some_keys(46)
    places, first = pulled(store, keys)
    weight = torch.nn.Parameter(torch.from_numpy(first.copy()))
    optimizer, steps = optimizer_of(weight), []
    for version in range(1, 6):
        some = np.arange(len(keys))[version % every :: every]
        gradients, indices = drawn(len(some), dim), torch.from_numpy(some)[None]
        weight.grad = torch.sparse_coo_tensor(indices, torch.from_numpy(gradients), weight.shape, check_invariants=True)
        optimizer.step()
        fold(store, keys[some], gradients, version, version - 1, places=places[some])
        places, values = pulled(store, keys)
        steps.append((values, weight.detach().numpy().copy()))
        weight.detach().copy_(torch.from_numpy(values))
    ours, torchs = zip(*steps, strict=True)
    return np.stack(ours), np.stack(torchs)


def test_adam_counts_the_steps_of_each_row() -> None:
    early, late = Store(TableSpec("ids", 4, RowAdam())), Store(TableSpec("ids", 4, RowAdam()))
    gradients = drawn(1, 4)
    for version in range(1, 5):
        fold(late, [1], gradients, version)
    fold(late, [2], gradients, 5)
    fold(early, [2], gradients, 1)
    np.testing.assert_array_equal(pulled(late, [2])[1], pulled(early, [2])[1])


def test_first_values_are_a_function_of_seed_and_key() -> None:
    keys = some_keys(3000)
    one, other = Store(TableSpec("one", 5, seed=7)), Store(TableSpec("other", 5, seed=7))
    fold(one, keys, np.zeros((len(keys), 5), np.float32))
    fold(other, keys[::-1], np.zeros((len(keys), 5), np.float32))
    values = pulled(one, keys)[1]
    np.testing.assert_array_equal(values, pulled(other, keys)[1])
    np.testing.assert_array_equal(values, pulled(Store(TableSpec("new", 5, seed=7)), keys)[1])
    assert not np.array_equal(values, pulled(Store(TableSpec("new", 5, seed=8)), keys)[1])
    assert -0.05 <= values.min() < -0.0499
    assert 0.0499 < values.max() < 0.05
    assert abs(values.mean()) < 0.001
    assert abs(np.corrcoef(values.T) - np.eye(5)).max() < 0.08


def mixed(number: int) -> int:
    """splitmix64, as decision 0017 has it."""
    bits = (number + 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return bits ^ bits >> 31


def test_formats_are_those_that_are_written_down() -> None:
    """First values and checksums are in checkpoints and journals: decision 0017."""
    store, keys = Store(TableSpec("ids", 3, scale=2.0, seed=-5)), [0, -1, 2**63 - 1, 12345]
    places, values = pulled(store, keys)
    for key, row in zip(keys, values, strict=True):
        start = mixed((key ^ -5) % 2**64)
        one, two = mixed(start), mixed((start + 0x9E3779B97F4A7C15) % 2**64)
        drawn = (one >> 40, one >> 8 & 0xFFFFFF, two >> 40)
        assert row.tolist() == [(bits * 2.0**-23 - 1) * 2 for bits in drawn]
    fold(store, keys, np.ones((4, 3), np.float32), places=places)
    kept, total = store.kept(), 0
    for at, key in enumerate(keys):
        bits = mixed(key % 2**64)
        for word in (*kept["values"][at].view(np.uint32).tolist(), *kept["state"][at].view(np.uint32).tolist()):
            bits = (bits ^ word) * 0xD6E8FEB86659FD93 % 2**64
            bits ^= bits >> 32
        total += bits
    assert store.checksum() == store.take_checksum() == total % 2**64


def test_a_pull_stores_nothing() -> None:
    store = Store(TableSpec("ids", 4))
    before = store.nbytes
    assert pulled(store, some_keys(5000))[0].max() == -1
    assert (store.rows, store.nbytes, store.checksum()) == (0, before, 0)


def test_untouched_keys_stay_as_they_are() -> None:
    store = Store(TableSpec("ids", 4, RowSGD(lr=1.0)))
    assert fold(store, [1, 2], drawn(2, 4), touched=np.array([0, 1], np.uint8)) == (1, 1, 0, 0, 0, 0)
    assert store.kept()["keys"].tolist() == [2]
    fold(store, [1, 1, 2], drawn(3, 4), touched=np.array([0, 1, 1], np.uint8))  # twice, but once touched
    assert store.rows == 2


@pytest.mark.parametrize("known", [True, False])
def test_a_key_twice_is_refused_and_nothing_moves(known: bool) -> None:
    store = Store(TableSpec("ids", 4))
    fold(store, [1, 2, 3], drawn(3, 4))
    before, rows = store.checksum(), store.rows
    twice = [1, 3, 8, 3] if known else [1, 8, 2, 9, 8]
    places = pulled(store, twice)[0]
    for hint in (places, np.full(len(twice), -1)):
        with pytest.raises(ConfigurationError, match=f"key {twice[-1]} of table 'ids' comes twice in one fold"):
            fold(store, twice, drawn(len(twice), 4), places=hint)
        assert (store.checksum(), store.rows) == (before, rows)
    fold(store, [1, 2, 3, 8, 9], drawn(5, 4), version=2)  # and nothing is remembered of it
    assert store.rows == 5


def test_places_of_other_keys() -> None:
    store = Store(TableSpec("ids", 4, RowSGD(lr=1.0)))
    fold(store, [1, 2], drawn(2, 4))
    with pytest.raises(ConfigurationError, match="place 2 of key 1: table 'ids' has 2 rows"):
        fold(store, [1], drawn(1, 4), places=np.array([2]))
    before = store.checksum()
    with pytest.raises(ConfigurationError, match="1 places of table 'ids' are other keys'"):
        fold(store, [1], drawn(1, 4), places=np.array([1]))
    assert store.checksum() == before
    kept = store.kept()
    store.restore({name: array[::-1] for name, array in kept.items()})  # after that, places are looked up again
    fold(store, [1, 2], np.ones((2, 4), np.float32), places=np.array([0, 1]))
    np.testing.assert_allclose(store.kept()["values"][::-1], kept["values"] - 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_kept_and_restored(rule: RowOptimizer) -> None:
    store, keys = Store(TableSpec("ids", 7, rule)), some_keys(3000)
    for version in (1, 2):
        fold(store, keys[version:], drawn(len(keys) - version, 7), version)
    other = Store(store.spec)
    fold(other, [5], drawn(1, 7))
    other.restore(store.kept())
    assert (other.rows, other.checksum()) == (store.rows, store.checksum())
    gradients = drawn(len(keys), 7)
    assert fold(store, keys, gradients, 4, 1) == fold(other, keys, gradients, 4, 1)
    for name, array in store.kept().items():
        np.testing.assert_array_equal(array, other.kept()[name])


def test_what_cannot_be_restored_changes_nothing() -> None:
    store = Store(TableSpec("ids", 4))
    fold(store, [1, 2], drawn(2, 4))
    before, kept = store.checksum(), store.kept()
    for wrong, words in (
        ({"keys": np.array([1, 1])}, "key 1 of table 'ids' is there twice"),
        ({"values": kept["values"][:, :3]}, r"values: got float32 \(2, 3\), allowed is an array of float32 \(2, 4\)"),
        ({"state": kept["state"].astype(np.float64)}, "state: got float64"),
        ({"versions": np.array([0, -1])}, "versions of table 'ids' are not between 0 and"),
        ({"keys": None}, "keys: got NoneType"),
    ):
        with pytest.raises(CheckpointError, match=words):
            store.restore(kept | wrong)  # type: ignore[arg-type]
        assert store.checksum() == before


def test_checksums_add_up_over_stores() -> None:
    spec = TableSpec("ids", 7)
    whole, parts = Store(spec), (Store(spec), Store(spec))
    for version in (1, 2, 3):
        keys = some_keys(500)
        gradients, one = drawn(len(keys), 7), keys % 3 == 0
        fold(whole, keys, gradients, version)
        for store, mine in zip(parts, (one, ~one), strict=True):
            fold(store, keys[mine][::-1], gradients[mine][::-1].copy(), version)
        total = whole.take_checksum()
        assert total == sum(store.take_checksum() for store in parts) % 2**64 != 0
    assert whole.checksum() == sum(store.checksum() for store in parts) % 2**64
    assert whole.take_checksum() == 0
    fold(whole, keys[:3], drawn(3, 7))
    fold(whole, keys[:3], drawn(3, 7))  # a row counts once, as it is now
    few, kept = Store(spec), whole.kept()
    those = np.isin(kept["keys"], keys[:3])
    few.restore({name: array if name == "seed" else array[those] for name, array in kept.items()})
    assert whole.take_checksum() == few.checksum()


@pytest.mark.parametrize("version", [2**32 - 1, -1])
def test_versions_have_a_range(version: int) -> None:
    store = Store(TableSpec("ids", 4))
    with pytest.raises(ConfigurationError, match=f"version={version}: allowed is 0 to 4294967294"):
        fold(store, [1], drawn(1, 4), version)
    assert store.rows == 0


def test_memory_of_a_row() -> None:
    store = Store(TableSpec("ids", 16))
    for begin in range(0, 200_000, 10_000):
        fold(store, np.arange(begin, begin + 10_000), np.zeros((10_000, 16), np.float32))
        assert store.nbytes < 105 * store.rows + 20_000


def test_less_address_space_holds_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = reserved.mmap.mmap

    def mmap(fileno: int, nbytes: int, **more: Any) -> Any:
        asked.append(nbytes)
        if nbytes > 1 << 32:
            raise OSError(12, "Cannot allocate memory")
        return real(fileno, nbytes, **more)

    monkeypatch.setattr(reserved.mmap, "mmap", mmap)
    store = Store(TableSpec("ids", 16))
    fold(store, [1, 2], drawn(2, 16))
    assert store.rows == 2
    assert asked[-1] <= 1 << 32 < asked[-2]


def test_a_full_table_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.tables.store.reserve", partial(reserved.reserve, rows=1024))
    store = Store(TableSpec("ids", 16))
    fold(store, np.arange(1000), drawn(1000, 16))
    with pytest.raises(SharedMemoryError, match=r"table 'ids' is full at [\d,]+ rows; deal its keys to more servers"):
        fold(store, np.arange(900, 2000), drawn(1100, 16))
    rows = store.rows
    fold(store, np.arange(900, 1000), drawn(100, 16), 2)
    assert rows == store.rows >= 1024
