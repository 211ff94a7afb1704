"""The server's tables, by the effects alone, against plain dicts; and where rows lie between processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plesio as ps
from plesio.core.events import Fold, FoldRows, Hold, Member, Serve
from plesio.errors import CheckpointError, ConfigurationError, ModelMismatchError, SharedMemoryError
from plesio.memory.row_servers import RowServers
from plesio.memory.row_tables import RowTables
from plesio.protocol.rows import RowsRequest
from plesio.tables.file import from_memory, in_memory
from plesio.tables.spec import TableSpec
from plesio.transport.row_slots import MOST, RowSlots, check_room, check_same

SPECS = TableSpec("ids", 2, ps.RowSGD(0.5), scale=0.0), TableSpec("words", 3, ps.RowSGD(1.0), scale=0.0)


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.int64)


class Run:
    """Two workers, and what each key's row should be: it begins at 0 and moves by its gradients."""

    def __init__(self, at_once: bool) -> None:
        self.slots = RowSlots.create(SPECS, readers=3)
        self.tables = RowTables(self.slots, at_once)

    def pull(self, worker: int, number: int, keys: tuple[int, ...], table: int = 0, at: int = 0) -> list[float]:
        """The first value of each row."""
        laid = self.slots.of(worker, number, table).rows(at, at + len(keys))
        laid.keys[:], laid.gradients[:], laid.touched[:] = keys_of(*keys), 0, 0
        wanted = tuple((at, len(keys)) if one == table else (0, 0) for one in range(2))
        self.tables.asked(worker, RowsRequest(number, wanted))
        self.do(Serve(worker, number))
        return [float(value) for value in laid.values[:, 0]]

    def push(self, worker: int, number: int, gradients: list[float | None], table: int = 0) -> None:
        """None: no gradient of that row."""
        laid = self.slots.of(worker, number, table)
        for place, gradient in enumerate(gradients):
            laid.gradients[place], laid.touched[place] = gradient or 0.0, gradient is not None

    def do(self, effect: Any) -> None:
        self.tables.actions[type(effect)](effect)

    def rows(self, table: int = 0) -> dict[int, float]:
        kept = self.tables.kept()[SPECS[table].name]
        return dict(zip(kept["keys"].tolist(), kept["values"][:, 0].tolist(), strict=True))


def member(worker: int, number: int, share: float) -> Member:
    return Member(worker, 1, number, 0, share, 1, 1)


def test_rows_of_a_round_step_by_the_weighted_mean_of_their_gradients_once() -> None:
    run = Run(at_once=False)
    assert run.pull(0, 1, (7, 8)) == run.pull(1, 1, (8, 9)) == [0.0, 0.0]
    assert run.rows() == {}, "a pull bears no row"
    run.push(0, 1, [1.0, 2.0])
    run.push(1, 1, [4.0, None])
    run.do(Fold(1, (member(0, 1, 0.25), member(1, 1, 0.75)), 1.0))
    assert run.rows() == {7: -0.5 * 0.25, 8: -0.5 * (0.25 * 2 + 0.75 * 4)}
    counted = run.tables.counted[0]
    assert (counted.served, counted.stepped, counted.born, counted.stale) == (4, 2, 2, 0)


def test_held_contributions_wait_in_a_sum_of_their_own() -> None:
    """Their workers go on, and write into the slot again."""
    run = Run(at_once=False)
    for number, gradient in ((1, 1.0), (2, 3.0)):
        run.pull(0, number, (5,))
        run.push(0, number, [gradient])
        run.do(Hold(0, number, 2.0))
        run.push(0, number, [99.0])
        assert run.rows() == {}
    run.do(Fold(1, (member(0, 1, 0.5), member(0, 2, 0.5)), 1.0, held=4.0))
    assert run.rows() == {5: -0.5 * (2 * 1 + 2 * 3) / 4}
    run.do(Fold(2, (), 1.0, held=1.0))
    assert run.rows() == {5: -1.0}, "a sum is taken once"


