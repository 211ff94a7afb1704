"""Rows in a folder, to be mapped instead of read: then training needs memory for the model alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.csr import Rows, as_rows, frozen

_FORMAT = 1
_FILES = {"indptr": np.int64, "indices": np.uint32, "values": np.float32}


def save_rows(folder: str | Path, X: Any, y: Any = None) -> None:
    """Write rows and their targets into a folder that `open_rows` maps. The folder is there whole or not at all.

    Args:
        X: a matrix as for `as_rows`, or an iterable of (matrix, targets) pairs with the same number of columns:
            then no more than one pair is in memory at a time.
        y: the targets, one a row; with pairs they come from these.

    Raises ConfigurationError for what `as_rows` refuses, for a number of targets that is not that of the rows, and
    if the folder is there already.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as parent:
    ...     save_rows(f"{parent}/rows", np.eye(3), [0, 1, 1])
    ...     rows, y = open_rows(f"{parent}/rows")
    ...     rows.shape, y.tolist()
    ((3, 3), [0, 1, 1])
    """
    place = Path(folder)
    if place.exists():
        raise ConfigurationError(f"{str(place)!r} is there already; give the name of a new folder.")
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    blocks = X if _are_pairs(X) else [(X, y)]
    beside.mkdir(parents=True)
    try:
        _write_blocks(beside, blocks)
        beside.rename(place)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _are_pairs(X: Any) -> bool:
    """A list may be a matrix, too: then it does not begin with a matrix and its targets."""
    if not isinstance(X, (list, tuple)):
        return not (hasattr(X, "shape") or isinstance(X, Rows))
    first = X[0][0] if X and isinstance(X[0], (list, tuple)) and len(X[0]) == 2 else 0
    return isinstance(first, (Rows, list)) or len(getattr(first, "shape", ())) == 2


def _write_blocks(folder: Path, blocks: Iterable[tuple[Any, Any]]) -> None:
    features, count, targets = None, 0, []
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in _FILES}
        files["indptr"].write(np.zeros(1, np.int64).tobytes())
        for matrix, y in blocks:
            rows = as_rows(matrix)
            features = rows.features if features is None else features
            if rows.features != features or (y is not None and len(y) != len(rows)):
                raise ConfigurationError(
                    f"a block has {rows.features} columns, {len(rows)} rows and {'no' if y is None else len(y)} targets; "
                    f"{features} columns and one target a row are wanted."
                )
            files["indptr"].write((rows.indptr[1:] + count).tobytes())
            files["indices"].write(rows.indices.data)
            files["values"].write(rows.values.data)
            count += rows.nonzeros
            if y is not None:
                targets.append(_storable(np.asarray(y)))
    if targets:
        np.save(folder / "targets.npy", np.concatenate(targets), allow_pickle=False)
    (folder / "about.json").write_text(json.dumps({"format": _FORMAT, "features": features or 0, "nonzeros": count}))


def _storable(y: NDArray[Any]) -> NDArray[Any]:
    """Labels of dtype object as numbers or strings; a file of objects could hold code."""
    if y.dtype != object:
        return y
    plain = np.array(y.tolist())
    if plain.dtype == object or plain.shape != y.shape:
        raise ConfigurationError(f"the targets are objects such as {y.flat[0]!r}; wanted are numbers or strings.")
    return plain


def open_rows(folder: str | Path) -> tuple[Rows, NDArray[Any] | None]:
    """Map what `save_rows` wrote: (rows, targets), or None for targets that were not given. Nothing is read yet.

    Raises ConfigurationError if there are no rows in the folder or a file of it is cut short.
    """
    place = Path(folder)
    try:
        about = json.loads((place / "about.json").read_text())
        arrays = {name: _mapped(place / name, dtype) for name, dtype in _FILES.items()}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no rows in {str(place)!r}: {error}; write them with save_rows.") from error
    sizes = {name: len(array) for name, array in arrays.items()}
    if about.get("format") != _FORMAT or sizes["indices"] != about["nonzeros"] or sizes["values"] != about["nonzeros"]:
        raise ConfigurationError(f"the rows in {str(place)!r} are damaged: {sizes} entries, expected {about}.")
    path = place / "targets.npy"
    targets = np.load(path, mmap_mode="r", allow_pickle=False) if path.exists() else None
    return frozen(arrays["indptr"], arrays["indices"], arrays["values"], about["features"], mapped=True), targets


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
