"""What a run has cost so far: its totals, and the parts that they are made of.

    what is counted -> Totals -> Progress, Final, Lately (messages) -> Live, Summary -> tables, report, record, sinks

A new counter is a field of `Totals`, with what people read of it, and a line where it is counted (`Meter.totals`). All others
pass totals on whole.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, get_type_hints

import msgspec

UNUSED = "a loop that ends early leaves the rest of its epoch, and so may a worker that dies at the end"


class Column(NamedTuple):
    """What people read of a field of `Totals`."""

    help: str  # what is counted, in words
    lost: bool = False  # it is not in the model: tables and reports tell of it, where there is any
    why: str = ""  # and how that may be
    at_end: bool = False  # it means something only of a run that finished
    live: bool = False  # sinks and the record of a run under way are told of it


class Staleness(msgspec.Struct, frozen=True):
    """Staleness (versions folded in between) of the folded contributions; `by_worker[w][tau]` counts them."""

    mean: float = 0.0
    p50: int = 0
    p99: int = 0
    max: int = 0
    by_worker: dict[int, dict[int, int]] = {}


class RowsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One table. A step of a row is stale if others stepped that row after it was served. Its staleness is how often rows
    stepped, one contribution or round after the other, until the last of these.

    Attributes:
        rows: how many there are.
        served, stepped, born: how often a row was laid out for a worker, stepped, was born by its step.
        stale, staleness_sum: how many of these steps were stale, and by how much in all.
        pulled_bytes, pushed_bytes: keys and values; gradients.
        memory_bytes: what rows and index take.
        refused: gradients for keys that have no row yet (`plesio.Seen`).
        evicted: rows that had died (`plesio.Unused`), and gave their memory back or were born anew.
        hot: the keys that most contributions pulled, and the share of these that did, 0.1 to 1: an estimate from about 1 of 32.
    """

    rows: int
    served: int = 0
    stepped: int = 0
    born: int = 0
    stale: int = 0
    staleness_sum: int = 0
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    memory_bytes: int = 0
    refused: int = 0
    evicted: int = 0
    hot: tuple[tuple[int, float], ...] = ()

    @property
    def stale_share(self) -> float:
        """Share of the steps of rows that were stale, 0 to 1."""
        return self.stale / self.stepped if self.stepped else 0.0

    @property
    def mean_staleness(self) -> float:
        """The mean over all steps of rows."""
        return self.staleness_sum / self.stepped if self.stepped else 0.0


class RowServer(msgspec.Struct, frozen=True, kw_only=True):
    """One of several servers that hold rows. `busy_s`: CPU time; `waited_s`: how long all `pulls` waited for it, from when
    each was decided until its rows were there."""

    rows: int = 0
    pulls: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """How long a pull waited."""
        return self.waited_s / self.pulls if self.pulls else 0.0


class WorkerSummary(msgspec.Struct, frozen=True):
    """One worker's part. `speed`: local steps a second while computing steps it finished; 0 if it finished none. `nominal`: those
    that it would make at its pace alone; 0 where no pace says how long a step lasts.

    `left` says how it left: "finished", "stopped" (at the end, before its work was done) or one of `GONE`; None if it was
    still there when a simulated run ended. `in_vain`: steps whose contribution was discarded; `steps` includes these, but
    not cancelled ones. `called_off_s`: the longest time it computed on a cancelled step. `away`: on another host than the
    server; `went_on`: contributions after which it trained on while the answer travelled.
    """

    worker: int
    steps: int
    samples: int
    folded: int
    discarded: int
    compute_s: float
    wait_s: float
    exchange_s: float
    speed: float
    left: str | None = None
    in_vain: int = 0
    called_off_s: float = 0.0
    nominal: float = 0.0
    away: bool = False
    went_on: int = 0

    @property
    def waiting_share(self) -> float:
        """Share of the worker's time spent held by others, 0 to 1."""
        return self.wait_s / self.there_s if self.there_s > 0 else 0.0

    @property
    def there_s(self) -> float:
        """Seconds it took part, as far as known."""
        return self.compute_s + self.wait_s + self.exchange_s

    def lasted_s(self, wall_s: float) -> float:
        """How long a run of `wall_s` lasted for it: longer if it finished a step after the stop."""
        return max(wall_s, self.there_s)

    def ideal_steps(self, wall_s: float) -> float:
        """Local steps it could have made in a run of `wall_s`, had it always computed, with no step in vain.

        This is its speed times the time it took part. A stopped worker took part until the end, though its last step
        is not measured. A worker counts as fast as its pace says: what each step costs on top of that is lost. Without a pace,
        one that never finished a step counts as fast as its longest cancelled one.
        """
        speed = self.nominal or self.speed or (1 / self.called_off_s if self.called_off_s > 0 else 0.0)
        return speed * (self.lasted_s(wall_s) if self.left == "stopped" else self.there_s)


class Totals(msgspec.Struct, kw_only=True):
    """What a run has cost so far. While it goes on, what takes long to sum up is left out: the workers' own, staleness."""

    strategy: str = ""
    recipe: str = ""
    workers: tuple[WorkerSummary, ...] = ()
    wall_s: float = 0.0
    start_up_s: float = 0.0
    """Seconds from the call or the command to the start of training; 0 where time is virtual. The wait for workers that somebody
    else starts is part of it; on Ray it counts from the start of the head."""
    version: Annotated[int, Column("folds so far", live=True)] = 0
    steps: Annotated[int, Column("local steps of all workers", live=True)] = 0
    samples: Annotated[int, Column("samples that all workers trained on", live=True)] = 0
    folded: int = 0
    discarded: dict[str, int] = {}
    missing_gradients: Annotated[int, Column("parameters that had no gradient in a step", lost=True)] = 0
    batches_unvisited: Annotated[
        int, Column("batches of the epochs begun that stayed unused", lost=True, why=UNUSED, at_end=True)
    ] = 0
    unshared: bool = False
    """Whether workers took data of their own, and counted nothing together."""
    bytes: Annotated[int, Column("bytes that workers and server sent each other", live=True)] = 0
    deaths: Annotated[int, Column("workers that died or were evicted", live=True)] = 0
    joins: Annotated[int, Column("workers that joined, those at the beginning and those that came back", live=True)] = 0
    shared_bytes: int = 0
    plain_bytes: int = 0
    served_s: float = 0.0
    """What the server computed for all contributions, from their arrival to the answers; 0 where time is virtual."""
    staleness: Staleness = Staleness()
    rows: dict[str, RowsSummary] = {}
    """Of the rows of each table (`plesio.Table`), by its name in the model."""
    row_servers: tuple[RowServer, ...] = ()
    """Those that hold the rows of tables, where there are several."""


COLUMNS: dict[str, Column] = {
    name: column
    for name, hint in get_type_hints(Totals, include_extras=True).items()
    for column in getattr(hint, "__metadata__", ())
}
"""What people read of totals, by field."""
LIVE_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.live)
