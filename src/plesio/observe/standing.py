"""What the workers of a run are at. The server tells it while the run goes on, beside what it has cost so far."""

from __future__ import annotations

import msgspec

ALL = -1  # the key of what is counted for all workers together
EACH_MAX = 8  # up to how many workers staleness is told of each
LISTED_MAX = 64  # how many workers, and readers, are told of by themselves


class WorkerNow(msgspec.Struct, frozen=True, array_like=True):
    """One worker. Times are in seconds since training began; the totals include what it is at."""

    worker: int
    at: str  # "compute", "wait", or how it left
    since_s: float
    steps: int
    compute_s: float
    wait_s: float
    exchange_s: float
    staleness: int  # of its last contribution that was folded


class ReaderNow(msgspec.Struct, frozen=True, array_like=True):
    """One that only reads. `version`: what it was given last, -1: none yet; `behind`: how many versions the run is ahead of that;
    `silent_s`: since it last asked; `nbytes`: what it was sent; `judged`: if it evaluates, the version that it did last."""

    name: str
    version: int
    behind: int
    silent_s: float
    nbytes: int
    judged: int | None = None


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """All workers, or the first `LISTED_MAX`."""

    workers: tuple[WorkerNow, ...] = ()
    others: int = 0  # how many more there are
    waited_for: tuple[int, ...] = ()  # for whom those wait that wait
    ideal: float = 0.0  # the share of the ideal so far, as `Summary.ideal_share`
    # The staleness of what was folded so far, by worker, or of `ALL`; None where it was told a moment ago.
    stale: dict[int, dict[int, int]] | None = None
    phase: int = 0  # of the strategy
