"""live.jsonl in a run folder: how a run goes, a line each, while it goes. `plesio.watch` shows it.

| kind    | says                                                              | how many are kept                       |
| ------- | ----------------------------------------------------------------- | --------------------------------------- |
| `head`  | what the run is; the first line                                   | one                                     |
| `at`    | how it stands: totals, workers, tables, metrics that changed      | `RECENT`, and older ones up to `OLD_MAX` |
| `numbers` | all that sinks are told, once a second (`plesio.observe.measures`) | the last, when the file is written anew |
| `stale` | the staleness of all that was folded                              | the last, likewise                      |
| `advice` | that another strategy would be much faster                       | the last, likewise                      |
| `readers` | who reads the run, once a second                              | the last, likewise                      |
| `logged` | which metrics are workers' own, not `evaluate`'s             | the last, likewise                      |
| `event` | what happened: a death, a checkpoint, discarded contributions     | `EVENTS_MAX`                            |
| `end`   | why the run ended; the last line                                  | one                                     |

Lines are numbered (`n`) in the order they were written. When there are too many, older ones are thinned and another file takes
this one's place, so that a run of a day takes no more than one of an hour. A reader goes on after the last `n` that it has seen.
What cannot be written ends the record, and training goes on.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, log2
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from plesio.observe.encoding import as_json
from plesio.observe.rows import hot_keys
from plesio.observe.standing import LISTED_MAX, ReaderNow, Standing
from plesio.observe.summary import Incident
from plesio.observe.totals import LIVE_COLUMNS, Totals

LIVE = "live.jsonl"
FORMAT = 1
RECENT, OLD_MAX, EVENTS_MAX = 600, 1200, 500
DISCARDS_S = 5.0  # how often it is told that contributions were discarded
LAST_MAX = 1 << 16  # bytes of a record's last line that are read
NUMBERS_MAX = 1 << 19  # and of its last seconds, with 64 workers
Line = TypeVar("Line")


class Record:
    """Writes the file of one run into its folder; `head` says what the run is, as plain data."""

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        self._path, self._name = folder / LIVE, head.get("name", folder.name)
        self._number = 0
        self._head = self._line("head", {"format": FORMAT, **head})
        self._old: list[dict[str, Any]] = []
        self._recent: list[dict[str, Any]] = []
        self._events: deque[tuple[int, bytes]] = deque(maxlen=EVENTS_MAX)
        self._last: dict[str, tuple[int, bytes]] = {}  # of a kind of which there is one
        self._values: dict[str, float] = {}
        self._logged: list[str] = []
        self._discarded: dict[str, int] = {}
        self._discards_told_s = -DISCARDS_S
        self._broken = False
        try:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by `end`
        except OSError as error:
            self._file = open(os.devnull, "ab", buffering=0)  # noqa: SIM115
            self._give_up(error)
        self._write(self._head)

    def at(self, time_s: float, totals: Totals, now: Standing, values: Mapping[str, float]) -> None:
        changed = {name: value for name, value in values.items() if self._values.get(name) != value}
        self._values.update(changed)
        told = {"t": _short(time_s), **{name: getattr(totals, name) for name in LIVE_COLUMNS}, "values": changed}
        workers = [
            (one.worker, one.at, *map(_short, (one.since_s, one.compute_s, one.wait_s, one.exchange_s)), one.steps, one.staleness)
            for one in now.workers
        ]  # fmt: skip
        told |= {"ideal": _short(now.ideal), "workers": workers, "others": now.others, "waited": now.waited_for}
        if totals.rows:
            told["rows"] = {
                name: {**msgspec.structs.asdict(one), "hot": hot_keys(one)} for name, one in totals.rows.items()
            }
        if now.phase:
            told["phase"] = now.phase
        if totals.row_servers:
            told["row_servers"] = totals.row_servers
        self._tell_discards(time_s, totals.discarded)
        if now.stale is not None:
            self._tell_last("stale", {"by": {str(worker): counts for worker, counts in now.stale.items()}})
        entry = {"n": self._number + 1, "kind": "at", **told}
        self._number += 1
        self._recent.append(entry)
        self._write(as_json(entry))
        if len(self._recent) >= 2 * RECENT:
            self._thin()

    def event(self, incident: Incident) -> None:
        told = {"t": _short(max(0.0, incident.time_s)), "worker": incident.worker, "what": incident.what}
        line = self._line("event", told)
        self._events.append((self._number, line))
        self._write(line)

    def numbers(self, numbers: Mapping[str, float], values: Mapping[str, float], now: Standing) -> None:
        at = {str(one.worker): one.at for one in now.workers}
        self._tell_last("numbers", {"run": self._name, "numbers": numbers, "values": values, "at": at})

    def advice(self, what: str) -> None:
        self._tell_last("advice", {"what": what})

    def readers(self, there: Sequence[ReaderNow]) -> None:
        each = [(*astuple(one)[:3], _short(one.silent_s), one.nbytes) for one in there[:LISTED_MAX]]
        self._tell_last("readers", {"each": each, "others": max(0, len(there) - LISTED_MAX)})

    def logged(self, names: Iterable[str]) -> None:
        if (told := sorted(names)) != self._logged:
            self._logged = told
            self._tell_last("logged", {"names": told})

    def _tell_last(self, kind: str, what: Mapping[str, Any]) -> None:
        line = self._line(kind, what)
        self._last[kind] = self._number, line
        self._write(line)

    def end(self, why: str, *, failed: bool = False) -> None:
        self._write(self._line("end", {"why": why, "failed": failed}))
        self._file.close()

    def _tell_discards(self, time_s: float, discarded: Mapping[str, int]) -> None:
        new = {why: number - self._discarded.get(why, 0) for why, number in discarded.items()}
        new = {why: number for why, number in new.items() if number}
        if new and time_s - self._discards_told_s >= DISCARDS_S:
            self._discarded, self._discards_told_s = dict(discarded), time_s
            each = ", ".join(f"{number:,} ({why})" for why, number in new.items())
            self.event(Incident(time_s, None, f"contributions were discarded: {each}"))

    def _thin(self) -> None:
        """Thin the older lines, and rewrite the file."""
        if self._broken:
            self._old, self._recent = [], []
            return
        old, self._recent = [*self._old, *self._recent[:-RECENT]], self._recent[-RECENT:]
        self._old = thinned(old, OLD_MAX // 2) if len(old) > OLD_MAX else old
        new = self._path.with_name(f"{LIVE}.new")
        told = [(one["n"], as_json(one)) for one in (*self._old, *self._recent)]
        lines = [self._head, *(line for _, line in sorted([*self._events, *self._last.values(), *told]))]
        try:
            new.write_bytes(b"".join(line + b"\n" for line in lines))
            self._file.close()
            os.replace(new, self._path)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            self._give_up(error)

    def _line(self, kind: str, what: Mapping[str, Any]) -> bytes:
        self._number += 1
        return as_json({"n": self._number, "kind": kind, **what})

    def _write(self, line: bytes) -> None:
        if self._broken:
            return
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        self._file.close()
        why = f"{self._path} cannot be written: {error.strerror}; the live page stands still, training goes on"
        warnings.warn(why, RuntimeWarning, stacklevel=2)


def thinned(lines: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first line, and the last one in each of up to `most` equal shares of the time: curves are as fine at their beginning as
    later. What a dropped line says of metrics goes to the next.

    Shares last a power of two of seconds: those of the next time are made of whole ones of this time, and lose nothing else.

    >>> [one["t"] for one in thinned([{"t": t, "values": {}} for t in (1, 2, 3, 4, 6, 7, 8)], 2)]
    [1, 3, 7, 8]
    """
    width_s = 2.0 ** ceil(log2(max(lines[-1]["t"], 1e-9) / most))
    kept = [lines[0]]
    for one in lines[1:]:
        before = kept[-1]
        if len(kept) > 1 and before["t"] // width_s == one["t"] // width_s:
            one["values"] = {**before["values"], **one["values"]}
            kept.pop()
        kept.append(one)
    return kept


