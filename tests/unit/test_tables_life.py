"""Rows that are admitted and expire, against dicts; places that change hands; memory that is given back."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.core.events import FoldRows, Serve
from plesio.errors import CheckpointError, SharedMemoryError
from plesio.memory.row_servers import RowServers
from plesio.memory.row_tables import RowTables
from plesio.protocol.rows import RowsRequest
from plesio.tables import reserved
from plesio.tables.spec import TableSpec
from plesio.tables.store import SLICE, Folded, Store, slice_of
from plesio.transport.row_slots import RowSlots
from support.long_forms import examples

RULE = ps.RowAdagrad(lr=0.5, initial=0.25)
EXTREMES = [0, -1, 2**63 - 1, -(2**63)]
KEYS = st.lists(st.sampled_from(EXTREMES) | st.integers(1, 12), unique=True, max_size=8)
ACTS = st.one_of(
    st.tuples(st.just("fold"), KEYS, st.integers(0, 3)),  # places: as that many pulls ago
    st.tuples(st.just("pull"), KEYS, st.just(0)),
    st.tuples(st.just("tick"), st.just([]), st.integers(1, 3)),
    st.tuples(st.just("sweep"), st.just([]), st.sampled_from([1, 2, 3, SLICE])),
    st.tuples(st.just("copy"), st.just([]), st.just(0)),
    st.tuples(st.just("stand"), st.just([]), st.sampled_from([0, 1, 1])),
)


class Plain:
    """A table of two columns in dicts; a gradient is a whole number, the same in both."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.clock = 0
        self.rows: dict[int, tuple[Any, Any, int]] = {}
        self.counts: dict[int, tuple[int, int]] = {}
        self.evicted = 0
        self.folded: set[int] = set()  # since the last checksum

    def tick(self, clock: int) -> None:
        self.clock = clock
        if self.spec.expire is not None:
            since = clock - self.spec.expire.versions
            for key in [key for key, row in self.rows.items() if row[2] < since]:
                del self.rows[key]
                self.folded.discard(key)
                self.evicted += 1
            self.counts = {key: one for key, one in self.counts.items() if one[1] >= since}

    def first(self, key: int) -> Any:
        out = np.empty((1, 2), np.float32)
        Store(TableSpec("new", 2, RULE, seed=3)).pull(np.array([key]), out)
        return out[0]

    def pull(self, keys: list[int]) -> Any:
        unknown = self.first if self.spec.admit is None else lambda key: np.zeros(2, np.float32)
        return np.array([self.rows[key][0] if key in self.rows else unknown(key) for key in keys]).reshape(-1, 2)

    def fold(self, keys: list[int], gradient: int, seen: int) -> tuple[int, ...]:
        stepped = born = stale = staleness = refused = 0
        for key in keys:
            values, squares, version = self.rows.get(key, (None, np.float32(RULE.initial), 0))
            if values is None:
                came = self.counts.pop(key, (0, 0))[0] + 1
                if self.spec.admit is not None and came < self.spec.admit.times:
                    self.counts[key] = came, self.clock
                    refused += 1
                    continue
                values, born = self.first(key), born + 1
            elif version > seen:
                stale, staleness = stale + 1, staleness + version - seen
            squares = squares + np.float32(gradient**2)
            step = np.float32(RULE.lr) / (np.sqrt(squares) + np.float32(RULE.eps))
            self.rows[key] = values - step * np.float32(gradient), squares, self.clock
            self.folded.add(key)
            stepped += 1
        return stepped, born, stale, staleness, refused

    def store(self, keys: set[int]) -> Store:
        """One that never knew others."""
        store, some = Store(TableSpec("ids", 2, RULE, seed=3)), sorted(keys)
        rows = [self.rows[key] for key in some]
        store.restore(
            {
                "keys": np.array(some, np.int64),
                "values": np.array([row[0] for row in rows], np.float32).reshape(-1, 2),
                "state": np.array([row[1] for row in rows], np.float32).reshape(-1, 1),
                "versions": np.array([row[2] for row in rows], np.int64),
            }
        )
        return store


def pulled(store: Store, keys: Any) -> tuple[Any, Any]:
    out = np.empty((len(keys), store.spec.dim), np.float32)
    return store.pull(np.array(keys, np.int64), out), out


def read(store: Store, keys: list[int]) -> Any:
    out = np.empty((len(keys), store.spec.dim), np.float32)
    store.read(np.array(keys, np.int64), out)
    return out