def test_rows_at_once_step_when_their_contribution_comes_and_not_with_the_fold() -> None:
    run = Run(at_once=True)
    run.pull(0, 1, (5, 6))
    run.push(0, 1, [2.0, None])
    run.do(FoldRows(0, 1))
    assert run.rows() == {5: -1.0}
    assert {Fold, Hold}.isdisjoint(run.tables.actions)
    assert run.pull(1, 1, (5,)) == [-1.0]
    assert run.pull(0, 2, (5,)) == [-1.0]
    run.push(1, 1, [2.0])
    run.do(FoldRows(1, 1))
    run.push(0, 2, [2.0])
    run.do(FoldRows(0, 2))
    assert run.rows() == {5: -3.0}
    counted = run.tables.counted[0]
    assert (counted.stepped, counted.born, counted.stale, counted.staleness_sum) == (3, 1, 1, 1)


def test_what_comes_of_a_contribution_is_of_all_its_pulls_and_tables() -> None:
    run = Run(at_once=True)
    run.pull(0, 1, (1, 2))
    run.pull(0, 1, (3,), at=2)
    run.pull(0, 1, (1,), table=1)
    run.push(0, 1, [1.0, 2.0, 3.0])
    run.push(0, 1, [5.0], table=1)
    assert run.tables.nbytes_pushed(0, 1) == 3 * 8 + 12
    run.do(FoldRows(0, 1))
    assert (run.rows(0), run.rows(1)) == ({1: -0.5, 2: -1.0, 3: -1.5}, {1: -5.0})
    run.do(FoldRows(0, 1))
    assert run.rows(0)[1] == -0.5, "it has stepped"


def test_contributions_that_never_came_are_forgotten() -> None:
    """Called off, or of a process that sits there no longer; those of the last one and of the next may still come."""
    run = Run(at_once=True)
    for number in (1, 2, 3):
        run.pull(0, number, (10 + number,))
        run.push(0, number, [2.0])
    for number in (1, 2, 3):
        run.do(FoldRows(0, number))
    assert run.rows() == {12: -1.0, 13: -1.0}
    run.pull(0, 4, (14,))
    run.tables.forget(0)
    run.do(FoldRows(0, 4))
    assert 14 not in run.rows()


def test_who_only_reads_is_served_the_same_rows_and_leaves_no_trace() -> None:
    run = Run(at_once=True)
    run.pull(0, 1, (5,))
    run.push(0, 1, [2.0])
    run.do(FoldRows(0, 1))
    run.pull(0, 2, (6,))
    assert run.pull(0, 0, (5, 77)) == [-1.0, 0.0]
    laid = run.slots.of(2, 0, 0)
    laid.keys[:2] = 5, 78
    RowServers([run.slots], [run.tables]).read(RowsRequest(0, ((0, 2), (0, 0))))
    assert laid.values[:2, 0].tolist() == [-1.0, 0.0]
    run.push(0, 2, [4.0])
    run.do(FoldRows(0, 2))
    assert run.rows() == {5: -1.0, 6: -2.0}


def test_checksums_are_of_what_stepped_and_rows_are_restored(tmp_path: Path) -> None:
    run, other = Run(at_once=True), Run(at_once=True)
    for number, key in ((1, 3), (2, 4)):
        run.pull(0, number, (key,))
        run.push(0, number, [2.0])
        run.do(FoldRows(0, number))
    stepped = run.tables.take_checksum()
    assert stepped
    assert run.tables.take_checksum() == 0
    run.tables.write(str(tmp_path), 0, -1)
    files = [f"table-{table}.safetensors" for table in (0, 1)]
    other.tables.restore(str(tmp_path), files, run.tables.clock)
    assert other.tables.checksum() == run.tables.checksum()
    assert (other.rows(), other.tables.clock) == (run.rows(), 2)
    with pytest.raises(CheckpointError, match="values"):
        other.tables.begin_from({"ids": run.tables.kept()["words"], "words": run.tables.kept()["words"]}, 0)