class RecordEnd(msgspec.Struct, frozen=True, tag_field="kind", tag="end"):
    """The last line of a record."""

    why: str
    failed: bool = False


class RecordNumbers(msgspec.Struct, frozen=True, tag_field="kind", tag="numbers"):
    """All numbers of a `run` by path, the user's `values`, and what each worker is `at`. None: no number."""

    run: str = ""
    numbers: dict[str, float | None] = {}
    values: dict[str, float | None] = {}
    at: dict[int, str] = {}


def ending(folder: Path) -> RecordEnd | None:
    """How a run ended, as its record says; None where it says nothing of it."""
    lines = _last_lines(folder, LAST_MAX)
    return next(_read(lines[-1:], RecordEnd), None)


def last_numbers(folder: Path) -> RecordNumbers:
    """The last that a record says; empty before training began."""
    told = (one for one in reversed(_last_lines(folder, NUMBERS_MAX)) if b'"kind":"numbers"' in one)
    return next(_read(told, RecordNumbers), RecordNumbers())


def _last_lines(folder: Path, most: int) -> list[bytes]:
    try:
        with open(folder / LIVE, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read().splitlines()
    except OSError:
        return []


def _read(lines: Iterable[bytes], kind: type[Line]) -> Iterator[Line]:
    for one in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # cut off, at either end, or another kind
            yield msgspec.json.decode(one, type=kind)


def _short(value: float) -> float:
    return round(value, 4)
