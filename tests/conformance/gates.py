"""What whole runs come to, one line each: a change that is to change nothing is held against it.

    PYTHONPATH=tests python -m conformance.gates --write FILE     before
    PYTHONPATH=tests python -m conformance.gates --against FILE   after, on the same machine

A line has the run's version, steps and samples, and digests: of its weights, of what its journal says of it (with a checksum of
each version), and of its summary. Runs of real processes are in lock step, so that the weights are the same each time; their
journals and figures have times in them and are left out.

The file is made anew for each change and not kept: arithmetic differs from one kind of processor to the next.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

import plesio as ps
from conformance.table import strategies
from integration.test_secure_sums import site
from plesio.cluster import Cluster, Constant, Crash, Group, Link, LogNormal, Restart
from plesio.core.events import Evict, Fold, Ticked
from plesio.protocol.journal import Decision, read_journal
from plesio.strategy import Strategy
from simulation.test_simulated import train
from support import client_turns, islands, row_twin
from support.replayed import chancy
from support.runs import bits

UNEVEN = (Group(3, LogNormal(0.1, 0.3)), Group(1, LogNormal(0.5, 0.3)))
FAR_AND_NEAR = (Group(1, LogNormal(0.1, 0.3), Link(0.3)), Group(2, LogNormal(0.1, 0.3)))
DIES = (Crash(worker=1, at_s=0.8), Restart(worker=1, at_s=1.3))
SITES = Cluster((Group(6, Constant(0.1)), Group(2, Constant(0.15))), faults=(Crash(worker=2, at_s=0.25),))
SECURE = ps.SecureSums(threshold=5, clip=0.5)
PHASES = [
    ps.phases(ps.sync_sgd(), (5, ps.local_sgd(2))),
    ps.phases(ps.async_sgd(), (9, ps.diloco(3)), (14, ps.sync_sgd())),
    ps.phases(ps.buffered(2), (6, ps.async_sgd(correct="plain"))),
    ps.phases(ps.local_sgd(2, codec="int8"), (4, ps.first_of(2))),
]
WITH_TABLES = [
    ps.async_sgd(),
    ps.sync_sgd(),
    ps.sync_sgd(rows="each"),
    ps.first_of(2),
    ps.quorum(2),
    ps.buffered(2),
    ps.buffered(2, rows="with"),
    ps.bounded_staleness(2),
    ps.local_sgd(3),
    ps.phases(ps.sync_sgd(), (6, ps.local_sgd(2))),
]
FEDERATED = [
    ps.fedavg(),
    ps.fedavg(3, late="drop"),
    ps.fedopt("adam", lr=0.01),
    ps.fedprox(0.1),
    ps.fedbuff(3),
    ps.fedasync(),
]
LIFE: row_twin.Life = {"admit": ps.Seen(2), "expire": ps.Unused(versions=5)}
KILLED = [ps.Kill(None, after_s=0.3), ps.Kill(None, after_s=0.7)]
IN_LOCK_STEP = [ps.sync_sgd(), ps.local_sgd(3), ps.diloco(3), ps.local_sgd(3, codec="int8")]

Make = Callable[[Path], ps.Run]


def virtual(train: Any, strategy: Strategy, cluster: Cluster, **more: Any) -> Make:
    engine = ps.Simulated(cluster)
    return lambda folder: ps.run(train, strategy, workers=cluster.workers, engine=engine, runs=folder, seed=3, **more)


def worlds() -> Iterator[tuple[str, str, Make]]:
    """World, strategy, and what runs it."""
    once = ps.Checkpoint(every_s=1.0)
    for one in [*strategies(at_server=True), *PHASES]:
        world = "phases" if one.plan else "plain"
        for dies in ((), DIES):
            made = virtual(partial(train, epochs=2), one, Cluster(UNEVEN, faults=dies), checkpoint=once)
            yield f"{world}{', a worker dies' if dies else ''}", one.name, made
    for one in WITH_TABLES:
        for kind, life in ({"tables": row_twin.ENDLESS, "tables with life": LIFE}).items():
            task = partial(row_twin.train, life=life)
            yield kind, one.name, virtual(task, one, Cluster(FAR_AND_NEAR, faults=DIES), checkpoint=once)
    for one in FEDERATED:
        cluster = Cluster((Group(2, LogNormal(0.1, 0.5)), Group(1, Constant(0.2))), faults=DIES)
        yield "clients", one.name, virtual(partial(client_turns.train, rounds=6), one, cluster, checkpoint=once)
    for one in (ps.fedavg(secure=SECURE), ps.fedopt("adam", lr=0.01, secure=SECURE), ps.fedprox(0.1, secure=SECURE)):
        yield "secure", one.name, virtual(site, one, SITES)
    for one in IN_LOCK_STEP:
        options: Any = {"workers": 2, "seed": 3, "timeout_s": 60}
        if one.send.codec is None:
            yield "islands", one.name, partial(real, partial(islands.train, inside="ddp"), one, ranks=2, **options)
        yield "durable", one.name, partial(real, chancy, one, faults=KILLED, durability="process", **options)
        table = partial(row_twin.train, steps=40)
        yield "durable, tables", one.name, partial(real, table, one, faults=KILLED, durability="process", **options)


def real(train: Any, strategy: Strategy, folder: Path, **more: Any) -> ps.Run:
    return ps.run(train, strategy, runs=folder, **more)


def said(world: str, made: ps.Run) -> str:
    """A run's line."""
    whole = b"".join(name.encode() + bits(value).numpy().tobytes() for name, value in made.state_dict.items())
    for name, table in sorted(made.tables.items()):
        rows = table.get_extra_state()
        order = rows["keys"].argsort()
        parts = (value[order] if len(value) == len(order) else value for _, value in sorted(rows.items()))
        whole += name.encode() + b"".join(part.contiguous().numpy().tobytes() for part in parts)
    words = f"version {made.version}, {made.steps} steps, {made.samples} samples, weights {xxh3_64_hexdigest(whole)}"
    if world.startswith(("islands", "durable")):
        return words
    journal = xxh3_64_hexdigest("\n".join(journal_lines(made.folder)).encode())
    figures = json.dumps(msgspec.to_builtins(made.summary, str_keys=True), sort_keys=True).encode()
    return f"{words}, journal {journal}, summary {xxh3_64_hexdigest(figures)}"


