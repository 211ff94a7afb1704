"""The files that hold a table's rows in a checkpoint: the first has all rows, each later one those that stepped since.

In a file, `keys` say whose rows `values`, `state` and `versions` are, and `candidates` whose `counts` and `counted` are. The last
file that has a key holds its row, or its count. Of several servers each has files of its own, with keys of its own. Nothing says
that a row is gone: whoever restores rows finds that by their versions and the clock. A key that stepped after it was counted last
waits for a row no longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from plesio import tables
from plesio.errors import CheckpointError

_NUMBER = r"(0|[1-9]\d{0,8})"
FILE = re.compile(rf"table-{_NUMBER}(?:-{_NUMBER})?(?:\.{_NUMBER})?\.safetensors")
KeptRows = Mapping[str, NDArray[Any]]
"""A table's rows, as `plesio.tables.store.Store.kept` returns them."""
WAITS = ("candidates", "counts", "counted")
"""Arrays of keys that have no row yet (`plesio.Seen`)."""
ALIKE = ("seed",)
"""Arrays that are of the whole table."""


def numbers_in(name: str) -> tuple[int, int, int]:
    """The numbers of a file: its table's, its own among those of the table, its server's."""
    found = FILE.fullmatch(name)
    assert found is not None, "it is a table's"
    table, server, link = (int(one or 0) for one in found.groups())
    return table, link, server


def write_rows(folder: Path, link: int, tables: Mapping[str, KeptRows], server: int | None = None) -> None:
    """Write file number `link` of each table; `server`: which of several holds these rows."""
    whose = "" if server is None else f"-{server}"
    for index, (name, rows) in enumerate(tables.items()):
        file = f"table-{index}{whose}{f'.{link}' if link else ''}.safetensors"
        save_file(dict(rows), folder / file, metadata={"name": name})


def rows_in(folder: Path, files: Iterable[str], some: Callable[[KeptRows], KeptRows] = dict) -> dict[str, KeptRows]:
    """The rows of each table, by its name, of the files in a checkpoint; `some`: which rows of a file."""
    found: dict[str, list[KeptRows]] = {}
    for file in sorted(filter(FILE.fullmatch, files), key=numbers_in):
        with safe_open(folder / file, framework="numpy") as opened:
            arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            found.setdefault(opened.metadata()["name"], []).append(some(arrays))
    return {name: merged(links) for name, links in found.items()}


def rows_beside(file: Path) -> KeptRows:
    """The rows of the table that a file in a checkpoint is of. Raises CheckpointError where it has another name than there."""
    if FILE.fullmatch(file.name):
        tables = [one.name for one in file.parent.iterdir() if FILE.fullmatch(one.name)]
        same = [one for one in tables if numbers_in(one)[0] == numbers_in(file.name)[0]]
        return next(iter(rows_in(file.parent, same).values()))
    raise CheckpointError(
        f"{file} was a table's file in a checkpoint, and the rows of such a table may be in several: give its path there"
    )


def merged(links: Sequence[KeptRows]) -> dict[str, NDArray[Any]]:
    """The rows of a chain, keys in the order in which they first appear.

    >>> first = {"keys": np.array([5, 3]), "values": np.array([[1.0], [2.0]])}
    >>> later = {"keys": np.array([3, 8]), "values": np.array([[7.0], [9.0]])}
    >>> {name: array.tolist() for name, array in merged([first, later]).items()}
    {'keys': [5, 3, 8], 'values': [[1.0], [7.0], [9.0]]}
    """
    if len(links) == 1:
        return dict(links[0])
    waits = [name for name in WAITS if name in links[0]]
    alike = {name: links[0][name] for name in ALIKE if name in links[0]}
    out = alike | _last(links, "keys", [name for name in links[0] if name not in (*waits, *alike)])
    if not waits:
        return out
    waiting = _last(links, "candidates", waits)
    distinct, count = tables.Distinct(), len(out["keys"])
    distinct.add(out["keys"])
    places = distinct.add(waiting["candidates"])
    stepped = np.append(out["versions"], -1)[np.minimum(places, count)]  # -1: no row
    return out | {name: array[stepped < waiting["counted"]] for name, array in waiting.items()}


def _last(links: Sequence[KeptRows], keys: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays that go by `keys`: of each key what the last link has that has the key."""
    distinct, out = tables.Distinct(), dict[str, NDArray[Any]]()
    places = [distinct.add(link[keys]) for link in links]
    for name in names:
        out[name] = np.empty((len(distinct), *links[0][name].shape[1:]), links[0][name].dtype)
        for place, link in zip(places, links, strict=True):
            out[name][place] = link[name]
    return out
