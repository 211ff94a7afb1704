"""Rows of a run's tables, followed from outside: at first all, then those that stepped since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.protocol.reading import ALL_ROWS, RowsGiven
from plesio.tables.spec import RowSGD, TableSpec
from plesio.tables.store import Store

PIECE_BYTES = 4 << 20


class Mirror:
    """The tables of a run, without what their optimizers keep; empty until rows come."""

    def __init__(self, specs: tuple[TableSpec, ...]) -> None:
        self._specs = {one.name: replace(one, optimizer=RowSGD(lr=1.0)) for one in specs}
        self._stores: dict[str, Store] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def table(self, name: str) -> Store:
        """Its rows. Raises ConfigurationError if there is no such table."""
        if name not in self._specs:
            known = f"it has {', '.join(self._specs)}" if self._specs else "its model has no ps.Table"
            raise ConfigurationError(f"the run has no table {name!r}: {known}")
        if name not in self._stores:
            self._stores[name] = Store(self._specs[name])
        return self._stores[name]

    def came(self, name: str, rows: Mapping[str, NDArray[Any]], clock: int, seed: int) -> None:
        """These rows of a table stepped, up to this clock."""
        store = self.table(name)
        if store.spec.seed != seed:
            store.spec = replace(store.spec, seed=seed)
        store.catch_up(rows, clock)

    def given(self, name: str, given: RowsGiven) -> None:
        """The same, as it was told."""
        store = self.table(name)
        keys, values = np.frombuffer(given.keys, np.int64), np.frombuffer(given.values, np.float32)
        versions = np.frombuffer(given.stamps, np.uint32).astype(np.int64)
        if len(values) != len(keys) * store.spec.dim or len(versions) != len(keys):
            raise ConfigurationError(f"{len(keys)} rows of table {name!r} came with {len(values)} numbers")
        rows: dict[str, NDArray[Any]] = {
            "keys": keys,
            "values": values.reshape(-1, store.spec.dim),
            "versions": versions,
        }
        self.came(name, rows, given.clock, given.seed)

    def told(
        self, name: str, version: int, since: int | None = None, keys: NDArray[np.int64] | None = None
    ) -> list[RowsGiven]:
        """Rows with that version, in messages: those of `keys`, or those that stepped after the clock `since`."""
        store = self.table(name)
        if keys is not None:
            values, stamps = np.empty((len(keys), store.spec.dim), np.float32), np.empty(0, np.uint32)
            store.pull(keys, values)
        else:
            kept = store.kept(ALL_ROWS if since is None else since)
            keys, values, stamps = kept["keys"], kept["values"], kept["versions"].astype(np.uint32)
        most = max(1, PIECE_BYTES // (12 + 4 * store.spec.dim))
        return [
            RowsGiven(
                version,
                store.clock,
                store.held,
                store.spec.seed,
                keys[at : at + most].tobytes(),
                values[at : at + most].tobytes(),
                stamps[at : at + most].tobytes(),
                at + most < len(keys),
            )
            for at in range(0, len(keys) or 1, most)
        ]
