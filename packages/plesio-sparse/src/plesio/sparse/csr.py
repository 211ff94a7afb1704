"""Rows of a sparse matrix as the kernels want them, checked once: CSR with uint32 indices and float32 values.

A kernel looks at no bounds, so everything is looked at here. float32 and uint32 halve what has to come from memory,
and an unsigned index needs no test for "from the end". Rows that lie in a folder, to be mapped: stored_rows.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.kernels.compiled import compiled
from plesio.sparse.threads import by_shares, shares

log = logging.getLogger("plesio.sparse")

MOST_FEATURES = 2**32
_INFINITY = np.uint32(0x7F800000)  # its bits: larger ones are no numbers
_UNSIGNED = np.uint32(0x7FFFFFFF)  # the bits of a value without its sign


@dataclass(frozen=True, slots=True)
class Rows:
    """A checked CSR matrix: row r holds `values[indptr[r]:indptr[r+1]]` at the columns `indices[...]`.

    Attributes:
        features: the number of columns.
        notes: what was converted to get here, in words ("float64 values to float32"); empty if nothing was.
        mapped: the arrays are files, so that reading in order is much faster than jumping about.
        dense: they were a dense array.

    >>> rows = as_rows(np.array([[0.0, 2.0], [0.0, 0.0]]))
    >>> rows.indices.tolist(), rows.values.tolist(), rows.notes
    ([1], [2.0], ('a dense array to CSR', 'float64 values to float32'))
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    features: int
    notes: tuple[str, ...] = ()
    mapped: bool = False
    dense: bool = False

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.features

    @property
    def nonzeros(self) -> int:
        return len(self.indices)

    def scipy(self) -> Any:
        """The same as a `scipy.sparse.csr_array`, sharing indices and values: for which it wants both pointers narrow."""
        import scipy.sparse as sparse

        small = max(self.features, self.nonzeros) < 2**31
        indices = self.indices.view(np.int32) if small else self.indices.astype(np.int64)
        indptr = self.indptr.astype(np.int32) if small else self.indptr
        return sparse.csr_array((self.values, indices, indptr), shape=self.shape)

    def take(self, which: NDArray[Any]) -> Rows:
        """Copies of some rows, in the order given (numbers, not a mask)."""
        lengths = np.diff(self.indptr)[which]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        source = np.repeat(self.indptr[which] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return frozen(indptr, self.indices[source], self.values[source], self.features, dense=self.dense)


def as_rows(matrix: Any, threads: int = 1) -> Rows:
    """Check a matrix and bring it into the kernels' form, without a copy where it is in that form already.

    Takes `Rows`, anything of scipy.sparse, or a dense two-dimensional array. What is converted is named in `notes`
    and told to the log "plesio.sparse".

    Raises:
        ConfigurationError: values are not finite (or not as float32), an index is outside the matrix or needs more
            than 32 bits, or the row pointer does not fit.
    """
    if isinstance(matrix, Rows):
        return matrix
    rows = _from_sparse(matrix, threads) if hasattr(matrix, "tocsr") else _from_dense(np.asarray(matrix))
    if rows.notes:
        log.info("converted: %s", "; ".join(rows.notes))
    return rows


def check_mapped(rows: Rows, threads: int = 1) -> None:
    """Look at rows that came from a folder as at others: a file may have changed, and no kernel looks at bounds.

    Raises ConfigurationError for what `save_rows` would not have written.
    """
    ends = rows.indptr
    damage = "row pointers that do not rise from 0 to the end" if ends[0] or ends[-1] != rows.nonzeros else ""
    if not damage and not (ends[1:] >= ends[:-1]).all():
        damage = "row pointers that fall"
    if not damage:
        highest, in_order, finite = _surveyed(rows, threads)
        if rows.nonzeros and highest >= rows.features:
            damage = f"a column index of {highest} in {rows.features} columns"
        elif not (in_order and finite):
            damage = "unsorted indices" if finite else "a NaN or an infinity"
    if damage:
        raise ConfigurationError(f"the mapped rows are damaged: they hold {damage}; write them anew with save_rows.")


def _from_dense(array: NDArray[Any]) -> Rows:
    if array.ndim != 2:
        raise ConfigurationError(f"the shape of the rows is {array.shape}; give two dimensions: rows and features.")
    present = array != 0  # a NaN is unequal to zero, so it stays to be refused
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    indices = np.nonzero(present)[1].astype(np.uint32)
    given = array[present]
    values, notes = _float32(given)
    if not np.isfinite(values).all():
        raise _not_finite(given, values)
    return frozen(indptr, indices, values, array.shape[1], ("a dense array to CSR", *notes), dense=True)


def _from_sparse(matrix: Any, threads: int) -> Rows:
    notes: tuple[str, ...] = ()
    if matrix.format != "csr":
        notes = (f"{matrix.format} to csr",)
        matrix = matrix.tocsr()
    rows, features = matrix.shape
    if features > MOST_FEATURES:
        raise ConfigurationError(
            f"the matrix has {features} columns; indices are 32 bits wide, so at most {MOST_FEATURES} are allowed: "
            "hash the features into fewer (HashingVectorizer, or FeatureHasher, with n_features)."
        )
    _check_pointer(matrix, rows)
    end = int(matrix.indptr[-1])
    indices, values = matrix.indices[:end], matrix.data[:end]
    narrow, converted, more = _narrowed(indices, values)
    found = frozen(matrix.indptr, narrow, converted, features, (*notes, *more))
    highest, in_order, finite = _surveyed(found, threads)
    cut = narrow.itemsize != indices.itemsize and (narrow != indices).any()
    if end and (cut or highest >= features):  # a negative index is a very large one without its sign
        raise ConfigurationError(
            f"the indices go from {indices.min()} to {indices.max()}; "
            f"the matrix has {features} columns, so allowed is 0 to {features - 1}."
        )
    if not finite:
        raise _not_finite(values, converted)
    return found if in_order else _sorted(matrix, found)


def _sorted(matrix: Any, found: Rows) -> Rows:
    matrix = matrix.copy()
    matrix.has_sorted_indices = False  # recheck it
    matrix.sort_indices()
    narrow, converted, _ = _narrowed(matrix.indices[: found.nonzeros], matrix.data[: found.nonzeros])
    notes = (*found.notes, "unsorted indices to sorted ones")
    return frozen(found.indptr, narrow, converted, found.features, notes)


def _check_pointer(matrix: Any, rows: int) -> None:
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    if len(indptr) != rows + 1 or indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise ConfigurationError(
            f"the row pointer has {len(indptr)} entries for {rows} rows; it must have one more than rows, begin at 0 "
            "and never fall: build the matrix again with scipy.sparse.csr_array."
        )
    if not indptr[-1] <= len(indices) == len(data):
        raise ConfigurationError(
            f"the row pointer ends at {indptr[-1]}, but there are {len(indices)} indices and {len(data)} values."
        )


def _surveyed(rows: Rows, threads: int) -> tuple[int, bool, bool]:
    """(The highest index, whether each row's are in order, whether all is finite): each thread looks at some of the rows."""
    bits = rows.values.view(np.uint32)

    def some(first: int, stop: int) -> tuple[int, bool, bool]:
        indptr = rows.indptr[first : stop + 1]
        inside = slice(indptr[0], indptr[-1])
        return _survey(indptr, rows.indices[inside], bits[inside])  # type: ignore[no-any-return]

    mean = rows.nonzeros // max(len(rows), 1)
    highest, in_order, finite = zip(*by_shares(shares(len(rows), threads, mean), some), strict=True)
    return max(highest), all(in_order), all(finite)


@compiled
def _survey(indptr, indices, bits):  # type: ignore[no-untyped-def]
    """One look at some rows, in vector registers. `indptr` need not begin at 0; `bits` are those of the values.

    Between two rows indices may fall: these falls are taken off the number of all.
    """
    if len(indices) == 0:
        return np.uint32(0), True, True
    highest, largest, falls = indices[0], bits[0] & _UNSIGNED, np.uint32(0)
    for i in range(1, len(indices)):
        index, size = indices[i], bits[i] & _UNSIGNED
        highest = index if index > highest else highest  # max() takes twice as long to compile
        largest = size if size > largest else largest
        falls += np.uint32(index < indices[i - 1])
    for row in range(1, len(indptr) - 1):
        at = indptr[row] - indptr[0]
        if indptr[row - 1] < indptr[row] and at < len(indices):
            falls -= np.uint32(indices[at] < indices[at - 1])
    return highest, falls == 0, largest < _INFINITY


def _narrowed(
    indices: NDArray[Any], values: NDArray[Any]
) -> tuple[NDArray[np.uint32], NDArray[np.float32], tuple[str, ...]]:
    """Both in 32 bits, and notes of the conversions."""
    converted, notes = _float32(values)
    if indices.dtype.itemsize == 4:
        return indices.view(np.uint32), converted, notes  # int32 and uint32 are the same bits: none is negative
    return indices.astype(np.uint32), converted, (f"{indices.dtype} indices to uint32", *notes)


def _float32(values: NDArray[Any]) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(np.float32, copy=False)
    return converted, () if values.dtype == np.float32 else (f"{values.dtype} values to float32",)


def _not_finite(values: NDArray[Any], converted: NDArray[np.float32]) -> ConfigurationError:
    bad = values[~np.isfinite(converted)]
    return ConfigurationError(
        f"{len(bad)} values are NaN, infinite or beyond float32 (the first is {bad[0]}); "
        "only finite numbers are allowed: drop or fill them, or scale the feature."
    )


def frozen(
    indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], features: int, notes: tuple[str, ...] = (), *,
    mapped: bool = False, dense: bool = False,
) -> Rows:  # fmt: skip
    """Rows over read-only views: Numba compiles for read-only and writable arrays apart, and once is enough."""
    views = _view(indptr, np.int64), _view(indices, np.uint32), _view(values, np.float32)
    return Rows(*views, features, notes, mapped, dense)


def _view(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    view = np.ascontiguousarray(array, dtype=dtype).view(np.ndarray)
    view.flags.writeable = False
    return view