def journal_lines(folder: Path | None) -> Iterator[str]:
    """What a journal says, in words that do not depend on how it is written: a line an event, a fold, a discard."""
    assert folder is not None
    for record in read_journal(folder):
        if not isinstance(record, Decision):
            yield _line(record)
            continue
        event, effects, checksums = record.event, record.effects, iter(record.checksums)
        if not (isinstance(event, Ticked) and effects and isinstance(effects[0], Evict)):
            yield _line(event, time_s=record.time_s, loss=record.loss)
        for effect in effects:
            if isinstance(effect, Fold):
                members = [
                    (one.worker, one.incarnation, one.number, one.staleness, one.share) for one in effect.members
                ]
                held = effect.held is not None
                yield _line(effect, "Folded", members=members, held=held, checksum=next(checksums))
            elif isinstance(effect, Evict):
                yield _line(effect, time_s=record.time_s, loss=None)
            else:
                yield _line(effect)


def _line(said: Any, name: str = "", **more: Any) -> str:
    fields = {field: getattr(said, field) for field in said.__struct_fields__} | more
    return f"{name or type(said).__name__} {msgspec.json.encode(fields, order='sorted').decode()}"


def lines(only: str = "") -> Iterator[str]:
    for world, name, make in worlds():
        if only in f"{world} | {name}":
            with tempfile.TemporaryDirectory() as folder:
                yield f"{world} | {name} -> {said(world, make(Path(folder)))}"


def differing(now: Iterable[str], before: list[str]) -> Iterator[str]:
    known = dict(line.split(" -> ") for line in before)
    for line in now:
        name, what = line.split(" -> ")
        was = known.get(name, "not there")
        yield f"same     {name}" if was == what else f"DIFFERS  {name}\n    was {was}\n    is  {what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="WORDS", help="runs whose world and strategy have these words")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.write:
        with given.write.open("w") as file:
            for line in lines(given.only):
                print(line, file=file, flush=True)
        return 0
    wrong = 0
    for line in differing(lines(given.only), given.against.read_text().splitlines()):
        wrong += line.startswith("DIFFERS")
        print(line, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