def fold(store: Store, keys: Any, version: int, places: Any = None, gradient: float = 1.0, seen: int = 0) -> Folded:
    keys = np.array(keys, np.int64)
    places = np.full(len(keys), -1) if places is None else places
    gradients, touched = np.full((len(keys), store.spec.dim), gradient, np.float32), np.ones(len(keys), np.uint8)
    return store.fold(keys, places, gradients, touched, version, seen)


@settings(deadline=None, max_examples=examples(40))
@given(
    acts=st.lists(ACTS, max_size=25), admit=st.sampled_from([None, 1, 2, 3]), expire=st.sampled_from([None, 1, 2, 5])
)
def test_a_store_is_a_dict_of_what_lives(acts: list[Any], admit: int | None, expire: int | None) -> None:
    life = ps.Seen(admit) if admit else None, ps.Unused(expire) if expire else None
    spec = TableSpec("ids", 2, RULE, 0.05, 3, *life)
    store, plain, evicted, copied = Store(spec), Plain(spec), 0, False
    every, still = [*EXTREMES, *range(1, 13)], None
    places: list[dict[int, int]] = [{}]
    for number, (act, keys, how) in enumerate(acts):
        if act == "fold":
            plain.clock += 1  # the dead are those of before
            old = places[-min(how + 1, len(places))]
            hints, seen = np.array([old.get(key, -1) for key in keys], np.int64), max(plain.clock - 2, 0)
            folded = fold(store, keys, plain.clock, hints, number + 1, seen)
            assert folded[:5] == plain.fold(keys, number + 1, seen)
            plain.tick(plain.clock)
            evicted += folded.evicted
        elif act == "pull":
            found, values = pulled(store, keys)
            places.append(dict(zip(keys, found.tolist(), strict=True)))
            np.testing.assert_array_equal(values, plain.pull(keys))
            assert [place >= 0 for place in found] == [key in plain.rows for key in keys]
        elif act == "tick":
            plain.tick(plain.clock + how)
            store.clock = plain.clock
        elif act == "sweep":
            evicted += store.sweep(plain.clock, how)
            assert how < SLICE or store.held == store.rows or still is not None
        elif act == "stand":
            store.stand_still(bool(how))
            still = plain.pull(every) if how else None
        else:
            kept, store = store.kept(), Store(spec)
            for _ in range(3):
                fold(store, [55], 0)  # so that it knows that places are of other rows now
            store.restore(kept)
            store.clock, copied, still = plain.clock, True, None
            plain.folded.clear()
        np.testing.assert_array_equal(read(store, every), plain.pull(every) if still is None else still)
        if number % 3 == 0:
            assert store.take_checksum() == plain.store(plain.folded).checksum()
            plain.folded.clear()
    store.stand_still(False)
    assert (store.rows, store.candidates) == (len(plain.rows), len(plain.counts))
    assert store.checksum() == plain.store(set(plain.rows)).checksum()
    kept = store.kept()
    rows = zip(kept["keys"].tolist(), kept["versions"].tolist(), kept["state"][:, 0], strict=True)
    assert {key: row for key, *row in rows} == {key: [row[2], row[1]] for key, row in plain.rows.items()}
    if admit:
        counts = zip(*(kept[part].tolist() for part in ("candidates", "counts", "counted")), strict=True)
        assert {key: (came, last) for key, came, last in counts} == plain.counts
    if not copied:
        assert evicted + store.sweep(store.clock) == plain.evicted


def test_a_place_that_is_anothers_by_now_is_looked_up_again() -> None:
    store = Store(TableSpec("ids", 2, ps.RowSGD(1.0), expire=ps.Unused(2)))
    fold(store, [6, 8, 7], 1)
    places, first = pulled(store, [6, 8, 7])
    fold(store, [8], 2)
    assert store.sweep(4) == 2
    assert fold(store, [9], 4).born == 1
    assert pulled(store, [9])[0] == places[2]
    assert fold(store, [6, 8, 7], 6, places, gradient=2.0).born == 3  # 6 is free, 7 is 9's, 8 is dead and not swept yet
    assert sorted(pulled(store, [6, 7, 8, 9])[0].tolist()) == [0, 1, 2, 3]
    np.testing.assert_array_equal(pulled(store, [6, 8, 7])[1], first + 1 - 2)
    np.testing.assert_array_equal(pulled(store, [9])[1], pulled(Store(TableSpec("new", 2)), [9])[1] - 1)


def test_a_sweep_goes_on_where_the_last_one_ended() -> None:
    store = Store(TableSpec("ids", 2, ps.RowSGD(1.0), expire=ps.Unused(1)))
    fold(store, range(9), 1)
    assert [store.sweep(3, 4) for _ in range(3)] == [4, 4, 1]


