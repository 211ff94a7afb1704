"""A standby that follows from any settled moment has the head's memory, to the bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import plesio as ps
from plesio.core.events import Serve, Show
from plesio.errors import ConfigurationError, PlesioError
from plesio.launch.standby.shadow import Shadow
from plesio.memory import replication
from plesio.memory.machine import Machine
from plesio.memory.replication import Replication
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.remote import Terms
from plesio.protocol.replication import Came, Did, Followed, FromHead, RowsCame
from plesio.protocol.rows import RowsRequest
from plesio.protocol.worker import Hello
from plesio.server.checkpointer import Checkpointer
from plesio.server.checkpoints import Manifest, latest
from plesio.server.keeping import Keeping
from plesio.server.standby_state import write_state
from plesio.strategy import Strategy
from plesio.tables.links import WAITS, KeptRows
from plesio.tables.spec import TableSpec
from plesio.transport.replication_log import FellBehindError, ReplicationLog
from support.long_forms import but_thorough
from unit import test_surviving_memory
from unit.test_surviving_memory import CASES, QUICK, SEATS, WORKERS, Act, Case, Server, hello, moving

decode: Any = decoder_of(FromHead)
FOLLOWED = [
    name for name, case in CASES.items() if not (case.strategy.gives_back_mean or case.strategy.plan or case.after)
]


class Head(Server):
    """A server whose memory is told to a standby, from when `begin` is called."""

    def __init__(self, case: Case) -> None:
        self.replication = Replication()
        super().__init__(case)

    def machine_of(self) -> Machine:
        return Machine(self.blocks, beside=[self.replication])

    def manifest(self) -> Manifest:
        return Checkpointer(Keeping(), self.case.strategy, WORKERS, SEATS).manifest(self.sequencer, 0)

    def follow(self, folder: Path, ring_bytes: int = 1 << 24) -> Shadow:
        read = write_state(folder, self.machine, self.manifest())
        self.replication.log = ReplicationLog.create(ring_bytes)
        self.replication.version, self.at = self.sequencer.version, 0
        strategy = self.case.strategy
        terms = Terms(WORKERS, SEATS, 0, 300.0, strategy.name, strategy.as_data(), False)
        workers = self.sequencer.workers
        followed = Followed(1, terms, {}, {}, self.blocks.first, 0, workers, read, self.replication.settings, 0)
        said: Followed = decode(encode(followed))
        return Shadow(said, folder, folder / "journal")

    def act(self, act: Act) -> None:
        super().act(act)
        if not all(isinstance(one, Show) for one in self.replication.effects):
            self.changed = self.manifest()
        self.replication.turn(self.machine, self.sequencer.version, lambda: encode(self.manifest()), b"")

    def entries(self) -> Iterator[tuple[Came | RowsCame | Did, list[memoryview]]]:
        assert self.replication.log is not None
        for entry in self.replication.log.entries(self.at):
            yield decode(entry.message), entry.payload
            self.at = entry.end


def taken(shadow: Shadow, head: Head) -> None:
    """The shadow hears what came on the log."""
    for message, payload in head.entries():
        if isinstance(message, Came | RowsCame):
            place, sent = shadow.place(message), b"".join(payload)
            for part in place:
                part[:], sent = sent[: len(part)], sent[len(part) :]
            assert not sent
            shadow.came(message)
        else:
            shadow.did(message)


def kept(machine: Machine) -> list[Any]:
    known = machine.kept()
    tensors = {name: one.tolist() for name, one in {**known.weights, **known.tensors}.items() if "shown" not in name}
    numbers = {
        name: one for name, one in known.numbers.items() if name != "shown"
    }  # which buffers, that is anybody's choice
    versions = machine.blocks.versions
    read = {worker: [moving(versions.buffers[index]) for index in versions.read_by(worker)] for worker in range(SEATS)}
    return [machine.digest(), tensors, json.loads(json.dumps(numbers)), read]


def followed(head: Head, seed: int, folder: Path) -> Shadow:
    """Much happens to the head, and after a while to its shadow, too."""
    rng, shadow, made = random.Random(seed), None, 0
    folder.mkdir()
    for place in range(40):
        head.act(Act(*rng.choice(head.possible()), 100 + place))
        if shadow is None and place >= 5 * seed and head.sequencer.settled:
            shadow, made = head.follow(folder), head.sequencer.version
        if shadow is not None:
            taken(shadow, head)
    assert shadow is not None
    assert shadow.version == head.sequencer.version > made + 3
    return shadow


@pytest.mark.parametrize("name", but_thorough(FOLLOWED, [name for name in QUICK if name in FOLLOWED]))
def test_has_the_heads_memory_to_the_bit(name: str, tmp_path: Path) -> None:
    for seed in range(3):
        head = Head(CASES[name])
        shadow = followed(head, seed, tmp_path / f"{seed}")
        assert encode(shadow.manifest) == encode(head.changed), (
            "it goes with the memory, which changes between versions, too"
        )
        assert kept(shadow._machine) == kept(head.machine)


TABLES = (
    TableSpec("ids", 4, ps.RowAdagrad(0.1), scale=0.1, seed=1),
    TableSpec("seen twice", 3, ps.RowSGD(0.1), scale=0.1, seed=2, admit=ps.Seen(2), expire=ps.Unused(5)),
)


LIVE = ("keys", "values", "state", "versions")


class HeadWithRows(Head):
    """Of workers that look rows of tables up for each contribution."""

    def write(self, act: Act) -> None:
        super().write(act)
        rows, number, source = self.machine.rows, self.numbers[act.worker], np.random.default_rng(act.seed)
        assert rows is not None
        some = source.integers(1, 30, len(TABLES)).tolist()
        for table, count in enumerate(some):
            laid = self.blocks.rows[0].of(act.worker, number, table).rows(0, count)
            laid.keys[:] = source.permutation(40)[:count]
            laid.gradients[:] = source.standard_normal(laid.gradients.shape)
            laid.touched[:] = source.random(count) < 0.8
        rows.asked(act.worker, RowsRequest(number, tuple((0, count) for count in some)))
        self.machine.do(Serve(act.worker, number))


def of_tables(worker: int, case: Case) -> Hello:
    return msgspec.structs.replace(hello(worker, case), tables=TABLES)


def by_key(tables: Mapping[str, KeptRows]) -> list[list[tuple[Any, ...]]]:
    """The rows, and keys that have none yet, without the order in which they were born."""
    parts = [
        [one.get(name, np.empty(0)).tolist() for name in part] for one in tables.values() for part in (LIVE, WAITS)
    ]
    return [sorted(zip(*part, strict=True)) for part in parts]


@pytest.mark.parametrize("piece", [64, 1 << 20], ids=["in pieces", "whole"])
@pytest.mark.parametrize(
    "strategy", [ps.async_sgd(), ps.sync_sgd(), ps.buffered(2, rows="with")], ids=lambda one: one.name
)
def test_has_the_rows_of_tables_to_the_bit(
    strategy: Strategy, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_surviving_memory, "hello", of_tables)
    monkeypatch.setattr(replication, "PIECE_BYTES", piece)
    for seed in range(3):
        head = HeadWithRows(Case(strategy))
        shadow = followed(head, seed, tmp_path / f"{seed}")
        ours, theirs = shadow._machine.rows, head.machine.rows
        assert ours is not None
        assert theirs is not None
        assert ours.checksum() == theirs.checksum() != 0
        assert by_key(latest(shadow.write()).tables()) == by_key(ours.kept()) == by_key(theirs.kept())


@pytest.mark.parametrize("fails", [False, True], ids=["there is none", "it fails"])
def test_rows_are_compared_where_no_journal_asks_for_their_checksum(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_surviving_memory, "hello", of_tables)
    head, rng = HeadWithRows(Case(ps.async_sgd())), random.Random(0)
    if not fails:
        head.machine.checksum = lambda version: 0  # type: ignore[method-assign]
    shadow = followed(head, 1, tmp_path / "run")
    head.machine.checksum = lambda version: 0  # type: ignore[method-assign]
    for place in range(20):
        head.act(Act(*rng.choice(head.possible()), place))
    taken(shadow, head)
    rows = shadow._machine.rows
    assert rows is not None
    others = rows.kept()
    for table in others.values():
        table["values"][:] += 1.0
    rows.begin_with(others)
    for place in range(20):
        head.act(Act(*rng.choice(head.possible()), place))
    with pytest.raises(PlesioError, match=r"version \d+ is not the head's"):
        taken(shadow, head)


def test_rows_that_step_before_their_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_surviving_memory, "hello", of_tables)
    with pytest.raises(ConfigurationError, match=r"buffered\(k=2\) .* take rows='with'"):
        Head(Case(ps.buffered(2)))


def test_a_function_does_not_travel() -> None:
    with pytest.raises(ConfigurationError, match="after_step="):
        Head(CASES["large, changed after each step"])


def test_is_elected_before_it_has_another_version(tmp_path: Path) -> None:
    head = Head(CASES["SGD, in rounds"])
    for worker in range(WORKERS):
        head.act(Act("push", worker, worker))
    shadow = head.follow(tmp_path)
    assert latest(shadow.write()).manifest.version == shadow.version == 1


def test_notices_another_version(tmp_path: Path) -> None:
    head = Head(CASES["SGD, in rounds"])
    shadow = head.follow(tmp_path)
    for worker in range(WORKERS):
        head.act(Act("push", worker, worker))
    shadow._machine.current.bytes[0] ^= 1
    with pytest.raises(PlesioError, match="version 1 is not the head's"):
        taken(shadow, head)


def test_falls_behind_by_all_that_the_log_holds(tmp_path: Path) -> None:
    head = Head(CASES["SGD, in rounds"])
    shadow = head.follow(tmp_path, ring_bytes=3 * head.blocks.layout.nbytes)
    for place in range(30 * WORKERS):
        head.act(Act("push", place % WORKERS, place))
    with pytest.raises(FellBehindError):
        taken(shadow, head)
