"""Rows: what is converted, what is refused, and the folder they are mapped from."""

import logging

import numpy as np
import pytest
import scipy.sparse as sparse

from plesio.errors import ConfigurationError
from plesio.sparse.csr import Rows, as_rows
from plesio.sparse.stored_rows import open_rows, save_rows


def example(dtype=np.float32):
    return sparse.csr_array(np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 4, 0]], dtype))


def raw(indptr, indices, data, shape):
    """A matrix with whatever is wrong in it: scipy's constructor would look."""
    matrix = sparse.csr_array(shape, dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = np.array(indptr), np.array(indices), np.array(data, np.float32)
    return matrix


def test_a_float32_csr_matrix_is_not_copied():
    matrix = example()
    rows = as_rows(matrix)
    assert (rows.shape, rows.nonzeros, rows.notes) == ((3, 4), 4, ())
    assert np.shares_memory(rows.values, matrix.data)
    assert np.shares_memory(rows.indices, matrix.indices)
    assert [array.dtype for array in (rows.indptr, rows.indices, rows.values)] == [np.int64, np.uint32, np.float32]
    assert as_rows(rows) is rows
    np.testing.assert_array_equal(rows.scipy().toarray(), matrix.toarray())


@pytest.mark.parametrize(
    ("matrix", "note"),
    [
        (example(np.float64), "float64 values to float32"),
        (example().toarray(), "a dense array to CSR"),
        (example().tocsc(), "csc to csr"),
        (example(np.int64), "int64 values to float32"),
        (raw([0, 2, 2, 4], np.array([1, 3, 0, 2], np.int64), [1, 2, 3, 4], (3, 4)), "int64 indices to uint32"),
        (raw([0, 2, 2, 4], [3, 1, 2, 0], [2, 1, 4, 3], (3, 4)), "unsorted indices to sorted ones"),
    ],
)
def test_conversions_are_noted_and_logged(matrix, note, caplog):
    before = matrix.copy()
    with caplog.at_level(logging.INFO, "plesio.sparse"):
        rows = as_rows(matrix)
    assert note in rows.notes
    assert note in caplog.text
    np.testing.assert_array_equal(rows.scipy().toarray(), example().toarray())
    if sparse.issparse(matrix):  # what was given is as it was
        np.testing.assert_array_equal(matrix.indices, before.indices)
        assert matrix.data.dtype == before.data.dtype


def test_empty_rows_and_matrices_are_accepted():
    assert as_rows(np.zeros((3, 2))).nonzeros == 0
    assert as_rows(sparse.csr_array((0, 5))).shape == (0, 5)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (raw([0, 1], [4], [1], (1, 4)), "go from 4 to 4; the matrix has 4 columns, so allowed is 0 to 3"),
        (raw([0, 1], [-1], [1], (1, 4)), "go from -1 to -1"),
        (raw([0, 1], np.array([2**40]), [1], (1, 4)), "to 1099511627776"),
        (sparse.csr_array(([1.0], ([0], [2**33])), shape=(1, 2**34)), "17179869184 columns; indices are 32 bits"),
        (raw([0, 2, 1], [0, 1], [1, 1], (2, 4)), "never fall"),
        (raw([0, 3], [0, 1], [1, 1], (1, 4)), "ends at 3, but there are 2"),
        (raw([0, 1], [0], [np.nan], (1, 4)), "NaN"),
        (np.array([[0.0, np.inf]]), "infinite"),
        (np.array([[1e300]]), "beyond float32"),
        (np.zeros(3), "two dimensions"),
    ],
)
def test_malformed_matrices_are_refused(matrix, message):
    with pytest.raises(ConfigurationError, match=message):
        as_rows(matrix)


def test_finite_values_with_an_infinite_sum_are_accepted():
    assert as_rows(np.full((1, 8), 3e38, np.float32)).nonzeros == 8


@pytest.mark.parametrize("at", [None, 0, 1, 3, 4])
def test_one_unsorted_pair_is_found_despite_has_sorted_indices(at):
    """Indices may fall from row to row, past empty ones too, but not within a row."""
    indices, indptr = [5, 6, 7, 0, 1, 2, 0, 0], [0, 0, 3, 3, 6, 6, 7, 8, 8]
    if at is not None:
        indices[at : at + 2] = indices[at + 1], indices[at]
    matrix = raw(indptr, np.array(indices, np.int32), np.arange(8), (8, 9))
    matrix.has_sorted_indices = True  # not looked at
    rows = as_rows(matrix)
    assert rows.notes == (() if at is None else ("unsorted indices to sorted ones",))
    assert rows.indices.tolist() == [5, 6, 7, 0, 1, 2, 0, 0]
    np.testing.assert_array_equal(rows.scipy().toarray(), matrix.toarray())


