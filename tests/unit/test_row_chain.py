"""Checkpoints of tables as a chain: what they hold, what is written, whichever are deleted, copied or damaged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.core.sequencer import Sequencer
from plesio.server import row_chain
from plesio.server.checkpoints import CheckpointStore, Manifest, latest, read
from plesio.server.row_chain import Chain
from plesio.tables import links as table_links
from plesio.tables.dealing import share_of
from plesio.tables.links import WAITS, merged, rows_in, write_rows
from plesio.tables.module import Table
from plesio.tables.spec import RowAdagrad, RowAdam, TableSpec
from plesio.tables.store import COPIED, Store
from support.long_forms import examples

SPECS = (
    TableSpec("ids", 4, RowAdagrad(0.1)),
    TableSpec("deep.words", 3, RowAdam()),
    TableSpec("mortal", 2, RowAdagrad(0.1), admit=ps.Seen(2), expire=ps.Unused(4)),
)


class Tables:
    """Tables with their clock, and their checkpoints. Rows of the last, which steps as the first, are admitted and expire."""

    def __init__(self, folder: Path, keep: int = 2, servers: int = 1) -> None:
        self.servers = servers
        self.stores = [Store(spec) for spec in SPECS]
        self.clock = self.version = 0
        self.checkpoints = CheckpointStore(folder, keep)

    def step(self, ids: list[int], words: Sequence[int] = ()) -> None:
        self.clock += 1
        for store, several in zip(self.stores, (ids, words, ids), strict=True):
            wanted = np.array(several, np.int64)
            gradients = np.full((len(several), store.spec.dim), self.clock, np.float32)
            unknown, touched = np.full(len(several), -1), np.ones(len(several), np.uint8)
            store.fold(wanted, unknown, gradients, touched, self.clock, self.clock - 1)
            store.clock = self.clock
            store.sweep(self.clock, 4)

    def kept(self, since: int = -1) -> dict[str, Any]:
        return {store.spec.name: store.kept(since) for store in self.stores}

    def save(self) -> Path:
        self.version += 1
        manifest = Manifest(
            version=self.version, strategy="sync_sgd", fields={}, workers=2, seed=0, train_hash="", layout=(),
            order=Sequencer(ps.sync_sgd(), 2).state(), numbers={"clock": self.clock}, progress=(),
        )  # fmt: skip
        return self.checkpoints.save(manifest, {}, {}, write_rows=self._write)

    def _write(self, folder: Path, link: int, since: int) -> None:
        for server in range(self.servers):
            share = {name: share_of(rows, server, self.servers) for name, rows in self.kept(since).items()}
            write_rows(folder, link, share, None if self.servers == 1 else server)


def of_two(folder: Path) -> tuple[Tables, Path, Path]:
    """Tables with two checkpoints: of all rows, and of those that changed."""
    tables = Tables(folder)
    tables.step([*range(1000)], [1])
    first = tables.save()
    tables.step([3], [2])
    return tables, first, tables.save()


def files(path: Path) -> list[str]:
    """Those of the first two tables."""
    return sorted(one.name for one in path.glob("table-[01].*"))


def restored(saved: dict[str, Any], clock: int) -> dict[str, Any]:
    """What tables keep that were restored from this."""
    found = {}
    for spec in SPECS:
        store = Store(spec)
        store.restore(saved[spec.name])
        store.clock = clock
        found[spec.name] = store.kept()
    return found


def same(one: dict[str, Any], other: dict[str, Any], by_key: bool = False) -> bool:
    """The same rows and counts; in the same order, where rows stay for ever, unless only `by_key`."""
    return one.keys() == other.keys() and all(
        np.array_equal(
            _sorted(rows, part, by_key or name == "mortal"), _sorted(other[name], part, by_key or name == "mortal")
        )
        for name, rows in one.items()
        for part in rows
    )


def _sorted(rows: dict[str, Any], part: str, by_key: bool) -> Any:
    keys = rows["candidates" if part in WAITS else "keys"]
    return rows[part][np.argsort(keys)] if by_key and part != "seed" else rows[part]


KEYS = st.lists(st.integers(-4, 30), max_size=8, unique=True)
ACTS = st.lists(st.one_of(st.tuples(KEYS, KEYS), st.just("save"), st.just("delete"), st.just("lose")), max_size=30)


@pytest.mark.thorough
@given(acts=ACTS, servers=st.integers(1, 3))
@settings(max_examples=examples(20), deadline=None)
def test_each_checkpoint_has_the_rows_of_its_time(
    acts: list[Any], servers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables, wanted = Tables(tmp_path_factory.mktemp("run") / "checkpoints", keep=4, servers=servers), {}
    for act in acts:
        if isinstance(act, tuple):
            tables.step(*act)
        elif act == "save":
            wanted[tables.save()] = tables.kept(), tables.clock
        elif wanted:  # the oldest, or the one that the next is to go on from
            gone = min(wanted) if act == "delete" else max(wanted)
            shutil.rmtree(gone, ignore_errors=True)
            del wanted[gone]
        for path in [one for one in wanted if not one.exists()]:  # `keep`
            del wanted[path]
    for path, (rows, clock) in wanted.items():
        assert same(restored(read(path).tables(), clock), rows, by_key=servers > 1)


def test_later_files_have_the_changed_rows_and_earlier_ones_are_links(tmp_path: Path) -> None:
    tables = Tables(tmp_path, keep=3)
    tables.step([*range(5000)], [*range(2000)])
    first = tables.save()
    tables.step([*range(900)], [7])
    second = tables.save()
    tables.step([5, 6], [])
    third = tables.save()
    assert files(first) == ["table-0.safetensors", "table-1.safetensors"]
    assert files(second) == [
        "table-0.1.safetensors",
        "table-0.safetensors",
        "table-1.1.safetensors",
        "table-1.safetensors",
    ]
    assert len(files(third)) == 6
    for name in files(second):
        assert (third / name).samefile(second / name)
        assert read(third).manifest.files[name] == read(second).manifest.files[name]
    row = 4 * SPECS[0].row_floats + 16
    assert (second / "table-0.1.safetensors").stat().st_size <= 1.2 * 900 * row
    assert rows_in(third, ["table-0.2.safetensors"])["ids"]["keys"].tolist() == [5, 6]


def test_a_table_loads_its_rows_from_a_checkpoint(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.step([*range(100)], [1])
    tables.save()
    tables.step([5, 6], [2])
    path = tables.save()
    assert "table-0.1.safetensors" in files(path)
    spec, wanted = SPECS[0], tables.kept()["ids"]
    table = Table(spec.dim, spec.optimizer)
    for name in ("table-0.safetensors", "table-0.1.safetensors"):
        table.load(path / name)
        assert same({"ids": table.kept()}, {"ids": wanted})
    with pytest.raises(ps.CheckpointError, match=r"values: got float32 .100, 4., allowed is .* .100, 5."):
        Table(spec.dim + 1, spec.optimizer).load(path / "table-0.safetensors")
    shutil.copy(path / "table-0.safetensors", tmp_path / "ids.safetensors")
    with pytest.raises(ps.CheckpointError, match="was a table's file in a checkpoint"):
        table.load(tmp_path / "ids.safetensors")


def test_a_chain_is_begun_anew_when_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(tmp_path)
    links = []
    for _ in range(6):
        tables.step([*range(1000)])
        links.append(len(files(tables.save())))
    assert links == [2, 4, 2, 4, 2, 4], "each has all rows, which is more than half"
    monkeypatch.setattr(row_chain, "LINKS", 2)
    tables.step([*range(5000)])
    links.clear()
    for _ in range(5):
        tables.step([1])
        links.append(len(files(tables.save())))
    assert links == [2, 4, 6, 2, 4]


def test_a_folder_that_was_copied_stands_by_itself(tmp_path: Path) -> None:
    tables, _, path = of_two(tmp_path / "here")
    copied = Path(shutil.copytree(path, tmp_path / "there" / path.name))
    shutil.rmtree(tmp_path / "here")
    assert same(restored(latest(tmp_path / "there").tables(), tables.clock), tables.kept())
    assert all((copied / name).stat().st_nlink == 1 for name in files(copied))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_where_there_are_no_links_files_are_copied(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    tables, first, second = of_two(tmp_path)
    assert len(files(second)) == 4
    assert not (first / "table-0.safetensors").samefile(second / "table-0.safetensors")
    assert same(restored(read(second).tables(), tables.clock), tables.kept())


def test_a_damaged_file_of_changed_rows_is_refused_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    (_, older, newer), then = of_two(tmp_path / "here"), Tables(tmp_path / "there")
    then.step([*range(1000)], [1])  # as far as the older one
    file = newer / "table-0.1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    saved = latest(tmp_path / "here")
    assert saved.path == older
    assert "table-0.1.safetensors is damaged" in saved.passed[0]
    assert same(restored(saved.tables(), 1), then.kept())
    file.unlink()
    assert latest(tmp_path / "here").path == older


def test_after_a_checkpoint_that_failed_the_next_has_all_that_changed_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    tables.step([*range(1000)], [1])
    tables.save()
    tables.step([3], [2])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(table_links, "save_file", full)
        with pytest.raises(ps.CheckpointError, match="No space left on device"):
            tables.save()
    assert not list(tmp_path.glob(".*"))
    tables.step([4], [2])
    path = tables.save()
    assert rows_in(path, ["table-0.1.safetensors"])["ids"]["keys"].tolist() == [3, 4]
    assert same(restored(read(path).tables(), tables.clock), tables.kept())


def test_a_key_that_got_a_row_waits_no_longer() -> None:
    first = {"keys": np.array([1]), "versions": np.array([3]), "candidates": np.array([7, 8, 1]),
             "counts": np.array([1, 1, 1]), "counted": np.array([1, 2, 5])}  # fmt: skip
    later = {"keys": np.array([8]), "versions": np.array([6]), "candidates": np.array([7, 9]),
             "counts": np.array([2, 1]), "counted": np.array([7, 7])}  # fmt: skip
    got = {name: array.tolist() for name, array in merged([first, later]).items()}
    assert got == {
        "keys": [1, 8],
        "versions": [3, 6],
        "candidates": [7, 1, 9],
        "counts": [2, 1, 1],
        "counted": [7, 5, 7],
    }


@pytest.mark.thorough
def test_rows_in_slices_are_all_rows() -> None:
    store = Store(SPECS[0])
    keys = np.arange(2 * COPIED + 5)
    for version in (1, 2):
        step = keys[:: 3 ** (version - 1)]
        gradients, touched = np.ones((len(step), 4), np.float32), np.ones(len(step), np.uint8)
        store.fold(step, np.full(len(step), -1), gradients, touched, version, 0)
    assert [len(one["keys"]) for one in store.slices()] == [COPIED, COPIED, 5]
    assert store.kept()["keys"].tolist() == keys.tolist()
    changed, out = store.kept(1), np.empty((len(keys[::3]), 4), np.float32)
    assert changed["keys"].tolist() == keys[::3].tolist()
    assert set(changed["versions"].tolist()) == {2}
    store.pull(changed["keys"], out)
    assert np.array_equal(out, changed["values"])


def test_without_tables_there_is_no_chain(tmp_path: Path) -> None:
    write_rows(tmp_path, 0, {})
    assert not list(tmp_path.iterdir())
    assert Chain(tmp_path, {}, 5).since == -1