def test_nothing_of_before_a_resume_waits() -> None:
    run = Run(at_once=False)
    run.pull(0, 1, (5,))
    run.push(0, 1, [2.0])
    run.do(Hold(0, 1, 1.0))
    run.tables.begin_anew()
    run.pull(0, 1, (6,))
    run.push(0, 1, [2.0])
    run.do(Fold(1, (member(0, 1, 1.0),), 1.0))
    assert run.rows() == {6: -1.0}


# Where they lie


def test_another_process_finds_the_rows_where_they_were_laid() -> None:
    slots = RowSlots.create(SPECS, readers=2)
    laid = slots.of(1, 3, 1)
    laid.keys[[0, MOST - 1]] = 5, -(2**63)
    laid.values[0] = 1.5
    pid = os.fork()
    if not pid:
        code = 1
        try:
            theirs = RowSlots.attach(os.dup(slots.fd), SPECS, readers=2)
            found = theirs.of(1, 5, 1)  # the same place: every other contribution has it
            assert found.keys[[0, MOST - 1]].tolist() == [5, -(2**63)]
            assert found.values[0].tolist() == [1.5] * 3
            found.gradients[MOST - 1], found.touched[MOST - 1] = 2.5, 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (laid.gradients[MOST - 1].tolist(), laid.touched[MOST - 1]) == ([2.5] * 3, 1)
    assert os.fstat(slots.fd).st_blocks * 512 < 1 << 20, "it takes what was written"


def test_no_place_reaches_into_another() -> None:
    slots = RowSlots.create(SPECS, readers=2)
    places = [slots.of(reader, number, table) for reader in (0, 1) for number in (0, 1, 2) for table in (0, 1)]
    for at, laid in enumerate(places):
        for array in laid:
            array[[0, -1]] = at + 1
    for at, laid in enumerate(places):
        assert all((array[[0, -1]] == at + 1).all() for array in laid)


def test_a_place_has_room_for_so_many() -> None:
    check_room(SPECS[0], 0, MOST)
    for at, count in ((1, MOST), (-1, 1), (0, -1), (0, MOST + 1)):
        with pytest.raises(ConfigurationError, match=f"of table 'ids', and has room for {MOST:,}"):
            check_room(SPECS[0], at, count)
    with pytest.raises(ConfigurationError, match="of table 'words'"):
        RowServers.here([RowSlots.create(SPECS, readers=3)], True).asked(0, RowsRequest(1, ((0, 1), (MOST, 1))))


def test_tables_are_the_same_in_all_workers() -> None:
    check_same(SPECS, SPECS, 1, 0)
    for other in (SPECS[:1], (*SPECS, SPECS[0]), SPECS[::-1]):
        with pytest.raises(ModelMismatchError, match="worker 1 does not have the same tables as worker 0"):
            check_same(SPECS, other, 1, 0)


@pytest.mark.parametrize("rows", [0, 3])
def test_rows_come_to_the_caller_in_a_file_in_memory(rows: int) -> None:
    run = Run(at_once=True)
    if rows:
        run.pull(0, 1, tuple(range(rows)))
        run.push(0, 1, [1.0] * rows)
        run.do(FoldRows(0, 1))
    kept = run.tables.kept()
    read = from_memory(in_memory(kept))
    assert sorted(read) == ["ids", "words"]
    for name, arrays in kept.items():
        assert {part: array.tolist() for part, array in arrays.items()} == {
            part: array.tolist() for part, array in read[name].items()
        }


def test_more_places_than_can_be_addressed_are_refused() -> None:
    wide = [TableSpec(f"table {number}", 8192) for number in range(8)]
    with pytest.raises(SharedMemoryError, match=r"8 tables need .* of address space"):
        RowSlots.create(wide, readers=100_000)