def test_take_selects_rows():
    rows, dense = as_rows(example()), example().toarray()
    np.testing.assert_array_equal(rows.take(np.array([2, 0, 1, 2])).scipy().toarray(), dense[[2, 0, 1, 2]])


def test_save_rows_stores_a_matrix_or_blocks_of_it(tmp_path):
    rng = np.random.default_rng(0)
    X, y = sparse.random_array((50, 9), density=0.3, rng=rng, dtype=np.float32).tocsr(), np.arange(50) % 3
    save_rows(tmp_path / "whole", X, y)
    save_rows(tmp_path / "blocks", ((X[begin : begin + 20], y[begin : begin + 20]) for begin in (0, 20, 40)))
    for name in ("whole", "blocks"):
        rows, targets = open_rows(tmp_path / name)
        assert isinstance(rows, Rows)
        assert rows.mapped
        np.testing.assert_array_equal(rows.scipy().toarray(), X.toarray())
        np.testing.assert_array_equal(targets, y)


def test_a_failed_save_rows_leaves_no_folder(tmp_path):
    good = example()
    with pytest.raises(ConfigurationError, match="5 columns, 2 rows and 2 targets; 4 columns"):
        save_rows(tmp_path / "rows", iter([(good, [1, 2, 3]), (np.ones((2, 5)), [1, 2])]))
    assert list(tmp_path.iterdir()) == []
    save_rows(tmp_path / "rows", good)
    with pytest.raises(ConfigurationError, match="there already"):
        save_rows(tmp_path / "rows", good)
    assert open_rows(tmp_path / "rows")[1] is None
    with (tmp_path / "rows" / "values").open("rb+") as file:
        file.truncate(8)
    with pytest.raises(ConfigurationError, match="damaged"):
        open_rows(tmp_path / "rows")
    with pytest.raises(ConfigurationError, match="write them with save_rows"):
        open_rows(tmp_path / "nothing")


@pytest.mark.parametrize("place", [0, 1_000, 349_999, 350_000, 699_999])
def test_two_threads_find_a_bad_entry_anywhere(place):
    """Two threads have half of the rows each."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 1_000, (175_000, 4), np.int32)
    indices.sort(axis=1)
    indices, values = indices.ravel(), rng.random(700_000, np.float32)
    matrix = raw(np.arange(0, 700_001, 4), indices, values, (175_000, 1_000))
    assert as_rows(matrix, threads=2).notes == ()  # rows may begin below where the last one ended
    matrix.data[place] = np.nan
    with pytest.raises(ConfigurationError, match="1 values are NaN"):
        as_rows(matrix, threads=2)
    matrix.data[place], matrix.indices[place] = 1.0, 1_000
    with pytest.raises(ConfigurationError, match="allowed is 0 to 999"):
        as_rows(matrix, threads=2)
    begin = place // 4 * 4
    matrix.indices[begin : begin + 4] = [5, 4, 3, 2]
    assert as_rows(matrix, threads=2).notes == ("unsorted indices to sorted ones",)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("indices", 3, np.uint32(4_000_000_000), "a column index of 4000000000 in 6 columns"),
        ("values", 2, np.float32("nan"), "a NaN or an infinity"),
        ("indptr", 1, np.int64(90), "row pointers that fall"),
    ],
)
def test_damaged_row_folders_are_refused(tmp_path, name, at, value, words):
    from plesio.sparse.linear import HogwildClassifier

    save_rows(tmp_path / "rows", np.tile(np.arange(1, 7, dtype=np.float32), (5, 1)), [0, 1, 0, 1, 1])
    array = np.memmap(tmp_path / "rows" / name, value.dtype, "r+")
    array[at] = value
    array.flush()
    with pytest.raises(ConfigurationError, match=words):
        HogwildClassifier().fit(*open_rows(tmp_path / "rows"))


def test_object_labels_are_stored_as_strings(tmp_path):
    save_rows(tmp_path / "rows", np.eye(2), np.array(["no", "yes"], object))
    assert open_rows(tmp_path / "rows")[1].tolist() == ["no", "yes"]
    with pytest.raises(ConfigurationError, match="wanted are numbers or strings"):
        save_rows(tmp_path / "other", np.eye(2), np.array([None, "yes"], object))
