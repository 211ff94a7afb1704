"""Rows of tables: what is put into a slot comes out, and every buffer that comes round holds the current table."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.memory.publish import Versions
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.rows import WHOLE, RowCount, Tables, fits, gradient_in, in_range, put
from support.long_forms import examples

TABLE, WIDTH = 7, 3
LAYOUT = Layout(
    [TensorSpec("table", (TABLE, WIDTH), "float32", Kind.ROWS, 0), TensorSpec("w", (5,), "float32", Kind.TRAINED, 0)]
)
Touched = st.lists(st.integers(0, TABLE - 1), max_size=12)


def gradient(rows: list[int]) -> torch.Tensor:
    values = torch.arange(float(len(rows) * WIDTH)).view(-1, WIDTH) + 1.0
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64), values, (TABLE, WIDTH), check_invariants=True
    )


@given(Touched, st.booleans())
def test_a_gradient_comes_out_of_a_slot_as_it_was_put_there(rows: list[int], coalesced: bool) -> None:
    view = Arena.private(LAYOUT).views[0]
    given_in = gradient(rows).coalesce() if coalesced else gradient(rows)
    told, finite = put(view, given_in, 0)
    came_out = gradient_in(view, told)
    assert finite
    assert torch.equal(came_out.to_dense(), given_in.to_dense())
    if told.count != WHOLE:
        assert came_out.is_coalesced() == given_in.is_coalesced()
        assert torch.equal(came_out._values(), given_in._values())
        assert torch.equal(came_out._indices(), given_in._indices())


@given(Touched)
def test_rows_that_are_not_finite_are_seen(rows: list[int]) -> None:
    bad = gradient(rows) * float("inf")
    assert put(Arena.private(LAYOUT).views[0], bad, 0)[1] == (not rows)


@pytest.mark.parametrize(
    ("rows", "fit"),
    [
        (RowCount(0, WHOLE), True),
        (RowCount(0, 4), True),
        (RowCount(0, 5), False),
        (RowCount(0, -2), False),
        (RowCount(1, 1), False),
    ],
)
def test_more_rows_than_a_slot_holds_are_told(rows: RowCount, fit: bool) -> None:
    assert fits(LAYOUT.specs[rows.tensor], rows) == fit


@pytest.mark.parametrize(("row", "right"), [(0, True), (TABLE - 1, True), (TABLE, False), (-1, False)])
def test_a_row_that_a_table_does_not_have_is_told(row: int, right: bool) -> None:
    arena = Arena.private(LAYOUT)
    told, _ = put(arena.views[0], gradient([0, 1]), 0)
    gradient_in(arena.views[0], told)._indices()[0, 1] = row
    assert in_range(LAYOUT, arena.memory.numpy().data, (told,)) == right


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(Touched, st.integers(0, 2)), max_size=30))
def test_each_version_holds_the_table_as_all_steps_made_it(steps: list[tuple[list[int], int]]) -> None:
    """Readers come back in any order, so that buffers come round after different times."""
    buffers = [Arena.private(LAYOUT) for _ in range(5)]
    ring, tables = Versions(buffers), Tables(LAYOUT, buffers)
    truth = torch.zeros(TABLE, WIDTH)
    for touched, reader in steps:
        current = buffers[ring.current]
        index = ring.spare()
        tables.bring_up(index, current)
        moved = gradient(touched)
        buffers[index].views[0].add_(moved)
        truth.add_(moved)
        tables.changed({0: moved}, index)
        ring.current = index
        ring.pin(reader, index)
        assert torch.equal(buffers[index].views[0], truth)


def test_bytes_count_rows_and_what_each_reader_takes_back() -> None:
    buffers = [Arena.private(LAYOUT) for _ in range(3)]
    tables = Tables(LAYOUT, buffers)
    tables.came(0, (RowCount(0, 2),))
    assert tables.nbytes == 2 * (WIDTH * 4 + 8)
    tables.changed({0: gradient([1, 2])}, 1)
    for reader in (0, 0, 1):
        tables.read(reader)
    assert tables.nbytes == 2 * (WIDTH * 4 + 8) + 2 * (2 * WIDTH * 4)
