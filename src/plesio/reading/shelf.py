"""What the readers' process has to lend: a copy of one version, and of the rows that go with it.

A version lies in a file in memory that is sealed: whoever maps it can read it for as long as they like, and nobody can write to
it. So a slow reader holds nothing up. It has an old version, and that memory is given back when it lets go.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from plesio.errors import DeadlineError
from plesio.protocol.reading import ALL_ROWS, NO_ROWS, WITHIN_MAX_S, RowsGiven, VersionGiven
from plesio.reading.line import LineLostError
from plesio.reading.mirror import Mirror
from plesio.system.memory import check_room
from plesio.tables.file import from_memory

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
REMEMBERED = 10_000
"""Of how many versions it is known how often rows had stepped. Who was given an older one is given all rows."""


class Sealed:
    """Bytes in a file in memory that nobody can write to."""

    def __init__(self, content: memoryview) -> None:
        check_room(len(content), "a version for readers")
        self.fd = os.memfd_create("plesio version", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        done = 0
        while done < len(content):
            done += os.write(self.fd, content[done:])
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        self.memory = mapped(self.fd, len(content))
        self.bytes: memoryview = self.memory.numpy().data

    @cached_property
    def checksum(self) -> int:
        """Of what is sent: who maps it needs none."""
        return xxh3_64_intdigest(self.bytes)

    def __del__(self) -> None:
        os.close(self.fd)


def mapped(fd: int, nbytes: int) -> torch.Tensor:
    """A sealed file's bytes. What is written to them only this process sees."""
    return torch.frombuffer(mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE), dtype=torch.uint8)


class Lent(NamedTuple):
    """A version: what the server said of it, and its weights."""

    told: VersionGiven
    weights: Sealed


class Shelf:
    """The newest version that there is a copy of, and the `rows` of tables that go with it. One thread puts, others wait.

    `wake` is called when something is wanted.

    Attributes:
        wanted: whether somebody waits for a newer version, or for rows.
        final: there will be no other; `lost`: and that was not the run's last one.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self.newest: Lent | None = None
        self.put_s = 0.0  # when, on the monotonic clock
        self.wanted = self._rows_wanted = self.final = self.lost = False
        self.rows = Mirror(())
        self._changed = threading.Condition()
        self._clocks: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # by version, how often rows had stepped

    # The one who puts

    @property
    def since(self) -> int:
        """Which rows are to come with the next version, as `VersionRequest` has it."""
        if not self._rows_wanted:
            return NO_ROWS
        return self._clocks[-1][1] if self._clocks else ALL_ROWS

    def put(self, told: VersionGiven, weights: Sealed, files: Sequence[int]) -> None:
        """This is the newest version; `files`: rows that stepped since rows last came. These are closed."""
        shares = [from_memory(fd) for fd in files]
        with self._changed:
            if told.model is not None:
                self.rows = Mirror(told.tables)
            for share in shares:
                for name, rows in share.items():
                    self.rows.came(name, rows, told.clock, int(rows["seed"][0]))
            if files and (not self._clocks or told.version != self._clocks[-1][0]):  # the last one may come twice
                self._clocks.append((told.version, told.clock))
            self.newest, self.put_s = Lent(told, weights), time.monotonic()
            self.wanted, self.final = False, told.final
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing comes any more."""
        with self._changed:
            self.lost, self.final = not self.final, True
            self._changed.notify_all()

    # Those who wait

    def newer(self, than: int, within_s: float, tables: Mapping[str, int]) -> tuple[Lent | None, list[RowsGiven]]:
        """A version newer than that, if there is one in time; with the rows of `tables` that stepped after the versions there.
        Without time nobody is asked for one."""
        with self._changed:
            if tables:
                self._await_rows()
            if within_s:
                self._changed.wait_for(lambda: self._is_newer(than), within_s)
            if self.lost:
                raise LineLostError("the run's head has gone")
            if self.newest is None or self.newest.told.version <= than:
                return None, []
            return self.newest, [one for name, since in tables.items() for one in self._since(name, since)]

    def some_rows(self, name: str, keys: NDArray[np.int64] | None, since: int) -> list[RowsGiven]:
        """Rows of a table: of these keys, or those that stepped after version `since`."""
        with self._changed:
            self.rows.table(name)  # says if there is none
            self._await_rows()
            assert self.newest is not None, "rows come with a version"
            if keys is not None:
                return self.rows.told(name, self.newest.told.version, keys=keys)
            return self._since(name, since)

    def _since(self, name: str, version: int) -> list[RowsGiven]:
        assert self.newest is not None, "there are rows"
        clock = next((clock for known, clock in reversed(self._clocks) if known <= version), ALL_ROWS)
        return self.rows.told(name, self.newest.told.version, clock)

    def _await_rows(self) -> None:
        """They come for the first time when somebody wants some."""
        if not self._clocks:
            self._rows_wanted = True
            self._changed.wait_for(self._has_rows, WITHIN_MAX_S)
        if not self._clocks:
            raise DeadlineError(f"the rows of tables did not come within {WITHIN_MAX_S:g} s, or before the run ended")

    def _has_rows(self) -> bool:
        if self._clocks:
            return True
        self._ask()  # also after a version that was asked for before rows were
        return self.final

    def _is_newer(self, than: int) -> bool:
        if self.newest is not None and self.newest.told.version > than:
            return True
        self._ask()
        return self.final

    def _ask(self) -> None:
        if not (self.wanted or self.final):
            self.wanted = True
            self._wake()
