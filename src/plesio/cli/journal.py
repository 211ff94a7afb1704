"""`plesio journal`: the story of a run, from its journal. It needs no torch, and holds no more than it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from plesio.cli.output import give_up_output
from plesio.cli.story import Row, story
from plesio.errors import ConfigurationError
from plesio.protocol.journal.reader import NO_END, Journal, read_journal

AROUND = 10  # how many versions `--around` shows on either side
HEADING = f"{'time s':>10} {'version':>9} {'worker':>6} {'number':>8} {'from':>9} {'stale':>5} {'share':>6} {'loss':>10}  what"


def journal(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or the journal in it.")],
    worker: Annotated[
        list[int] | None, typer.Option("--worker", metavar="N", help="Only what this worker did. May be repeated.")
    ] = None,
    staleness_over: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only contributions staler than that.")
    ] = None,
    around: Annotated[
        int | None,
        typer.Option(metavar="VERSION", min=0, help=f"Only the {AROUND} versions before and after this one."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="ROWS", min=1, help="Stop after so many rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, one for each row.")] = False,
) -> None:
    """Tell what became of each contribution and each worker, in the order it was decided.

    One row a contribution, where it was folded or discarded; --worker, --staleness-over and --around narrow it down.
    "number" counts the contributions of one worker; "from" is the version that it computed one from; "share" is the part
    of the fold's mean that one makes up, 0 to 1.
    """
    found = read_journal(run)
    unknown = sorted(set(worker or ()) - set(range(found.head.seats)))
    if unknown:
        raise ConfigurationError(
            f"--worker {unknown[0]}: the run had {found.head.seats} workers, 0 to {found.head.seats - 1}"
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
    except BrokenPipeError:  # whoever read has seen enough
        give_up_output()


def chosen(
    rows: Iterable[Row], workers: Sequence[int], staleness_over: int | None, around: int | None
) -> Iterator[Row]:
    """The rows that were asked for; it reads no further than it has to."""
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
