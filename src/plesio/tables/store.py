"""Rows by key: where they are kept and stepped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from plesio.errors import CheckpointError, ConfigurationError, PlesioError, SharedMemoryError
from plesio.kernels.first_time import one_compiles
from plesio.tables import life, undo
from plesio.tables import rows as kernels
from plesio.tables.dealing import deal
from plesio.tables.distinct import Distinct, Sum, add_at
from plesio.tables.file import checked
from plesio.tables.hot import HotKeys
from plesio.tables.index import FREED, KEY, ROWS, VERSION, WIDTH
from plesio.tables.reserved import SLOTS, Arrays, reserve
from plesio.tables.rules import rule_of
from plesio.tables.spec import VERSIONS, RowSGD, Seen, TableSpec, Unused

SLICE = 4096
"""Rows of a sweep."""

COPIED = 1 << 13
"""Rows that are copied at once."""


class Folded(NamedTuple):
    """What a fold did: rows stepped; of these born; those last folded after the version `seen`, and by how much in all.

    `refused`: keys that have no row yet; `evicted`: rows that had died.
    """

    rows: int
    born: int
    stale: int
    staleness_sum: int
    refused: int = 0
    evicted: int = 0


class Store:
    """The rows of one table by 64-bit key; any int64 is a key.

    A row is born when it is first folded, not when it is pulled. One thread at a time may use a store. `clock`, the version of
    the last fold unless it is set, says which rows have died. These have no part in what is pulled, kept or summed, wherever
    a sweep is. So where rows expire, versions must not go down.

    `survives`: 0, or how many keys a fold has at most. Then the store lies in memory that processes share which are forked from
    this one. What a fold and a sweep did since `begin_fold` is kept there, too, so that it can be taken back.

    >>> store, keys, out = Store(TableSpec("ids", 2, RowSGD(lr=0.5))), np.array([7, -1]), np.empty((2, 2), np.float32)
    >>> places = store.pull(keys, out)
    >>> store.fold(keys, places, np.ones_like(out), np.ones(2, np.uint8), version=1, seen=0)
    Folded(rows=2, born=2, stale=0, staleness_sum=0, refused=0, evicted=0)
    >>> store.pull(keys, out - 0.5).tolist(), store.rows
    ([0, 1], 2)
    """

    def __init__(self, spec: TableSpec, survives: int = 0) -> None:
        self.spec, self._named = spec, f"table {spec.name!r}"
        self._kept = 6 * survives + SLICE if survives else 0  # each row of a fold twice, and its sweep's
        self._kind, self._numbers, self._bias = rule_of(spec.optimizer)
        self._initial = np.float32(getattr(spec.optimizer, "initial", 0.0))
        self._unborn = Distinct()
        self._times = spec.admit.times if spec.admit is not None else 0
        self._life = spec.expire.versions if spec.expire is not None else life.FOREVER
        self.clock = 0
        self._at, self._candidates = self._empty()
        self._still: tuple[int, Arrays] | None = None  # the clock, and copies of what stepped since
        self._moved = False  # whether a place may be another key's than when it was given out

    def _empty(self) -> tuple[Arrays, Arrays | None]:
        width = self.spec.row_floats + VERSION
        candidates = reserve(life.COUNT_WORDS, self._kept) if self._times else None
        return reserve(width + width % 2, self._kept), candidates

    @property
    def _first(self) -> tuple[Any, ...]:
        """What first values are made of."""
        return self.spec.dim, np.int64(self.spec.seed), np.float32(self.spec.scale)

    @property
    def rows(self) -> int:
        """How many rows live."""
        return self.held if self.spec.expire is None else self._living(self._at)

    @property
    def held(self) -> int:
        """How many rows have memory: those that live, and the dead that no sweep has come to."""
        return int(self._at.numbers[ROWS] - self._at.numbers[FREED])

    @property
    def candidates(self) -> int:
        """How many keys wait for a row."""
        return self._living(self._candidates) if self._candidates is not None else 0

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes: rows and index, and what counts the keys that have no row yet."""
        return _nbytes(self._at) + (_nbytes(self._candidates) if self._candidates is not None else 0)

    def _living(self, at: Arrays) -> int:
        return int(life.living(at, self.clock, self._life))

    def pull(self, keys: NDArray[np.int64], out: NDArray[np.float32], clock: int | None = None) -> NDArray[np.int64]:
        """Write the values of each key into `out`, (n, dim), and return their places, -1 for a key without a row.

        Such a key's first values are given, or zeros if it needs to be admitted. Nothing is stored. `clock`: another than the
        store's, by which rows have died.
        """
        places = np.empty(len(keys), np.int64)
        how = self.clock if clock is None else clock, self._life, self._times > 0
        kernels.pull(self._at, *self._first, *how, keys, out.reshape(-1), places)
        return places

    def stand_still(self, begins: bool) -> None:
        """From now on `read` gives all rows as they are now; or no longer. Rows that live now keep their memory meanwhile."""
        width = self.spec.dim + VERSION
        self._still = (self.clock, reserve(width + width % 2)) if begins else None

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> NDArray[np.int64]:
        """As `pull`, for whoever steps nothing: with the rows of then, if they stand still."""
        if self._still is None:
            return self.pull(keys, out)
        clock, copies = self._still
        places, (values, copied) = self.pull(keys, out, clock), self._in(copies, keys)
        out[copied] = values[copied]
        return places

    def _copy(self, clock: int, copies: Arrays, keys: NDArray[np.int64]) -> None:
        """These are about to step: copy those that did not since `clock`. One without a row may be born, and is copied, too."""
        values, copied = self._in(copies, keys)
        new = keys[~copied]
        values = values[: len(new)]
        self.pull(new, values, clock)
        self._put(copies, new, values, values[:, :0], np.zeros(len(new), np.int64))

    def _in(self, copies: Arrays, keys: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The values that are copied, and of which keys there are any."""
        values, places = np.empty((len(keys), self.spec.dim), np.float32), np.empty(len(keys), np.int64)
        kernels.pull(copies, *self._first, 0, life.FOREVER, True, keys, values.reshape(-1), places)
        return values, places >= 0

    def fold(
        self,
        keys: NDArray[np.int64],
        places: NDArray[np.int64],
        gradients: NDArray[np.float32],
        touched: NDArray[np.uint8],
        version: int,
        seen: int,
        weight: float = 1.0,
    ) -> Folded:
        """Step the row of each touched key by `weight` times its gradient. A key without a row gets one first, if it is admitted.

        Args:
            keys: (n,), each once among those touched.
            places: (n,), as `pull` returned them; -1 is looked up again.
            gradients: (n, dim).
            touched: (n,), 0 for keys that nothing is to happen to.
            version: written into each row, 0 to 2**32 - 2.
            seen: the version that the gradients were computed from.

        Raises:
            ConfigurationError: a key twice, a place outside the table, or a version that is not as above: nothing has moved
                then. Or a place is another key's: those rows have not moved.
            SharedMemoryError: the table is full. Nothing has moved; keys before that one have rows.
        """
        if not 0 <= version < VERSIONS:
            raise ConfigurationError(f"version={version}: allowed is 0 to {VERSIONS - 1}")
        if self._still is not None:
            self._copy(*self._still, keys[touched != 0])
        rows, self.clock = np.full(len(keys), -1), version
        try:
            evicted = self._locate(keys, places, touched, rows)
            born, refused = self._bear(keys, np.flatnonzero((rows < 0) & (touched != 0)), rows)
        except PlesioError:
            kernels.unmark(self._at, rows)
            raise
        flat = gradients.reshape(-1) if weight == 1 else np.float32(weight) * gradients.reshape(-1)
        rule = self._kind, self.spec.dim, self._numbers, self._bias
        stepped, stale, staleness, wrong = kernels.fold(self._at, *rule, keys, flat, rows, version, seen)
        if wrong:
            raise ConfigurationError(
                f"{wrong} places of {self._named} are other keys'; all rows but these were stepped"
            )
        return Folded(stepped, born, stale, staleness, refused, evicted)

    def _locate(self, keys: Any, places: Any, touched: Any, rows: Any) -> int:
        careful = self._moved or self.spec.expire is not None
        others = self.clock - 1  # this step is the row's own, and whoever pulled it did not count it
        code, at, evicted = kernels.locate(self._at, others, self._life, keys, places, touched, careful, rows)
        if code == kernels.OUTSIDE:
            raise ConfigurationError(f"place {places[at]} of key {keys[at]}: {self._named} has {self.rows:,} rows")
        if code == kernels.TWICE:
            raise self._twice(int(keys[at]))
        return int(evicted)

    def _bear(self, keys: Any, which: Any, rows: Any) -> tuple[int, int]:
        """Give rows to the keys at `which`: to how many, and how many are not admitted yet."""
        if not len(which):
            return 0, 0
        self._unborn.clear()
        positions = self._unborn.add(keys[which])
        if len(self._unborn) < len(which):
            again = int(np.flatnonzero(positions != np.arange(len(which)))[0])
            raise self._twice(int(keys[which[again]]))
        admitted = which
        if self._candidates is not None:
            yes = np.empty(len(which), np.bool_)
            counts = self.clock, self._life, self._times
            if life.count(self._candidates, keys, which, *counts, yes) < len(which):
                raise self._full(self.candidates, "keys that have no row yet")
            admitted = which[yes]
        if kernels.bear(self._at, *self._first, self._initial, self.clock, keys, admitted, rows) < len(admitted):
            raise self._full(self.held, "rows")
        return len(admitted), len(which) - len(admitted)

    def _full(self, count: int, what: str) -> SharedMemoryError:
        return SharedMemoryError(f"{self._named} is full at {count:,} {what}; deal its keys to more servers")

    def _twice(self, key: int) -> ConfigurationError:
        return ConfigurationError(
            f"key {key} of {self._named} comes twice in one fold; sum the gradients of a key first"
        )

    def sweep(self, clock: int, rows: int = SLICE) -> int:
        """Give back the memory of those that are dead among the next `rows` rows; how many there were.

        The same is done for keys that wait for a row. Nothing else changes by it, once all folds of this clock are done.
        """
        self.clock = clock
        if self.spec.expire is None:
            return 0
        if self._still is not None:
            clock = min(clock, self._still[0])
        if self._candidates is not None:
            life.sweep(self._candidates, clock, self._life, rows)
        return int(life.sweep(self._at, clock, self._life, rows))

    def begin_fold(self) -> None:
        """What comes now can be taken back, as long as nothing else begins."""
        for at in self._tables:
            undo.begin(at)

    def take_back(self) -> None:
        """Have all as it was at `begin_fold`, wherever a process that died since came to. This may be broken off, too."""
        for at in self._tables:
            undo.take_back(at)

    @property
    def _tables(self) -> list[Arrays]:
        return [self._at] if self._candidates is None else [self._at, self._candidates]

    def take_checksum(self, forget: bool = True) -> int:
        """The checksum of the rows folded since the last call, each as it is now. Not to `forget`: the next one has them, too.

        It is a sum of hashes of key, values and state, modulo 2**64: over several stores that share the keys it adds up.
        """
        return int(kernels.take_checksum(self._at, self.clock, self._life, self.spec.row_floats, forget))

    def forget_folded(self) -> None:
        """The next checksum is of the rows folded from now on."""
        self._at.marks[1::2][: -(-int(self._at.numbers[ROWS]) // 64)] = 0

    def checksum(self) -> int:
        """The same over all rows."""
        return int(kernels.checksum(self._at, self.clock, self._life, self.spec.row_floats))

    def kept(self, since: int = -1) -> dict[str, NDArray[Any]]:
        """A copy of the rows last folded after version `since`: keys, values (rows, dim), state (rows, state) and versions.

        They come in their order of birth, unless rows expire. The table's "seed" is with them, for rows to come. Keys that have
        no row yet are there, too, where a table counts them: as "candidates", with "counts" and when each was counted last,
        "counted".
        """
        slices = list(self.slices(since))
        rows = {name: np.concatenate([one.pop(name) for one in slices]) for name in [*slices[0]]}
        rows["seed"] = np.array([self.spec.seed])
        if self._candidates is not None:
            pieces = zip(*self._copied(self._candidates, since), strict=True)
            rows["candidates"], words, rows["counted"] = (np.concatenate(several) for several in pieces)
            rows["counts"] = words[:, 0].astype(np.int64)
        return rows

    def slices(self, since: int = -1) -> Iterator[dict[str, NDArray[Any]]]:
        """The rows in pieces, each of those among the next `COPIED` rows: such a piece takes about a millisecond."""
        dim = self.spec.dim
        for keys, words, versions in self._copied(self._at, since):
            values = words.view(np.float32)
            state = values[:, dim : self.spec.row_floats].copy()
            yield {"keys": keys, "values": values[:, :dim].copy(), "state": state, "versions": versions}

    def _copied(self, at: Arrays, since: int) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Keys, words and versions of rows that live."""
        rows, width = int(at.numbers[ROWS]), int(at.numbers[WIDTH])
        for begin in range(0, rows or 1, COPIED):
            words = at.words[begin * width : min(begin + COPIED, rows) * width].reshape(-1, width)
            last = words[:, width - VERSION].astype(np.int64)
            which = (last > since) & (last < VERSIONS) & (self.clock - last <= self._life)
            words = words[which]
            yield words[:, -KEY:].copy().view(np.int64)[:, 0], words, last[which]

    def restore(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Have these rows instead, as `kept` returned them, and their seed.

        Raises CheckpointError for arrays that are missing, of other types and shapes, or with a key twice; the store is as
        it was then.
        """
        dim, state, (at, candidates) = self.spec.dim, self.spec.state, self._empty()
        keys = checked(kept, "keys", np.int64, (-1,))
        values = checked(kept, "values", np.float32, (len(keys), dim))
        states = checked(kept, "state", np.float32, (len(keys), state))
        self._put(at, keys, values, states, checked(kept, "versions", np.int64, keys.shape))
        if candidates is not None and "candidates" in kept:
            keys = checked(kept, "candidates", np.int64, (-1,))
            counts = checked(kept, "counts", np.int64, keys.shape)
            if counts.min(initial=1) < 1:
                raise CheckpointError(f"counts of {self._named} are not all above 0")
            words = counts.astype(np.uint32).view(np.float32)[:, None]
            self._put(candidates, keys, words, words[:, :0], checked(kept, "counted", np.int64, keys.shape))
        if "seed" in kept:
            self.spec = replace(self.spec, seed=int(checked(kept, "seed", np.int64, (1,))[0]))
        self._moved = self._moved or self.held > 0
        self._at, self._candidates = at, candidates

    def catch_up(self, kept: Mapping[str, NDArray[Any]], clock: int) -> None:
        """Have these rows as they are there, and all others as they are: of a store whose rows stepped since, up to `clock`."""
        keys, values, width = kept["keys"], kept["values"], int(self._at.numbers[WIDTH])
        rows = np.empty(len(keys), np.int64)
        scratch = np.empty((len(keys), self.spec.dim), np.float32)
        kernels.pull(self._at, *self._first, 0, life.FOREVER, True, keys, scratch.reshape(-1), rows)
        words, known = self._at.words[: len(self._at.words) // width * width].reshape(-1, width), rows >= 0
        words[rows[known], : self.spec.dim] = values[known].view(np.uint32)
        words[rows[known], width - VERSION] = kept["versions"][known]
        new = ~known
        self._put(self._at, keys[new], values[new], values[new][:, :0], kept["versions"][new])
        self.sweep(clock, SLICE + 4 * len(keys))

    def _put(self, at: Arrays, keys: Any, values: Any, states: Any, versions: Any) -> None:
        if not 0 <= versions.min(initial=0) <= versions.max(initial=0) < VERSIONS:
            raise CheckpointError(f"versions of {self._named} are not between 0 and {VERSIONS - 1}")
        flat = values.reshape(-1), states.reshape(-1)
        put = kernels.restore(at, values.shape[1], states.shape[1], keys, *flat, versions)
        if put < len(keys):
            raise CheckpointError(
                f"key {keys[put]} of {self._named} is there twice, or there is no room for row {put:,}"
            )


def slice_of(folded: Folded) -> int:
    """Rows to sweep after a fold: 4 for each new key, so that there is memory for a third more rows than ever lived, at most.

    For sweeps come by all rows while a fourth as many keys are new.
    """
    return SLICE + 4 * (folded.born + folded.refused)


@one_compiles()
def load_kernels() -> None:
    """Compile all that stores, `Distinct`, `Sum`, `HotKeys` run, or load it from Numba's cache: a forked process has it then."""
    store, total = Store(TableSpec("", 1, RowSGD(lr=1.0), admit=Seen(1), expire=Unused(1))), Sum(1)
    keys, gradients, touched = np.zeros(1, np.int64), np.zeros((1, 1), np.float32), np.ones(1, np.uint8)
    total.add(keys, gradients, touched, 1.0)
    add_at(gradients, touched, keys, gradients)
    deal(keys, 1)
    HotKeys().add(keys)
    store.fold(keys, store.pull(keys, gradients), gradients, touched, 0, 0)
    store.restore(store.kept())
    kernels.unmark(store._at, keys)
    store.take_checksum()
    store.checksum()
    store.sweep(2)


def _nbytes(at: Arrays) -> int:
    bits, segments, rows, width = at.numbers[: WIDTH + 1].tolist()
    return int(4 * width * rows + rows // 4 + (8 * SLOTS + 8) * segments + (4 << bits))
