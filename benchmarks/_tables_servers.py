"""Tables dealt to several servers of this host: what that gains here, and whether any number of servers replays a run."""

from __future__ import annotations

import tempfile
from functools import partial

import plesio as ps
from _report import Row, interleave, row
from _tables_runs import STEPS, pulls_and_pushes

WORKERS = 2
COUNTS = (1, 2, 4)


def rate(servers: int) -> float:
    """Steps a second of all workers; nothing is written."""
    run = ps.run(pulls_and_pushes, "async_sgd", workers=WORKERS, servers=servers, progress=False)
    return float(sum(found[0] for found in run.returned))


def replayed(servers: int, again: int) -> float:
    """The share of versions that come out bit for bit, if other servers repeat the run."""
    with tempfile.TemporaryDirectory() as folder:
        run = ps.run(pulls_and_pushes, "async_sgd", workers=WORKERS, servers=servers, runs=folder, progress=False)
        assert run.folder is not None
        return ps.replay(run.folder, pulls_and_pushes, servers=again).versions / run.version


def servers(quick: bool, runs: int) -> list[Row]:
    """Pulls and pushes by two workers."""
    found = interleave({str(count): partial(rate, count) for count in COUNTS}, 1 if quick else runs, "servers")
    rows = [
        row(
            f"pull + push of {WORKERS} workers, {count} servers on this host", found[str(count)], "steps/s",
            against="1 server", against_values=found["1"],
        )
        for count in COUNTS[1:]
    ]  # fmt: skip
    same = {again: [replayed(4, again)] for again in ((1,) if quick else (1, 3))}
    for again, value in same.items():
        name = f"recorded with 4 servers, replayed with {again}: versions of {WORKERS} x {STEPS} steps"
        rows.append(row(name, value, "share", target=">= 1"))
    return rows
