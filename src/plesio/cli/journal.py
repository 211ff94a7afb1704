"""`plesio journal`: the story of a run, from its journal. It needs no torch, and holds no more than it prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from plesio.cli.story import Row, story
from plesio.errors import ConfigurationError
from plesio.protocol.journal.reader import NO_END, Journal, read_journal

AROUND = 10
"""How many versions `--around` shows on either side."""
HEADING = f"{'time s':>10} {'version':>9} {'worker':>6} {'number':>8} {'from':>9} {'stale':>5} {'share':>6} {'loss':>10}  what"

JournalPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or the journal in it.")]
Workers = Annotated[
    list[int] | None, typer.Option("--worker", metavar="N", help="Only what this worker did. May be repeated.")
]
StalenessOver = Annotated[int | None, typer.Option(metavar="N", help="Only contributions staler than that.")]
Around = Annotated[
    int | None, typer.Option(metavar="VERSION", help=f"Only the {AROUND} versions before and after this one.")
]
Limit = Annotated[int | None, typer.Option(metavar="ROWS", help="Stop after so many rows.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, one for each row.")]


def journal(
    run: JournalPath,
    worker: Workers = None,
    staleness_over: StalenessOver = None,
    around: Around = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Tell what became of each contribution and each worker, in the order it was decided.

    One row a contribution, where it was folded or discarded; --worker, --staleness-over and --around narrow it down.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"--limit {limit}: at least 1")
    for option, number in {"--around": around, "--staleness-over": staleness_over}.items():
        if number is not None and number < 0:
            raise ConfigurationError(f"{option} {number}: at least 0")
    found = read_journal(run)
    unknown = sorted(set(worker or ()) - set(range(found.head.workers)))
    if unknown:
        raise ConfigurationError(
            f"--worker {unknown[0]}: the run had {found.head.workers} workers, 0 to {found.head.workers - 1}"
        )
    rows = islice(chosen(story(found), worker or (), staleness_over, around), limit)
    try:
        if as_json:
            encoder = msgspec.json.Encoder()
            for row in rows:
                print(encoder.encode(row).decode())
            for words in verdict(found):
                print(words, file=sys.stderr)
        else:
            _print_table(found, rows)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough; the interpreter's own flush must not fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def chosen(
    rows: Iterable[Row], workers: Sequence[int], staleness_over: int | None, around: int | None
) -> Iterator[Row]:
    """The rows that were asked for; it reads no further than it has to.

    >>> rows = [Row(time_s=0.0, version=v, what="folded", worker=v % 2, staleness=v) for v in range(100)]
    >>> [row.version for row in chosen(rows, [1], staleness_over=45, around=40)]
    [47, 49]
    """
    for row in rows:
        if around is not None and row.version > around + AROUND:
            return
        near = around is None or row.version >= around - AROUND
        stale = staleness_over is None or (row.staleness or 0) > staleness_over
        if near and stale and (not workers or row.worker in workers):
            yield row


def _print_table(found: Journal, rows: Iterable[Row]) -> None:
    head = found.head
    versions = "".join(f", {name} {version}" for name, version in head.versions.items())
    print(f"{head.strategy}: {head.workers} workers, seed {head.seed}{versions}\n\n{HEADING}\n{'─' * len(HEADING)}")
    row = None
    for row in rows:
        print(line(row))
    if row is None:
        print("nothing in this journal is what was asked for")
    for words in verdict(found):
        print(f"\n{words}")


def line(row: Row) -> str:
    """A row of the table.

    >>> line(Row(time_s=1.5, version=3, what="folded", worker=0, number=2, computed_from=2, staleness=0, share=1.0))
    '     1.500         3      0        2         2     0  1.000             folded'
    """
    share = "" if row.share is None else f"{row.share:.3f}"
    loss = "" if row.loss is None else f"{row.loss:.4g}"
    held = f", held {row.held_s:.3f} s" if row.held_s else ""
    return (
        f"{row.time_s:10.3f} {row.version:9} {_or_blank(row.worker):>6} {_or_blank(row.number):>8} "
        f"{_or_blank(row.computed_from):>9} {_or_blank(row.staleness):>5} {share:>6} {loss:>10}  {row.what}{held}"
    )


def _or_blank(value: int | None) -> str:
    return "" if value is None else str(value)


def verdict(found: Journal) -> list[str]:
    """What is wrong with the journal, in words; nothing if it is whole and its run ended in order."""
    missing = found.missing
    if missing is not None:
        least = f", with at least {missing.contributions:,} contributions" if missing.contributions else ""
        return [f"from byte {missing.position:,} on, {missing.bytes:,} bytes cannot be read{least}"]
    return [] if found.complete else [NO_END]
