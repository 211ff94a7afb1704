"""What a user's kernel gets as its `example`: row i of the data.

Data is one column or a tuple of columns of equal length, plain or named. A column is an array, whose row i is
`column[i]`, or a sparse matrix in CSR form, whose row i is a `SparseRow`: the indices and the values of what is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.kernels.intrinsics import inner

_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"}


class SparseRow(NamedTuple):
    """A row of a CSR column: `for k in range(len(indices))`, the row has `values[k]` at `indices[k]` (uint32)."""

    indices: NDArray[np.uint32]
    values: NDArray[Any]


class Sparse(NamedTuple):
    """A CSR column as kernels read it."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[Any]


def columns(data: Any) -> tuple[Any, int]:
    """The data in the form kernels read, and its number of rows. Arrays are not copied, memory-mapped ones neither.

    Raises ConfigurationError for columns of different length, and for what Numba cannot read.
    """
    if isinstance(data, tuple) and not data:
        raise ConfigurationError("data is an empty tuple; give at least one column: an array or a CSR matrix.")
    if isinstance(data, tuple) and not hasattr(data, "indptr"):
        read = tuple(_column(column, f"column {number} of data") for number, column in enumerate(data))
        rows = [_rows(column) for column in read]
        if len(set(rows)) > 1:
            raise ConfigurationError(f"the columns of data have {rows} rows; all must have as many.")
        return (type(data)(*read) if hasattr(data, "_fields") else read), rows[0]
    column = _column(data, "data")
    return column, _rows(column)


def csr(matrix: Any, what: str) -> Sparse:
    """A SciPy sparse matrix, or anything with `indptr`, `indices` and `values`, with unsigned 32-bit indices.

    Raises ConfigurationError where an index does not fit.
    """
    if not hasattr(matrix, "values"):
        matrix = matrix.tocsr()
    indices = np.asarray(matrix.indices)
    if indices.dtype != np.int32 and len(indices) and not 0 <= indices.min() <= indices.max() < 2**32:
        raise ConfigurationError(
            f"{what} has indices from {indices.min()} to {indices.max()}; allowed is 0 to 2**32 - 1."
        )
    unsigned = indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32, copy=False)
    values = matrix.values if hasattr(matrix, "values") else matrix.data
    return Sparse(np.asarray(matrix.indptr, np.int64), unsigned, np.asarray(values))


def take(data: Any) -> Any:
    """A compiled function (data, row) -> example for such data, as `columns` gave it."""
    if not isinstance(data, tuple) or isinstance(data, Sparse):
        return _row_of(data)
    return _taker(type(data) if hasattr(data, "_fields") else None, tuple(_row_of(column) for column in data))


@lru_cache(maxsize=64)
def _taker(named: type | None, rows_of: tuple[Any, ...]) -> Any:
    """It is spelled out, column by column, because Numba has no loop over a tuple of unequal things."""
    names = {f"row_of_{number}": row_of for number, row_of in enumerate(rows_of)} | {"named": named}
    items = "".join(f"row_of_{number}(data[{number}], row), " for number in range(len(rows_of)))
    return inner(eval(f"lambda data, row: {'named' if named else ''}({items})", names))


def flat(data: Any) -> Iterator[NDArray[Any]]:
    """The arrays in tuples; of records each field, without the padding between."""
    if isinstance(data, tuple):
        for one in data:
            yield from flat(one)
    elif data.dtype.names:
        yield from flat(tuple(data[name] for name in data.dtype.names))
    else:
        yield data


def finite(data: Any) -> bool:
    return all(array.dtype.kind not in "fc" or bool(np.isfinite(array).all()) for array in flat(data))


def size(arrays: Any) -> int:
    """Bytes, of an array or a tuple of them or of tuples."""
    return sum(map(size, arrays)) if isinstance(arrays, tuple) else int(arrays.nbytes)


def _column(column: Any, what: str) -> Any:
    if hasattr(column, "tocsr") or hasattr(column, "indptr"):
        return csr(column, what)
    array = np.asarray(column)
    if array.ndim == 0:
        raise ConfigurationError(
            f"{what} is {column!r}; a column is an array with a row an example, or a sparse matrix."
        )
    readable(array, what)
    return array


def readable(array: NDArray[Any], what: str) -> None:
    """Raises ConfigurationError if compiled code cannot read such an array: it can numbers, and records of numbers."""
    if not _is_readable(array.dtype):
        raise ConfigurationError(
            f"{what} has type {array.dtype}, which compiled code cannot read; astype(numpy.float32) may help."
        )


def _is_readable(dtype: np.dtype[Any]) -> bool:
    if dtype.names:
        return all(_is_readable(dtype[name].base) for name in dtype.names)
    return dtype.isnative and dtype.str[1:] in _NUMBERS


def _rows(column: Any) -> int:
    return len(column.indptr) - 1 if isinstance(column, Sparse) else len(column)


def _row_of(column: Any) -> Any:
    return _sparse_row if isinstance(column, Sparse) else _dense_row


@inner
def _dense_row(column: Any, row: Any) -> Any:
    return column[row]


@inner
def _sparse_row(column: Any, row: Any) -> Any:
    begin, end = column.indptr[row], column.indptr[row + 1]
    return SparseRow(column.indices[begin:end], column.values[begin:end])
