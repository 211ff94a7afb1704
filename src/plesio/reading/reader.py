"""`ps.read`'s reader: the newest version of a run under way, for whoever contributes nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from plesio.errors import (
    ConfigurationError,
    DeadlineError,
    ModelMismatchError,
    as_utf8,
)
from plesio.protocol import reading
from plesio.reading.following import Following, check_at_least
from plesio.reading.kept import KeptRows, Size
from plesio.reading.line import NearLine, proof_of
from plesio.reading.mirror import Mirror
from plesio.reading.place import ReadingPlace
from plesio.reading.run_line import RunLine, ToReader, heard, pieces
from plesio.reading.weights import Weights
from plesio.strategy.answers.codec import Codec, codec_of
from plesio.tables.module import Table, flat_of, named_tables
from plesio.tables.store import load_kernels
from plesio.tables.window import Local
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.packing import Packing
from plesio.transport.board import Board

SLICE_S = 1.0
NEVER = 1 << 62
"""No version is newer than that: whoever asks for one is told which is the newest."""


class Rows(NamedTuple):
    """Rows of a table as they are with `version`: `ids` and their `vectors`, (n,) and (n, dim)."""

    version: int
    ids: torch.Tensor
    vectors: torch.Tensor


class Reader:
    """One that reads a run under way: `ps.read`, and `Worker.reader`.

    What it has is of one version: weights, buffers, and rows of tables. It takes a newer one when it is asked to (`take`, `wait`,
    `load`, or a model that it follows). A version that it skipped costs nothing. It reconnects by itself, also with a head that
    was started again.

    Attributes:
        version: what it took last; -1 before.
        time_s, samples: when that was made, in seconds since training began, and what the run had used by then.
        exact: it is that version to the last bit, and not what came of packed differences.
        ended: the run is over, and this is its last version.
        torn: under this strategy workers write while a version is copied (`hogwild`).
    """

    def __init__(
        self, place: ReadingPlace, name: str | None = None, codec: str | Codec | None = None, timeout_s: float = 60.0
    ) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise ConfigurationError(f"timeout_s={timeout_s!r}: a number of seconds above 0")
        self._place, self._where, self._timeout_s = place, str(place), timeout_s
        name = (name or f"{socket.gethostname()}:{os.getpid()}")[: reading.NAME_MAX]
        self._codec = codec_of(codec)
        if self._codec is not None:  # it takes a second, in which a run may end
            Packing(Layout(()), self._codec).ready()
        self._newest: Callable[[], int] | None = None  # on the run's own host
        self._told_newest = -1
        self._opened: reading.Opened | None = None
        self._rows_at: dict[str, int] = {}  # the version of a table's rows in the mirror
        self._changed_at = -1  # the newest version that `changed` returned of this run
        self.version, self.time_s, self.samples = -1, 0.0, 0
        self.exact, self.ended = True, False
        self._run = RunLine(place, name, timeout_s, self._open, lambda: self.ended)
        self._run.ask(lambda line: None)

    # What there is

    @property
    def torn(self) -> bool:
        return self._about.torn

    @property
    def strategy(self) -> str:
        """What the run's is called."""
        return self._about.strategy

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the run's tables."""
        return tuple(one.name for one in self._about.tables)

    @property
    def newest(self) -> int:
        """The run's newest version: on its own host a look at a number in shared memory, elsewhere a question."""
        if self._newest is not None:
            return max(self._newest(), self.version)
        if not self.ended:
            self._run.ask(self._look)
        return self._told_newest

    @property
    def _about(self) -> reading.Opened:
        assert self._opened is not None, "it is told when it connects"
        return self._opened

    # Taking versions

    def take(self, exact: bool = False) -> int:
        """Take the newest version, as it was a tenth of a second ago at the earliest; its number. The first waits until the run
        trains. `exact`: all of it to the last bit, where differences are packed (`codec=`). A run's last version always is."""
        self._take(0.0 if self.version >= 0 else self._timeout_s)
        if exact and not self.exact:
            self._run.ask(self._want_whole)
        return self.version

    def wait(self, newer_than: int | None = None, timeout_s: float | None = None) -> bool:
        """Wait for a newer version than `newer_than` (left out: than the one it has), and take the newest. False: the run has
        ended, and there is none.

        Raises:
            DeadlineError: none came in time (`timeout_s`, left out: the reader's).
            ServerLostError: the run's head cannot be reached.
        """
        than = self.version if newer_than is None else newer_than
        within_s = self._timeout_s if timeout_s is None else timeout_s
        came = self._take(within_s, than)
        if not (came or self.ended):
            raise DeadlineError(f"no version newer than {than} came from {self._where} within {within_s:g} s")
        return came

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The newest version's weights and buffers by the model's names, as a checkpoint of it holds them. On the run's own host
        they are the memory that the version lies in. Whoever writes to one writes to a copy of that page, which `load`
        copies, too, as long as there is no newer version."""
        self.take()
        views = self._arena.views
        return {name: views[index] if self._newest else views[index].clone() for name, index in self._about.model.names}

    def load(self, model: nn.Module, *, at_least: int = 0) -> int:
        """Take the newest version into a model, in place, with the rows of its tables; its number. Rows are the reader's: models
        that it loaded before look up the same ones. Take a reader for each, if they are to keep theirs.

        Args:
            model: built as the run builds it.
            at_least: no earlier version will do; it is waited for.

        Raises:
            ModelMismatchError: the model is not the run's.
            DeadlineError: no such version came within the reader's `timeout_s`.
        """
        tables = {name: one for name, one in named_tables(model).items() if name in self.tables}
        if self.version >= at_least:
            self._take(0.0, tables=tables)
        elif not (self._take(self._timeout_s, at_least - 1, tables) or self.ended):
            raise DeadlineError(f"version {at_least} did not come from {self._where} within {self._timeout_s:g} s")
        if self.ended:
            self._take(0.0, tables=tables)  # the last rows, if it has not those
        for name, table in tables.items():
            local = Local(self._mirror.table(name).spec)
            local.store = self._mirror.table(name)
            table.source = local  # each time: what it looked up before is forgotten
        self._into(model)
        return self.version

    def _into(self, model: nn.Module) -> None:
        views, own = self._arena.views, model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, index in self._about.model.names:
                tensor, view = own.get(name), views[index]
                if tensor is None or tensor.shape != view.shape:
                    has = "no such tensor" if tensor is None else f"shape {tuple(tensor.shape)}"
                    raise ModelMismatchError(
                        f"{name}: the run has shape {tuple(view.shape)}, the model {has}; build it as the run does"
                    )
                tensor.copy_(view)

    def follow(
        self,
        model: nn.Module,
        *,
        every_s: float | None = None,
        every_versions: int | None = None,
        max_age: int | None = None,
    ) -> Following:
        """Have a model take newer versions by itself, each at the beginning of a forward pass, until the result is closed.

        Args:
            every_s: at most so often, in seconds; left out, with the other two: 1.
            every_versions: when the run is so many versions ahead.
            max_age: what a forward pass begins with is at most so many versions old. (It may go on while others are made.)

        >>> reader = ps.read("127.0.0.1:7171")  # doctest: +SKIP
        >>> with reader.follow(policy, max_age=4):  # doctest: +SKIP
        ...     action = policy(observation)
        """
        return Following(self, model, every_s, every_versions, max_age)

    @property
    def _arena(self) -> Arena:
        if self._has.arena is None:
            raise DeadlineError(f"no version came from {self._where}: the run does not train yet, or not any more")
        return self._has.arena

    # Rows of tables

    def rows(self, table: str, ids: torch.Tensor | Iterable[int]) -> torch.Tensor:
        """The rows of these ids as they are now, (n, dim); of an id that has none what it begins with."""
        keys = flat_of(ids if torch.is_tensor(ids) else torch.tensor(list(ids), dtype=torch.int64))
        found = [
            torch.from_numpy(np.frombuffer(one.values, np.float32).reshape(-1, self._dim(table)).copy())
            for at in range(0, len(keys) or 1, reading.KEYS_MAX)
            for one in self._rows_of(reading.WantRows(table, keys[at : at + reading.KEYS_MAX].tobytes()))
        ]
        return torch.cat(found)

    def changed(self, table: str, since: int = -1) -> Rows:
        """The rows that stepped after version `since`, and perhaps some more. All, if it is left out, or this reader had no such
        version of this head. Go on with the result's version."""
        got = self._rows_of(reading.WantRows(table, since=since))
        dim = self._dim(table)
        ids = [torch.from_numpy(np.frombuffer(one.keys, np.int64).copy()) for one in got]
        vectors = [torch.from_numpy(np.frombuffer(one.values, np.float32).reshape(-1, dim).copy()) for one in got]
        return Rows(got[-1].version, torch.cat(ids), torch.cat(vectors))

    def keep(self, every_s: float = 1.0) -> KeptRows:
        """Keep the rows of all tables in this process, where a thread follows what changes: for those who serve them.

        >>> rows = ps.read("127.0.0.1:7171").keep(every_s=0.5)  # doctest: +SKIP
        >>> version, vectors, known = rows.rows("users", [17, 4])  # doctest: +SKIP
        """
        return KeptRows(self._changes, every_s)

    def _changes(
        self, run: bytes, since: Mapping[str, int]
    ) -> tuple[reading.Opened, dict[str, list[reading.RowsGiven]]]:
        """Of each table the rows that changed after its version, if it is this run that goes on; else all."""

        def ask(line: ToReader) -> tuple[reading.Opened, dict[str, list[reading.RowsGiven]]]:
            given = {}
            for name in self.tables:
                line.say(reading.WantRows(name, since=since[name] if run == self._about.run else -1))
                given[name] = pieces(line)
            return self._about, given

        return self._run.ask(ask)

    def size(self, table: str) -> Size:
        """How many rows a table has, of how many numbers each, and with which version."""
        (got,) = self._rows_of(reading.WantRows(table, b""))
        return Size(got.rows, self._dim(table), got.version)

    def _dim(self, table: str) -> int:
        if table not in self.tables:
            known = ", ".join(self.tables) or "none: its model has no ps.Table"
            raise ConfigurationError(f"the run has no table {table!r}; it has {known}")
        return next(one.dim for one in self._about.tables if one.name == table)

    def _rows_of(self, want: reading.WantRows) -> list[reading.RowsGiven]:
        self._dim(want.table)

        def ask(line: ToReader) -> list[reading.RowsGiven]:
            known = max(self._changed_at, self.version)  # what is above is of a head before, which had other rows
            line.say(want if want.since <= known else reading.WantRows(want.table))
            got = pieces(line)
            if want.keys is None:
                self._changed_at = got[-1].version
            return got

        return self._run.ask(ask)

    # Asking

    def _take(self, within_s: float, than: int | None = None, tables: Mapping[str, Table] = {}) -> bool:
        """Have a version newer than that, if there is one in time, and whether there was; of another head any is. It asks in
        slices, so that signals are heard."""
        run, end_s, known = self._about.run, time.monotonic() + within_s, self.version if than is None else than
        lacks = any(self._rows_at.get(name, -1) < known for name in tables)
        known -= lacks  # then the version that it has will do, for its rows

        def newer_than() -> int:
            return known if self._about.run == run else -1

        while lacks or not self.ended:
            slice_s = min(max(0.0, end_s - time.monotonic()), SLICE_S)
            self._run.ask(partial(self._want, newer_than, slice_s, tables))
            if self.version > newer_than() or time.monotonic() >= end_s:
                break
        return self.version > newer_than()

    def _want(
        self, newer_than: Callable[[], int], within_s: float, tables: Mapping[str, Table], line: ToReader
    ) -> None:
        since = {name: self._rows_at.get(name, -1) for name in tables}
        line.say(reading.Want(newer_than(), within_s, self._has.held, *self._has.packs(line), since))
        told = heard(line, reading.Given | reading.Nothing, within_s)
        self._told_newest = told.newest
        if isinstance(told, reading.Given):
            self._came(line, told)
        else:
            self.ended = told.final and self.version >= told.newest
        if told.final and not (self.ended and self.exact):
            self._want_whole(line)  # the last one, however new a version was asked for
        if isinstance(told, reading.Nothing):
            if self.ended:  # where rows step as contributions come, some did since
                self._rows_at = dict.fromkeys(self._rows_at, self.version - 1)
            return
        came = {name: pieces(line) for name in since}  # all, before a model sees any
        for name, given in came.items():
            for one in given:
                self._mirror.given(name, one)
            self._rows_at[name] = told.version

    def _want_whole(self, line: ToReader) -> None:
        """What it has to the last bit, or a newer version."""
        line.say(reading.Want(self.version - 1, 0.0, -1, *self._has.packs(line)))
        self._came(line, heard(line, reading.Given))

    def _came(self, line: ToReader, told: reading.Given) -> None:
        """Take the weights that come with this."""
        self._has.take(line, told)
        self.version, self.time_s, self.samples, self.ended = told.version, told.time_s, told.samples, told.final
        self.exact = not told.packed

    def _look(self, line: ToReader) -> None:
        line.say(reading.Want(NEVER))
        told = heard(line, reading.Nothing)
        self._told_newest = told.newest

    def versions(self, *, every_s: float = 0.0, every_versions: int = 1) -> Iterator[int]:
        """Version after version, at most so often, until the run ends; its last one always comes. What is slow skips some.

        >>> for version in reader.versions(every_s=10):  # doctest: +SKIP
        ...     reader.load(model)
        ...     reader.tell({"accuracy": accuracy_of(model)})

        Args:
            every_s: least seconds from one version to the next.
            every_versions: how many versions later the next one is, at least.
        """
        check_at_least(every_s=(every_s, 0), every_versions=(every_versions, 1))
        run, had, due_s = b"", -1, 0.0
        while True:
            while not self.ended and (left_s := due_s - time.monotonic()) > 0:
                time.sleep(min(left_s, SLICE_S))
                self.over()
            self._take(inf, had + every_versions - 1 if had >= 0 and run == self._about.run else -1)
            if (run, had) == (self._about.run, self.version):
                return
            due_s = time.monotonic() + every_s
            yield self.version
            run, had = self._about.run, self.version  # it may have been loaded meanwhile, and a newer one came

    def over(self) -> bool:
        """Ask whether the run is over. Then it has the last version, as `ended` says."""
        self._take(0.0, NEVER)
        return self.ended

    def tell(self, metrics: Mapping[str, float]) -> None:
        """Put what was measured of this version into the run's record, as `evaluate=` does. It takes the token of workers.

        From the first time on, the run's end waits until the last version is judged. Tell {} before, and it does so at once.

        Raises:
            ConfigurationError: that is not known here, these are no numbers, or no version was taken.
        """
        try:
            measured = {as_utf8(str(name)): float(value) for name, value in metrics.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError(f"tell({metrics!r}): names and numbers, such as {{'accuracy': 0.93}}") from None
        if measured and self.version < 0:
            raise ConfigurationError("tell: no version was taken yet of which these numbers are; load(model) takes one")

        def say(line: ToReader) -> None:
            proof = proof_of(self._place.worker_token, self._about.nonce)
            line.say(reading.Measured(self.version, self.time_s, self.samples, measured, proof))
            heard(line, reading.Noted)

        self._run.ask(say)

    def _open(self, opened: reading.Opened, line: ToReader) -> None:
        """Over this line the run is like that. What the reader has is of the same head, or it begins anew."""
        self._newest = Board.watched(line.taken()[0]) if isinstance(line, NearLine) else None
        if self._opened is None or self._opened.run != opened.run:  # another head may go on from an earlier version
            self.version, self.ended = -1, False
            self._has = Weights(Layout(opened.model.specs), self._codec)
            self._mirror, self._rows_at, self._changed_at = Mirror(opened.tables), {}, -1
            if opened.tables:
                load_kernels()  # now, and not while the run waits at its end
        self._opened = opened
        self._has.forget()

    def close(self) -> None:
        """Hang up. What was taken stays."""
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        raise TypeError("a reader is of its process: give the other one the address, and have it call ps.read")
