"""How a run stands, in words for one screen, and whether it stands still."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import NamedTuple

from plesio.observe.amounts import byte_size, duration, number, percent
from plesio.observe.measures import number_at
from plesio.observe.numbers import HERE
from plesio.observe.record import RecordEnd, RecordNumbers, ending, last_numbers
from plesio.observe.sinks.exposition import Shown
from plesio.watch.runs import Listed, found, listed

KEPT_S, ENDED_S = 3600.0, 300.0
"""A run that wrote nothing for so long, and no end, is not told of any more; one that ended for so long."""
STILL_S = 60.0
ROWS_MAX, READERS_MAX = 12, 6
WORDS = {"compute": "computing", "wait": "waiting for others"}
READER_HEADS = f"{'version':>10} {'behind':>8} {'silent for':>12} {'was given':>10}  reader"
HEADS = f"{'worker':>6}  {'is':20} {'for':>16} {'steps':>10} {'steps/s':>8} {'waiting':>8}"


class Status(NamedTuple):
    """What the record of a run says last."""

    listed: Listed
    told: RecordNumbers
    end: RecordEnd | None

    @property
    def name(self) -> str:
        return self.told.run or self.listed.name

    @property
    def shown(self) -> Shown:
        """What `/metrics` says of it."""
        values = {name: nan if value is None else value for name, value in self.told.values.items()}
        return Shown(self.name, [number_at(path, self.of(path)) for path in self.told.numbers], values)

    def of(self, path: str) -> float:
        return self.told.numbers.get(path) or 0.0

    def state(self, still_s: float) -> tuple[str, bool]:
        """What the run is at, and whether that is well: not where it failed, or no step was heard of for `still_s`."""
        silent_s = self.listed.silent_s
        since_s = silent_s + self.of("run/still_s")
        if self.end is not None:
            return f"{'failed' if self.end.failed else 'ended'}: {self.end.why or 'cut short'}", not self.end.failed
        if not self.told.numbers:
            return "starting", True
        if silent_s > still_s:
            return f"stands still: nothing was heard of it for {duration(silent_s, 0)}; it was killed, or hangs", False
        if since_s > still_s:
            return f"stands still: no step was heard of for {duration(since_s, 0)}", False
        return f"under way for {duration(self.of('run/time_s'), 0)}", True

    def in_words(self, still_s: float) -> str:
        """The screen."""
        return "\n".join([f"{self.name}: {self.state(still_s)[0]}", *(self._lines() if self.told.numbers else ())])

    def _lines(self) -> Iterator[str]:
        """Who is away comes first, then whom others wait for."""
        run = {path[4:]: self.of(path) for path in self.told.numbers if path.startswith("run/")}
        at, lost = self.told.at, [path for path in self.told.numbers if path.startswith("discarded/") and self.of(path)]
        yield f"{self.listed.strategy}, {len(at)} workers, {sum(what not in HERE for what in at.values())} away\n"
        counts = "  ".join(f"{name} {run[name]:,.0f}" for name in ("version", "steps", "samples"))
        yield f"{counts}  steps/s {number(run['steps_per_s'])}  {byte_size(run['bytes'])}"
        stale = f"staleness {run['staleness_mean']:.2f} (max {run['staleness_max']:.0f})"
        yield f"waiting {percent(run['waiting_share'])}  of ideal {percent(run['ideal_share'])}  {stale}"
        discarded = ", ".join(f"{self.of(path):,.0f} ({path.split('/')[1]})" for path in lost) or "none"
        yield f"discarded {discarded}  deaths {run['deaths']:,.0f}  joins {run['joins']:,.0f}"
        yield "  ".join(f"{name} {number(value, 4)}" for name, value in self.told.values.items())
        waited = {worker for worker in at if self.of(f"worker/{worker}/waited_for")}
        workers = sorted(at, key=lambda worker: (at[worker] in HERE, worker not in waited, worker))
        yield from ("", HEADS, *(self._row(worker, worker in waited) for worker in workers[:ROWS_MAX]))
        if len(at) > ROWS_MAX:
            yield f"and {len(at) - ROWS_MAX} more"
        yield from self._readers()

    def _readers(self) -> Iterator[str]:
        """Who only reads; who is most versions behind comes first."""
        own = {path.rpartition("/")[0] for path in self.told.numbers if path.startswith("reader/")}
        if own:
            yield from ("", READER_HEADS)
        for one in sorted(own, key=lambda one: (-self.of(f"{one}/behind"), one))[:READERS_MAX]:
            version, behind, silent_s, nbytes = (
                self.of(f"{one}/{name}") for name in ("version", "behind", "silent_s", "bytes")
            )
            silent, name = duration(silent_s + self.listed.silent_s, 1), one.removeprefix("reader/")
            yield f"{version:>10,.0f} {behind:>8,.0f} {silent:>12} {byte_size(nbytes):>10}  {name}"
        if len(own) > READERS_MAX:
            yield f"and {len(own) - READERS_MAX} more"

    def _row(self, worker: int, waited: bool) -> str:
        at, own = self.told.at[worker], f"worker/{worker}"
        rate, waiting = number(self.of(f"{own}/steps_per_s")), percent(self.of(f"{own}/waiting_share"))
        lasts = "–" if self.end else duration(self.of(f"{own}/state_s") + self.listed.silent_s, 1)
        row = (
            f"{worker:>6}  {WORDS.get(at, at):20} {lasts:>16} {self.of(f'{own}/steps'):>10,.0f} {rate:>8} {waiting:>8}"
        )
        return row + "  waited for" * waited


def statuses(runs: Path) -> list[Status]:
    """Of the runs that are under way, or have just ended; the one that began last first."""
    folders = found(runs)
    told = [one for one in listed(runs) if not one.other and one.silent_s < (ENDED_S if one.ended else KEPT_S)]
    known = [(one, folders[one.name]) for one in told if one.name in folders]
    return [Status(one, last_numbers(folder), ending(folder)) for one, folder in known]
