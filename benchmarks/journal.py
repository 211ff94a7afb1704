"""What the journal costs: the writer's processor time and the bytes a contribution, and how fast it is read.

    python benchmarks/journal.py --json FILE [--quick]

A contribution is a push and its fold, as under async_sgd; the file lies on the disk of the temporary folder, and its writes
are in the figure. The story is all that `plesio journal` does but print. Whole runs on the digits, simulated, have the leases
and the batches of a loader of 45 batches an epoch in their journals, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import plesio as ps
from _report import Row, interleave, parser, report, row
from plesio.cli.story import story
from plesio.core.events import Fold, Joined, Member, Pushed
from plesio.protocol.journal import Decision, JournalHead, JournalWriter, read_journal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import digits

WORKERS = 4
RUNS = (ps.async_sgd(), ps.sync_sgd(), ps.first_of(WORKERS - 1), ps.buffered(2), ps.local_sgd(16))
EXCHANGE_S = 0.0001  # of the run's own time: 10,000 contributions a second


def write(path: Path, contributions: int) -> float:
    """Microseconds of processor time a contribution; making the events is not counted."""
    deeds = [deed(number) for number in range(contributions)]
    path.unlink(missing_ok=True)
    writer = JournalWriter(path, JournalHead(strategy="async_sgd", workers=WORKERS))
    for worker in range(WORKERS):
        writer.keep(Decision(0.0, Joined(worker, 1)))
    began_s = time.process_time()
    for number, (pushed, fold) in enumerate(deeds):
        writer.keep(Decision(number * EXCHANGE_S, pushed, (fold,), (0x0123456789ABCDEF,), 0.25))
    writer.flush()
    took_s = time.process_time() - began_s
    writer.end(contributions, "0123456789abcdef", contributions * EXCHANGE_S)
    return took_s / contributions * 1e6


def deed(index: int) -> tuple[Pushed, Fold]:
    """Contribution `index` and its fold."""
    number, worker = divmod(index, WORKERS)
    pushed = Pushed(worker, 1, number + 1, steps=1, samples=32, batches=1)
    member = Member(worker, 1, number + 1, min(index, WORKERS - 1), 1.0, 1, 32)
    return pushed, Fold(index + 1, (member,), 1.0)


def read(path: Path, contributions: int) -> float:
    """Microseconds a contribution to check and decode all records."""
    began_s = time.process_time()
    journal = read_journal(path)
    count = sum(1 for _ in journal)
    took_s = time.process_time() - began_s
    assert count == contributions + WORKERS + 1, "every record was read"
    return took_s / contributions * 1e6


def tell(path: Path, contributions: int) -> float:
    """Microseconds a contribution to tell the story."""
    began_s = time.process_time()
    count = sum(1 for _ in story(read_journal(path)))
    took_s = time.process_time() - began_s
    assert count == contributions + WORKERS + 1, "every contribution has its row"
    return took_s / contributions * 1e6


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All rows."""
    contributions = 2_000 if arguments.quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.bin")
        tasks = {task.__name__: (lambda task=task: task(path, contributions)) for task in (write, read, tell)}
        took_us = interleave(tasks, 1 if arguments.quick else arguments.runs)
        size_bytes = path.stat().st_size / contributions
    return [
        row("writer's processor time a contribution", took_us["write"], "us", target="<= 5"),
        row("journal a contribution", [size_bytes], "bytes", target="<= 100"),
        row("reader's processor time a contribution", took_us["read"], "us"),
        row("story's processor time a contribution", took_us["tell"], "us"),
        *(run_row(strategy, 200 if arguments.quick else 2_000) for strategy in RUNS),
    ]


def run_row(strategy: ps.Strategy, steps: int) -> Row:
    """The journal of a whole simulated run, its leases and batches with it."""
    with tempfile.TemporaryDirectory() as folder:
        run = ps.run(
            digits.train,
            strategy,
            workers=WORKERS,
            engine=ps.Simulated("uniform"),
            runs=folder,
            until=ps.Until(steps=steps),
        )
        assert run.folder is not None
        size_bytes = sum(one.stat().st_size for one in run.folder.glob("journal*"))
    return row(
        f"the journal of a run on the digits, {strategy.name}",
        [size_bytes / run.summary.folded],
        "bytes a contribution",
    )


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=5).parse_args()
    report("journal: a push and its fold", rows(given), given.json)
