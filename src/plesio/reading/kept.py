"""Rows of a run's tables in the memory of a process that serves them: `Reader.keep`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

import numpy as np
import torch

from plesio.errors import ConfigurationError, PlesioError
from plesio.protocol.reading import Opened, RowsGiven
from plesio.reading.mirror import Mirror
from plesio.tables.module import flat_of

log = logging.getLogger("plesio")
CLOSE_S = 2.0
Ask = Callable[[bytes, Mapping[str, int]], tuple[Opened, dict[str, list[RowsGiven]]]]
"""Which rows changed, for one that has those of this run in these versions, by table."""


class Size(NamedTuple):
    """How many rows a table has, of `dim` numbers each, as it is with `version`."""

    rows: int
    dim: int
    version: int


class KeptRows:
    """The rows of all tables. A thread has them follow the run; any thread may ask for some.

    While the run cannot be reached rows are given as they were. All are replaced at once if another run begins at its address.

    Attributes:
        tables: their names.
        heard_s: when the run was last heard of, by `time.monotonic`.
        away: why it could not be reached since; empty if it could.
    """

    def __init__(self, ask: Ask, every_s: float) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not every_s > 0:
            raise ConfigurationError(f"every_s={every_s!r}: a number of seconds above 0")
        self._ask, self._every_s, self._run, self._mirror, self.away = ask, every_s, b"", Mirror(()), ""
        self._versions: dict[str, int] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._look()
        if not self.tables:
            raise ConfigurationError("the run has no rows to keep: its model has no ps.Table")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._look()
            except PlesioError as error:
                if not (self.away or self._closed.is_set()):
                    log.warning("rows are served as they were: %s", error)
                self.away = str(error)

    def _look(self) -> None:
        opened, given = self._ask(self._run, self._versions)
        mirror = self._mirror if opened.run == self._run else Mirror(opened.tables)
        with self._lock:
            for name, pieces in given.items():
                for one in pieces:
                    mirror.given(name, one)
            self._run, self._mirror, self.tables = opened.run, mirror, mirror.names
            self._versions = {name: pieces[-1].version for name, pieces in given.items()}
        self.heard_s, self.away = time.monotonic(), ""

    def size(self, table: str) -> Size:
        with self._lock:
            store = self._mirror.table(table)
            return Size(store.rows, store.spec.dim, self._versions[table])

    def rows(self, table: str, ids: torch.Tensor | Iterable[int]) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Their version, the rows of these ids, (n, dim), and whether each has one, (n,): others have the first values of one."""
        keys = flat_of(ids if torch.is_tensor(ids) else torch.tensor(list(ids), dtype=torch.int64))
        with self._lock:
            store = self._mirror.table(table)
            vectors = np.empty((len(keys), store.spec.dim), np.float32)
            known = store.pull(keys, vectors) >= 0
            return self._versions[table], torch.from_numpy(vectors), torch.from_numpy(known)

    def close(self) -> None:
        """Follow no longer. The rows stay."""
        self._closed.set()
        self._thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
