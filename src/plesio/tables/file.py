"""Rows in safetensors: a table's file with its spec in the header, and tables on their way to another process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save, save_file
from xxhash import xxh3_128_hexdigest

from plesio.errors import CheckpointError
from plesio.system.disk import to_disk
from plesio.system.memory import anonymous_file
from plesio.tables.links import ALIKE, rows_beside
from plesio.tables.links import KeptRows as KeptRows
from plesio.tables.spec import TableSpec

FORMAT = "1"
NAME_MAX = 150  # letters of a table's name in that of its file


def files_of(names: Collection[str]) -> dict[str, str]:
    """A file for each table of a run, by name. No two share one, even where the file system ignores case.

    A name is written as in a URL. A hash follows if it is long, or if another differs from it only by case. The file's
    header has the name itself, in "spec".

    >>> list(files_of(["ids", "user/id", "user_id"]).values())
    ['table-ids.safetensors', 'table-user%2Fid.safetensors', 'table-user_id.safetensors']
    """
    quoted = {name: quote(name, safe="") for name in names}
    alike = Counter(one.lower() for one in quoted.values())
    for name, one in quoted.items():
        if len(one) > NAME_MAX or alike[one.lower()] > 1:
            quoted[name] = f"{one[:NAME_MAX]}%-{xxh3_128_hexdigest(one.encode())}"  # no quoted name has "%-"
    return {name: f"table-{one}.safetensors" for name, one in quoted.items()}


def save_rows(path: str | Path, spec: TableSpec, kept: KeptRows) -> None:
    """Write a table: the file is there whole or not at all.

    Raises CheckpointError if it cannot be written.
    """
    place = Path(path)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        save_file(dict(kept), beside, metadata={"format": FORMAT, "spec": msgspec.json.encode(spec).decode()})
        to_disk(beside)
        os.replace(beside, place)
        to_disk(place.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            beside.unlink()
        raise CheckpointError(f"{place} cannot be written: {error}; make room, or give another path") from error


def spec_of(path: Path) -> TableSpec:
    """What the table is that a run left in that file."""
    with safe_open(path, framework="np") as file:
        return msgspec.json.decode((file.metadata() or {})["spec"], type=TableSpec)


def load_rows(path: str | Path, spec: TableSpec) -> KeptRows:
    """The rows of a file, for a table of this spec; of one in a checkpoint with those of the files that go on from it.

    Raises CheckpointError if there is none, it is damaged, or of rows of another width or rule.
    """
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            if "name" in header:  # of a checkpoint
                return rows_beside(Path(path))
            rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        saved = msgspec.json.decode(header.get("spec", ""), type=TableSpec)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; give the path of a table that was saved") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {header.get('format')!r}; this plesio reads {FORMAT}")
    if saved.dim != spec.dim or type(saved.optimizer) is not type(spec.optimizer):
        raise CheckpointError(
            f"{path} has rows of dim={saved.dim} under {saved.optimizer}; this table has dim={spec.dim} and {spec.optimizer}"
        )
    return rows


def in_memory(tables: Mapping[str, KeptRows]) -> int:
    """The descriptor of a file in memory that holds these tables."""
    arrays = {f"{part} {name}": array for name, rows in tables.items() for part, array in rows.items()}
    fd = anonymous_file(0, "the rows of tables")
    with open(fd, "wb", closefd=False) as file:
        file.write(save(arrays))
    return fd


def from_memory(fd: int) -> dict[str, dict[str, NDArray[Any]]]:
    """The tables in such a file, by name; the descriptor is closed."""
    tables: dict[str, dict[str, NDArray[Any]]] = {}
    with open(fd, "rb") as file:
        file.seek(0)
        arrays = load(file.read())
    for key, array in arrays.items():
        part, name = key.split(" ", 1)
        tables.setdefault(name, {})[part] = array
    return tables


def joined(shares: Sequence[Mapping[str, KeptRows]]) -> Mapping[str, KeptRows]:
    """The rows of all tables, by name, from what each server holds of them."""
    if len(shares) == 1:
        return shares[0]
    return {
        name: {
            part: array if part in ALIKE else np.concatenate([share[name][part] for share in shares])
            for part, array in rows.items()
        }
        for name, rows in shares[0].items()
    }


def last_step(kept: KeptRows) -> int:
    """The last version that kept rows, and keys that wait for one, know of: the clock, if the last fold is among them."""
    return int(np.append(kept["versions"], kept.get("counted", ())).max(initial=0))


def on_one_clock(brought: Mapping[str, KeptRows]) -> tuple[dict[str, KeptRows], int]:
    """Tables that had clocks of their own, on one: all rows stay as long unused as they are. And that clock."""
    clocks = {name: last_step(rows) for name, rows in brought.items()}
    clock, shifted = max(clocks.values()), dict[str, KeptRows]()
    for name, rows in brought.items():
        later = {part: rows[part] + clock - clocks[name] for part in ("versions", "counted") if part in rows}
        shifted[name] = {**rows, **later}
    return shifted, clock


def checked(kept: KeptRows, name: str, kind: Any, shape: tuple[int, ...]) -> Any:
    """One of the arrays as kernels take it; -1: of any length. Raises CheckpointError for another type or shape."""
    array: Any = kept.get(name)
    good = isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == len(shape)
    if not good or shape not in (array.shape, (-1,)):
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        shown = "(n,)" if shape == (-1,) else shape
        raise CheckpointError(f"{name}: got {got}, allowed is an array of {np.dtype(kind).name} {shown}")
    return np.require(array, requirements=["C", "A", "W"])