def test_a_row_that_is_born_again_has_no_state_of_before() -> None:
    def of(keys: list[int]) -> Any:
        store = Store(TableSpec("ids", 5, ps.RowAdam(), expire=ps.Unused(1)))
        for version, key in enumerate(keys, 1):
            fold(store, [key], version)
            store.sweep(version)
        return store, pulled(store, keys[-1:])[1]

    store, values = of([1, 2, 3, 4, 1])
    assert store.nbytes == of([1, 2, 3])[0].nbytes, "three places by turns"
    np.testing.assert_array_equal(values, of([1])[1])
    np.testing.assert_array_equal(store.kept()["state"][-1], of([1])[0].kept()["state"][-1])


def test_many_rows_are_found_after_many_were_taken_out() -> None:
    source, alive = np.random.default_rng(0), set[int]()
    store = Store(TableSpec("ids", 1, ps.RowSGD(1.0), expire=ps.Unused(1)))
    for version in range(1, 40, 2):
        keys = source.choice(100_000, 20_000, replace=False)
        fold(store, keys, version)
        fold(store, stay := keys[:12_000], version + 1)
        alive = set(stay.tolist())
        store.sweep(version + 2, 30_000)  # those that did not stay
        assert store.rows == store.held == len(alive)
    assert ((pulled(store, np.arange(100_000))[0] >= 0) == [key in alive for key in range(100_000)]).all()
    assert store._at.segments[1 : 2 * int(store._at.numbers[1]) : 2].sum() == len(alive)


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [300, 20_000])
def test_memory_stays_bounded_where_ids_die(batch: int) -> None:
    """Planted drift: ids come for some versions, and never again; half of them once only."""
    life: Any = {"admit": ps.Seen(2), "expire": ps.Unused(versions=20)}
    store, largest, most = Store(TableSpec("ids", 4, ps.RowSGD(1.0), **life)), [], 0
    for version in range(1, 300 if batch < 1000 else 120):
        begin = version * batch // 2
        folded = fold(store, np.append(np.arange(begin, begin + batch), -version * batch - np.arange(batch)), version)
        store.sweep(version, slice_of(folded))
        largest.append(store.nbytes)
        most = max(most, store.rows)
        assert store.held <= store._at.numbers[2] <= 4 / 3 * most + 2 * batch
    assert max(largest) < 1.6 * max(largest[: len(largest) // 3])


@pytest.mark.parametrize("others", [2, 3, 4])
@pytest.mark.parametrize("admit", [None, ps.Seen(1)])
def test_a_row_that_is_served_alive_is_the_one_that_steps(others: int, admit: ps.Seen | None) -> None:
    table = ps.Table(2, ps.RowSGD(1.0), seed=3, admit=admit, expire=ps.Unused(versions=3))

    def look() -> Any:
        with torch.no_grad():
            return table(torch.tensor([1]))[0].clone()

    first = ps.Table(2, seed=3)(torch.tensor([1]))[0]
    (10 * table(torch.tensor([1])).sum()).backward()
    for other in range(others):
        table(torch.tensor([100 + other])).sum().backward()
    served = look()
    lives = bool((served - first).abs().max() > 5)
    table(torch.tensor([1])).sum().backward()
    assert lives == (others <= 3)
    torch.testing.assert_close(look(), (served if lives else first) - 1)


def test_a_contribution_that_came_for_rows_twice_finds_both_alive() -> None:
    """The first rows' sweep leaves those alone that step at the same step."""
    slots = RowSlots.create([TableSpec("ids", 2, ps.RowSGD(1.0), expire=ps.Unused(1))], readers=1)
    tables = RowTables(slots, at_once=True)
    for number, looked_up in enumerate([[[1]], [[2]], [[3], [1]]], 1):
        for at, keys in enumerate(looked_up):
            laid = slots.of(0, number, 0).rows(at, at + 1)
            laid.keys[:], laid.gradients[:], laid.touched[:] = keys, 1.0, 1
            tables.asked(0, RowsRequest(number, ((at, 1),)))
            tables.do(Serve(0, number))
        tables.do(FoldRows(0, number))
    one = tables.summaries(exact=True)["ids"]
    assert (one.born, one.evicted, one.rows) == (3, 0, 3)
    slots.close()


def test_figures_of_rows(tmp_path: Path) -> None:
    spec = TableSpec("ids", 2, ps.RowSGD(1.0), admit=ps.Seen(2), expire=ps.Unused(2))
    slots = RowSlots.create([spec], readers=1)
    tables = RowTables(slots, at_once=True)
    for number, keys in enumerate([[1, 2], [1, 2], [3], [3], [3], [3]], 1):
        laid = slots.of(0, number, 0).rows(0, len(keys))
        laid.keys[:], laid.gradients[:], laid.touched[:] = keys, 1.0, 1
        tables.asked(0, RowsRequest(number, ((0, len(keys)),)))
        for effect in (Serve(0, number), FoldRows(0, number)):
            tables.actions[type(effect)](effect)
    one = tables.summaries(exact=True)["ids"]
    assert (one.refused, one.born, one.evicted, one.rows) == (3, 3, 2, 1)
    assert (tables.stores[0].held, tables.clock, tables.stores[0].clock) == (1, 6, 6)
    tables.write(str(tmp_path), 0, -1)
    tables.clock = 7
    tables.restore(str(tmp_path), ["table-0.safetensors"], clock=9)  # 3 was last stepped at 6
    rows = [tables.summaries(exact)["ids"].rows for exact in (True, False)]
    assert (*rows, tables.kept()["ids"]["keys"].tolist()) == (0, 1, [])
    slots.close()


def test_a_run_begins_with_tables_that_had_clocks_of_their_own() -> None:
    specs = [TableSpec(name, 2, ps.RowSGD(1.0), admit=ps.Seen(2), expire=ps.Unused(5)) for name in ("young", "old")]
    alone = [Store(spec) for spec in specs]
    for store, versions in zip(alone, ([1, 2, 3, 4], [1001, 1002, 1003, 1004]), strict=True):
        for version, key in zip(versions, (1, 1, 2, 3), strict=True):
            fold(store, [key], version)
    slots = RowSlots.create(specs, readers=1)
    tables = RowTables(slots, at_once=True)
    RowServers([slots], [tables]).begin_with({store.spec.name: store.kept() for store in alone})
    for clock, left in ((1007, (1, 2)), (1008, (0, 2)), (1009, (0, 1)), (1010, (0, 0))):  # last at 2, 3 and 4 of 4
        tables.clock = clock
        assert [(store.rows, store.candidates) for store in tables.stores] == [left, left]
    slots.close()


def test_a_table_without_a_run(tmp_path: Path) -> None:
    table = ps.Table(2, ps.RowSGD(1.0), admit=ps.Seen(2), expire=ps.Unused(3))
    assert "Seen(times=2), Unused(versions=3); 0 rows" in repr(table)

    def step(one: ps.Table, *ids: int) -> None:
        one(torch.tensor(ids)).sum().backward()

    step(table, 5)
    assert table(torch.tensor([5])).tolist() == [[0.0, 0.0]]
    table.save(tmp_path / "ids.safetensors")
    copies = copy.deepcopy(table), *(ps.Table(2, ps.RowSGD(1.0), admit=ps.Seen(2), expire=ps.Unused(3)) for _ in "ab")
    copies[1].load_state_dict(table.state_dict())
    copies[2].load(tmp_path / "ids.safetensors")
    plain = ps.Table(2, ps.RowSGD(1.0))
    plain.load(tmp_path / "ids.safetensors")
    assert plain.rows == 0
    for one in (table, *copies):
        step(one, 5)
        assert one.rows == 1
        for other in (6, 7, 8):
            step(one, other)
        assert one.rows == 1
        step(one, 9)
        assert one.rows == 0
        assert one(torch.tensor([5])).tolist() == [[0.0, 0.0]]


def test_counts_that_cannot_be_restored_change_nothing() -> None:
    store = Store(TableSpec("ids", 2, admit=ps.Seen(3)))
    fold(store, [1, 2], 1)
    kept = store.kept()
    for wrong, words in (
        ({"candidates": np.array([1, 1])}, "key 1 of table 'ids' is there twice"),
        ({"counts": np.array([1, 0])}, "counts of table 'ids' are not all above 0"),
        ({"counted": None}, "counted: got NoneType"),
    ):
        with pytest.raises(CheckpointError, match=words):
            store.restore(kept | wrong)  # type: ignore[arg-type]
        assert store.candidates == 2
    store.restore({name: kept[name] for name in ("keys", "values", "state", "versions")})  # of a table that admits all
    assert store.candidates == 0


def test_too_many_keys_that_wait_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.tables.store.reserve", partial(reserved.reserve, rows=1024))
    store = Store(TableSpec("ids", 16, admit=ps.Seen(2)))
    with pytest.raises(SharedMemoryError, match=r"table 'ids' is full at [\d,]+ keys that have no row yet; deal its"):
        fold(store, np.arange(2000), 1)
    assert fold(store, [1], 2).born == 1
