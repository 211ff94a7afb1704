"""The journal: records are read back, damage is noticed, and the story is the run's."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from plesio.cli.journal import journal as command
from plesio.cli.story import Row, story
from plesio.core.events import (
    Abandoned,
    Discard,
    Effect,
    Evict,
    Fold,
    Joined,
    LeaseWanted,
    Left,
    Member,
    Pushed,
    Reported,
    RowsWanted,
    Scaled,
    Switched,
    Ticked,
    Verdict,
)
from plesio.core.sequencer import Sequencer
from plesio.protocol.journal import (
    FORMAT,
    LOOKED_AT,
    Ended,
    Folded,
    FoldedMember,
    JournalError,
    JournalEvent,
    JournalHead,
    JournalWriter,
    Noted,
    Received,
    Record,
    Resumed,
    read_journal,
)
from plesio.protocol.journal.records import HEAD, MAGIC, frame_header
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import Each
from support.long_forms import examples

QUICK = settings(max_examples=examples(20), deadline=None, derandomize=True)
NAN = float("nan")
RUN = JournalHead(
    strategy="async_sgd",
    fields={"every": {"steps": 1}, "gather": "each"},
    workers=2,
    seed=7,
    stealing=True,
    silence_s=300.0,
    threads=1,
    versions={"python": "3.11.7", "torch": "2.13.0"},
    cpu_capability="AVX2",
    train_hash="0f",
)


def fold(version: int, *members: FoldedMember, scale: float = 1.0, held: bool = False) -> Fold:
    """A fold of `members`, with what the journal does not keep filled in."""
    full = [
        Member(one.worker, one.incarnation, one.number, version - 1 - one.staleness, one.staleness, one.share, 1, 16)
        for one in members
    ]
    return Fold(version, tuple(full), scale, held, 1.0)


def pushed(worker: int, number: int) -> Pushed:
    return Pushed(worker, 1, number, 1, 16, 1)


def small(path: Path) -> Path:
    """A journal with a record of every kind: two workers, three contributions, one of them discarded."""
    writer = JournalWriter(path, RUN)
    writer.event(Joined(0, 1), 100.0)
    writer.event(Joined(1, 1), 100.0)
    writer.event(LeaseWanted(0, 1, 0, 8, 2), 100.25)
    writer.event(RowsWanted(0, 1, 1), 100.375)
    writer.event(pushed(0, 1), 100.5, 2.5)
    writer.fold(fold(1, FoldedMember(0, 1, 1, 0, 1.0)), 0x0123456789ABCDEF)
    writer.event(pushed(1, 1), 101.0, 2.25)
    writer.fold(fold(2, FoldedMember(1, 1, 1, 1, 1.0), scale=0.5), 0xFEDCBA9876543210)
    writer.event(msgspec.structs.replace(pushed(1, 2), finite=False), 101.5)
    writer.discard(Discard(1, 1, 2, Verdict.NOT_FINITE, 0, 16))
    writer.event(Abandoned(1, 1, 3, look=2), 101.5)
    writer.event(Reported(0, 1, 5, 5), 101.75)
    writer.note("worker 1 went quiet", 102.0, worker=1)
    writer.event(Evict(1, 1, 12.5), 102.0)
    writer.event(Left(1, 1, True), 102.0)
    writer.end(7, "00ff", 103.0)
    return path


def ends(path: Path) -> list[int]:
    return [end for end, _ in read_journal(path).placed()]


# What is written is read


COUNT, BYTE4, SECONDS = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.floats(0, 1e9)
ANY_FLOAT = st.floats(width=64)
EVENTS = st.one_of(
    st.builds(Joined, COUNT, COUNT),
    st.builds(Left, COUNT, COUNT, st.booleans()),
    st.builds(Pushed, COUNT, COUNT, BYTE4, BYTE4, BYTE4, BYTE4, st.booleans(), BYTE4, st.booleans(), st.booleans()),
    st.builds(RowsWanted, COUNT, COUNT, BYTE4, st.booleans()),
    st.builds(Abandoned, COUNT, COUNT, BYTE4, BYTE4),
    st.builds(Reported, COUNT, COUNT, BYTE4, BYTE4),
    st.builds(LeaseWanted, COUNT, COUNT, BYTE4, BYTE4, BYTE4, BYTE4, st.booleans()),
    st.builds(Evict, COUNT, COUNT, SECONDS),
    st.builds(Scaled, COUNT),
    st.builds(Switched, COUNT),
    st.builds(Ticked),
)
RECEIVED = st.builds(Received, SECONDS, EVENTS, ANY_FLOAT).map(
    lambda one: one if isinstance(one.event, Pushed) else msgspec.structs.replace(one, loss=NAN)
)
MEMBERS = st.builds(FoldedMember, COUNT, COUNT, BYTE4, BYTE4, st.floats(0, 1))
EIGHT = st.integers(0, 2**64 - 1)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    RECEIVED,
    RECEIVED,
    st.builds(Folded, EIGHT, EIGHT, ANY_FLOAT, st.booleans(), st.lists(MEMBERS, max_size=4).map(tuple)),
    st.builds(Discard, COUNT, COUNT, BYTE4, st.sampled_from(Verdict), BYTE4, BYTE4),
    st.builds(Noted, SECONDS, st.none() | COUNT, st.text()),
)


def write(writer: JournalWriter, record: Record) -> None:
    if isinstance(record, Received):
        writer.event(record.event, record.time_s, record.loss)
    elif isinstance(record, Folded):
        writer.fold(fold(record.version, *record.members, scale=record.scale, held=record.held), record.checksum)
    elif isinstance(record, Discard):
        writer.discard(record)
    elif isinstance(record, Noted):
        writer.note(record.text, record.time_s, record.worker)
    else:
        writer.end(record.version, record.weights_hash, record.time_s)


@QUICK
@given(records=st.lists(RECORDS, max_size=12), text=st.text(max_size=40))
def test_written_records_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], text: str
) -> None:
    path = tmp_path_factory.mktemp("run") / "journal.bin"
    writer = JournalWriter(path, RUN)
    every: list[Record] = [*records, Ended(3.0, 2**64 - 1, text)]
    for record in every:
        write(writer, record)
    journal = read_journal(path)
    assert journal.head == RUN
    assert repr(list(journal)) == repr(every)  # a NaN is no equal of itself
    assert journal.complete
    assert journal.missing is None
    assert writer.position == path.stat().st_size == ends(path)[-1]


def test_a_run_folder_is_accepted_for_its_journal(tmp_path: Path) -> None:
    assert repr(list(read_journal(small(tmp_path / "journal.bin")))) == repr(list(read_journal(tmp_path)))


def test_the_bytes_of_the_format_are_stable(tmp_path: Path) -> None:
    """Of `small`, and of events with many batches."""
    writer = JournalWriter(tmp_path / "many.bin", RUN)
    writer.event(Pushed(0, 1, 2, 3, 70_000, 65_536, adopted_at=2), 100.5, 2.5)
    writer.event(Abandoned(1, 1, 65_536, look=2), 101.5)
    writer.event(Reported(0, 1, 70_000, 65_536), 101.75)
    writer.end(7, "00ff", 103.0)
    for path, golden in ((small(tmp_path / "journal.bin"), GOLDEN), (tmp_path / "many.bin", GOLDEN_MANY)):
        assert path.read_bytes().hex() == golden.replace("\n", ""), "another format: count FORMAT up"


def test_a_contribution_costs_less_than_100_bytes(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal.bin", RUN)
    before = writer.position
    for number in range(1, 101):
        writer.event(pushed(0, number), number / 1000, 1.0)
        writer.fold(fold(number, FoldedMember(0, 1, number, 0, 1.0)), 1)
    assert (writer.position - before) / 100 < 100
    writer.close()


def test_unknown_fields_of_the_header_are_ignored(tmp_path: Path) -> None:
    later = {**msgspec.to_builtins(RUN), "colour": "green"}
    path = with_head(tmp_path, bytes([HEAD]) + msgspec.msgpack.encode(later))
    assert read_journal(path).head == RUN


# When it is handed over


def test_events_are_flushed_every_tenth_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    writer.event(pushed(0, 1), 5.0)
    assert len(ends(path)) == 1
    writer.event(pushed(0, 2), 5.05)
    assert len(ends(path)) == 1
    writer.event(pushed(0, 3), 5.125)
    assert len(ends(path)) == 3
    writer.note("by hand", 5.13)
    writer.flush()
    assert len(ends(path)) == 4
    assert read_journal(path).missing is None
    assert not read_journal(path).complete
    writer.close()
    writer.close()


KILLED = """
import os, signal, sys
from plesio.core.events import Joined
from plesio.protocol.journal import JournalHead, JournalWriter
writer = JournalWriter(sys.argv[1], JournalHead(strategy="killed"))
for number in range(100):
    writer.event(Joined(number, 1), number * 0.05)
writer.note("not flushed", 5.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_loses_only_unflushed_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    times = [record.time_s for record in read_journal(path) if isinstance(record, Received)]
    assert len(times) == len(list(read_journal(path)))
    assert times[-1] > 4.95 - 0.11


def test_a_full_disk_is_a_journal_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with pytest.raises(JournalError, match=r"cannot be written: .*No space left.*make room"):
        JournalWriter(os.open("/dev/full", os.O_WRONLY), RUN)


def test_errors_of_an_inherited_journal_name_its_path(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    writer = JournalWriter.begun(os.open("/dev/full", os.O_WRONLY), "runs/a/journal.bin")
    writer.note("worker 0 died", 1.0)
    with pytest.raises(JournalError, match=r"^the journal runs/a/journal\.bin cannot be written: .*No space left"):
        writer.flush()


def test_records_refused_by_a_full_disk_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "journal.bin", os.pwrite
    writer = JournalWriter(path, RUN)
    writer.note("before", 1.0)
    room = iter([5, 0])

    def scarce(descriptor: int, data: bytearray, at: int) -> int:
        left = next(room, len(data))
        if not left:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:left], at)

    monkeypatch.setattr(os, "pwrite", scarce)
    with pytest.raises(JournalError, match="make room"):
        writer.flush()
    missing = read_journal(path).missing
    assert missing is not None
    assert missing.bytes == 5
    writer.close()
    assert list(read_journal(path)) == [Noted(1.0, None, "before")]


# Damage


def test_a_truncated_journal_is_read_up_to_the_last_whole_record(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole.bin")
    content, placed, start = whole.read_bytes(), list(read_journal(whole).placed()), read_journal(whole).start
    cut = tmp_path / "cut.bin"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        if length < start:
            with pytest.raises(JournalError):
                read_journal(cut)
            continue
        journal = read_journal(cut)
        kept = [(end, record) for end, record in placed if end <= length]
        assert repr(list(journal.placed())) == repr(kept)
        assert not journal.complete
        last = kept[-1][0] if kept else start
        assert (journal.missing.bytes if journal.missing else 0) == length - last


def test_any_flipped_bit_is_detected_and_the_rest_is_counted(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole.bin")
    content, placed, start = whole.read_bytes(), list(read_journal(whole).placed()), read_journal(whole).start
    flipped = tmp_path / "flipped.bin"
    for byte in range(len(content)):
        bad = bytearray(content)
        bad[byte] ^= 1 << byte % 8
        flipped.write_bytes(bad)
        if byte < start:
            with pytest.raises(JournalError):
                read_journal(flipped)
            continue
        journal = read_journal(flipped)
        kept = [(end, record) for end, record in placed if end <= byte]
        hit = len(kept)
        assert repr(list(journal.placed())) == repr(kept)
        last = kept[-1][0] if kept else start
        assert journal.missing is not None
        assert (journal.missing.position, journal.missing.bytes) == (last, len(content) - last)
        rest = [record for _, record in placed[hit + 1 :]]
        assert journal.missing.contributions == known(kept_records(kept) + rest) - known(kept_records(kept))


def kept_records(placed: list[tuple[int, Record]]) -> list[Record]:
    return [record for _, record in placed]


def known(records: list[Record]) -> int:
    """How many contributions the records tell of: the highest number of each worker, and those reported."""
    highest: Counter[int] = Counter()
    reported = 0
    for record in records:
        event = record.event if isinstance(record, Received) else None
        if isinstance(event, Reported):
            reported += event.versions
        numbered = record.members if isinstance(record, Folded) else [event, record]
        for one in numbered:
            if isinstance(one, Pushed | FoldedMember | Discard):
                highest[one.worker] = max(highest[one.worker], one.number)
    return sum(highest.values()) + reported


def test_damage_in_the_middle_counts_the_contributions_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    for number in range(1, 51):
        writer.event(pushed(0, number), number / 10)
    writer.close()
    content, hole = bytearray(path.read_bytes()), ends(path)[9]
    content[hole : hole + 300] = bytes(300)
    path.write_bytes(content)
    journal = read_journal(path)
    assert len(list(journal)) == 10
    assert journal.missing is not None
    assert journal.missing.contributions == 40


@QUICK
@given(tail=st.binary(min_size=1, max_size=80))
def test_bytes_after_the_last_record_are_reported_as_missing(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = small(tmp_path_factory.mktemp("run") / "journal.bin")
    whole = list(read_journal(path).placed())
    with path.open("ab") as file:
        file.write(tail)
    journal = read_journal(path)
    assert repr(list(journal.placed())) == repr(whole)
    assert journal.missing is not None
    assert journal.missing.bytes == len(tail)


@QUICK
@given(bodies=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4))
def test_undecodable_records_are_reported_as_missing(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("run") / "journal.bin"
    JournalWriter(path, RUN).close()
    with path.open("ab") as file:
        for body in bodies:
            file.write(frame_header(body, file.tell()) + body)
    journal = read_journal(path)
    read = sum(1 for _ in journal)
    assert (journal.missing is None) == (read == len(bodies))


def test_a_copied_record_is_not_read(tmp_path: Path) -> None:
    path = small(tmp_path / "journal.bin")
    content, first, second = path.read_bytes(), *ends(path)[:2]
    path.write_bytes(content[:second] + content[first:second] + content[second:])
    assert len(list(read_journal(path))) == 2


# What is no journal


def with_head(folder: Path, body: bytes) -> Path:
    path = folder / "journal.bin"
    path.write_bytes(MAGIC + frame_header(body, len(MAGIC)) + body)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"strategy": "async_sgd"}', "is no journal: it begins with"),
        (MAGIC[:3], "cut off or damaged"),
        (MAGIC + b"\0" * 50, "cut off or damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "journal.bin"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=message):
        read_journal(path)


@pytest.mark.parametrize("body", [b"\x04", bytes([HEAD]), bytes([HEAD]) + msgspec.msgpack.encode({"strategy": "x"})])
def test_a_journal_without_a_header_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(JournalError, match="damaged"):
        read_journal(with_head(tmp_path, body))


@pytest.mark.parametrize("other", [FORMAT - 1, LOOKED_AT + 1])
def test_another_format_is_refused_by_its_number(tmp_path: Path, other: int) -> None:
    body = bytes([HEAD]) + msgspec.msgpack.encode({"format": other, "strategy": 5})
    with pytest.raises(JournalError, match=rf"format {other}, and this plesio reads {FORMAT}"):
        read_journal(with_head(tmp_path, body))


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"journal\.bin cannot be read: No such file"):
        read_journal(tmp_path)


def test_an_existing_journal_is_not_overwritten(tmp_path: Path) -> None:
    path = small(tmp_path / "journal.bin")
    with pytest.raises(JournalError, match="File exists"):
        JournalWriter(path, RUN)


# Going on


def test_resume_continues_after_the_last_whole_record(tmp_path: Path) -> None:
    path = small(tmp_path / "journal.bin")
    before = list(read_journal(path))[:-1]
    path.write_bytes(path.read_bytes()[:-1])
    JournalWriter.resume(path).end(9, "ab", 300.0)
    assert repr(list(read_journal(path))) == repr([*before, Ended(300.0, 9, "ab")])
    assert read_journal(path).complete


# Enough to replay


def played(strategy: Strategy, writer: JournalWriter) -> list[Effect]:
    """A run of three workers: one is slow, one sends a NaN, the slow one falls silent and is evicted."""
    sequencer, now_s, effects = Sequencer(strategy, 3, silence_s=5.0), 1000.0, []

    def take(event: JournalEvent | Ticked, loss: float = NAN) -> None:
        if not isinstance(event, Ticked):
            writer.event(event, now_s, loss)
        for effect in sequencer.receive(event, now_s):
            effects.append(effect)
            if isinstance(effect, Fold):
                writer.fold(effect, effect.version)
            elif isinstance(effect, Discard):
                writer.discard(effect)
            elif isinstance(effect, Evict):
                writer.event(effect, now_s)

    for worker in range(3):
        take(Joined(worker, 1))
    numbers = Counter[int]()
    for turn in range(60):
        now_s += 0.1
        if turn == 30:
            take(Scaled(5))
        if turn == 45 and strategy.plan:
            take(Switched(2))
        worker = 2 if turn % 7 == 6 and turn < 40 else turn % 2
        seat = sequencer.members.seats.get(worker)
        if seat is not None and seat.waiting is None:
            numbers[worker] = seat.next_number
            take(msgspec.structs.replace(pushed(worker, seat.next_number), finite=turn != 20), 1 / (turn + 1))
    now_s += 6.0
    take(Ticked())
    take(Left(0, 1, died=False))
    writer.close()
    return effects


def replayed(strategy: Strategy, path: Path) -> list[Effect]:
    """The effects of the journal's events alone."""
    sequencer, effects = Sequencer(strategy, 3, silence_s=5.0), []
    for record in read_journal(path):
        if isinstance(record, Received):
            event = Ticked() if isinstance(record.event, Evict) else record.event
            effects += sequencer.receive(event, record.time_s)
    return effects


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "async_sgd": recipes.async_sgd,
    "sync_sgd": recipes.sync_sgd,
    "first_of": functools.partial(recipes.first_of, 2),
    "bounded_staleness": functools.partial(recipes.bounded_staleness, 2),
    "buffered": functools.partial(recipes.buffered, 3),
    "ringmaster": functools.partial(recipes.ringmaster, 1),
    "phases": lambda: recipes.phases(recipes.async_sgd(), (20, recipes.first_of(2)), recipes.buffered(3)),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_replaying_events_gives_the_same_effects(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.bin"
    effects = played(STRATEGIES[name](), JournalWriter(path, RUN))
    assert sum(isinstance(one, Fold) for one in effects) > 2
    assert replayed(STRATEGIES[name](), path) == effects


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_story_has_one_row_per_contribution(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.bin"
    strategy = STRATEGIES[name]()
    effects = played(strategy, JournalWriter(path, RUN))
    rows = list(story(read_journal(path)))
    told = {(row.worker, row.number): row for row in rows if row.number}
    assert len(told) == sum(1 for row in rows if row.number)
    sent = {(r.event.worker, r.event.number) for r in read_journal(path) if isinstance(r, Received)
            and isinstance(r.event, Pushed)}  # fmt: skip
    assert sent <= told.keys()
    for effect in effects:
        for member in effect.members if isinstance(effect, Fold) else ():
            row = told[member.worker, member.number]
            assert (row.what, row.version) == ("folded", effect.version)
            assert (row.computed_from, row.staleness) == (member.computed_from, member.staleness)
            assert (row.share, row.loss is None) == (member.share, False)
            assert row.held_s == 0 or any(phase.gather != Each() for phase in strategy.phases)
        if isinstance(effect, Discard):
            row = told[effect.worker, effect.number]
            assert row.what == f"discarded: {effect.verdict.name.lower().replace('_', ' ')}"


def test_a_duplicate_leaves_the_first_contributions_row_unchanged() -> None:
    first, again = Received(1.0, pushed(0, 1), 0.5), Received(2.0, pushed(0, 1), 0.25)
    duplicate = Discard(0, 1, 1, Verdict.DUPLICATE, 0)
    folded = Folded(1, 0, 1.0, False, (FoldedMember(0, 1, 1, 0, 1.0),))
    waiting = list(story([first, again, duplicate, folded]))
    assert [(row.what, row.loss) for row in waiting] == [("discarded: duplicate", 0.5), ("folded", 0.5)]
    assert waiting[1].held_s == 1.0
    late = list(story([first, folded, again, duplicate]))
    assert [(row.what, row.loss) for row in late] == [("folded", 0.5), ("discarded: duplicate", 0.25)]


@pytest.mark.parametrize("pause_s", [90.0, -8.0], ids=["the same clock", "a machine that was started anew"])
def test_the_story_does_not_count_the_pause_of_a_resumed_run(pause_s: float) -> None:
    records = [
        Received(10.0, Joined(0, 1), 0.0),
        Received(12.0, Joined(1, 1), 0.0),
        Resumed(12.0 + pause_s, 0),
        Received(15.0 + pause_s, Joined(0, 2), 0.0),
    ]
    assert [row.time_s for row in story(records)] == [0.0, 2.0, 2.0, 5.0]


def test_the_story_uses_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    for number in range(1, 5001):
        writer.event(pushed(0, number), number / 1000, 1.0)
        writer.fold(fold(number, FoldedMember(0, 1, number, 0, 1.0)), 1)
    writer.close()
    journal = read_journal(path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in story(journal)) == 5000
        assert not journal.complete
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 4


# The command


app = typer.Typer()
app.command()(command)


def asked(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def rows_of(*arguments: object) -> Iterator[dict[str, Any]]:
    for line in asked(*arguments, "--json").splitlines():
        if line.startswith("{"):
            yield json.loads(line)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Two workers take turns for 40 versions; every tenth of worker 1 is 12 versions stale."""
    writer = JournalWriter(tmp_path / "journal.bin", RUN)
    for version in range(1, 41):
        worker, number = version % 2, (version + 1) // 2
        writer.event(pushed(worker, number), version / 10, 1 / version)
        stale = 12 if worker and number % 10 == 0 else 1
        writer.fold(fold(version, FoldedMember(worker, 1, number, stale, 1.0)), version)
    writer.end(40, "ff", 5.0)
    return tmp_path


def test_the_table_shows_every_record(tmp_path: Path) -> None:
    small(tmp_path / "journal.bin")
    assert asked(tmp_path) == TABLE.lstrip("\n")


def test_a_truncated_journal_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    path = small(tmp_path / "journal.bin")
    whole, content = ends(path), path.read_bytes()
    path.write_bytes(content[: whole[-1] - 1])
    out = asked(tmp_path)
    assert out.startswith("\n".join(TABLE.strip().splitlines()[:-1]))
    cannot = whole[-1] - 1 - whole[-2]
    assert out.endswith(f"\nfrom byte {whole[-2]:,} on, {cannot} bytes cannot be read\n")
    path.write_bytes(content[: whole[-2]])
    assert asked(tmp_path).endswith("\nthe journal has no end: its run was killed, or is still going\n")
    bad = bytearray(content)
    bad[whole[2]] ^= 1
    path.write_bytes(bad)
    assert asked(tmp_path).endswith("cannot be read, with at least 8 contributions\n")


def test_rows_are_filtered_by_worker(long: Path) -> None:
    assert {row["worker"] for row in rows_of(long, "--worker", 1)} == {1}
    assert len(list(rows_of(long, "--worker", 1))) == 20
    assert len(list(rows_of(long, "--worker", 1, "--worker", 0))) == 40


def test_rows_are_filtered_by_staleness(long: Path) -> None:
    assert [row["number"] for row in rows_of(long, "--staleness-over", 10)] == [10, 20]
    assert len(list(rows_of(long, "--staleness-over", 0))) == 40
    assert not list(rows_of(long, "--staleness-over", 12))


def test_rows_are_filtered_by_version(long: Path) -> None:
    assert [row["version"] for row in rows_of(long, "--around", 20)] == list(range(10, 31))
    assert [row["version"] for row in rows_of(long, "--around", 20, "--worker", 1, "--staleness-over", 5)] == [19]


def test_rows_are_limited(long: Path) -> None:
    assert [row["version"] for row in rows_of(long, "--limit", 3)] == [1, 2, 3]
    with pytest.raises(AssertionError, match="assert 2 == 0"):  # the exit code of wrong usage
        asked(long, "--limit", 0)


def test_json_rows_have_every_field(long: Path) -> None:
    row = next(iter(rows_of(long, "--limit", 1)))
    assert row.keys() == set(Row.__struct_fields__)
    assert (row["worker"], row["number"], row["loss"], row["what"]) == (1, 1, 1.0, "folded")


IN_A_PIPE = """
import sys
from pathlib import Path
from plesio.cli.journal import journal
journal(Path(sys.argv[1]))
assert "torch" not in sys.modules
"""


@pytest.mark.thorough
def test_the_command_needs_no_torch_and_survives_a_closed_pipe(long: Path) -> None:
    script = [sys.executable, "-c", IN_A_PIPE, str(long)]
    out = subprocess.run(script, capture_output=True, timeout=60, check=True)
    assert out.stdout.count(b"\n") == 45
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(script, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


TABLE = """
async_sgd: 2 workers, seed 7, python 3.11.7, torch 2.13.0

    time s   version worker   number      from stale  share       loss  what
────────────────────────────────────────────────────────────────────────────
     0.000         0      0                                             joined
     0.000         0      1                                             joined
     0.500         1      0        1         0     0  1.000        2.5  folded
     1.000         2      1        1         0     1  1.000       2.25  folded
     1.500         2      1        2         2     0                    discarded: not finite
     1.500         2      1                                             dropped a step at look 2, 3 batches with it
     1.750         7      0                                             folded 5 in place
     2.000         7      1                                             worker 1 went quiet
     2.000         7      1                                             evicted: silent for 12.5 s
     2.000         7      1                                             died or was stopped
     3.000         7                                                    ended, weights 00ff
"""
GOLDEN = """
89706c6573696f0aca00000024acd9ae018da6666f726d617409a87374726174656779a96173796e635f736764a66669656c647382a56576
65727981a5737465707301a6676174686572a465616368a7776f726b65727302a47365656407a8737465616c696e67c3a973696c656e6365
5f73cb4072c00000000000a77468726561647301a876657273696f6e7382a6707974686f6ea6332e31312e37a5746f726368a6322e31332e
30ae6370755f6361706162696c697479a441565832a6736372697074a0aa747261696e5f68617368a23066a5746f72636880170000009e23
73a30295cb4059000000000000cb7ff80000000000000001c0170000006c915cd60295cb4059000000000000cb7ff80000000000000101c0
1b000000953f66a90699cb4059100000000000cb7ff8000000000000000100080200c218000000294c84780b96cb4059180000000000cb7f
f8000000000000000101c21e00000072033a7c049ccb4059200000000000cb4004000000000000000101011001c300c2c225000000184d6b
fe109501cf0123456789abcdefcb3ff0000000000000c2919500010100cb3ff00000000000001e0000006206e72a049ccb40594000000000
00cb4002000000000000010101011001c300c2c22500000087b39118109502cffedcba9876543210cb3fe0000000000000c2919501010101
cb3ff00000000000001e0000008f326a30049ccb4059600000000000cb7ff8000000000000010102011001c200c2c2080000003fe4559311
9601010202001018000000c1cc45f30796cb4059600000000000cb7ff8000000000000010103021800000093aa339f0596cb405970000000
0000cb7ff8000000000000000105052000000084befd711293cb405980000000000001b3776f726b657220312077656e742071756965741f
000000a0361eaa0895cb4059800000000000cb7ff80000000000000101cb40290000000000001700000016299b1b0395cb40598000000000
00cb7ff80000000000000101c3110000006bf291561393cb4059c0000000000007a430306666
"""

GOLDEN_MANY = """
89706c6573696f0aca00000024acd9ae018da6666f726d617409a87374726174656779a96173796e635f736764a66669656c647382a56576
65727981a5737465707301a6676174686572a465616368a7776f726b65727302a47365656407a8737465616c696e67c3a973696c656e6365
5f73cb4072c00000000000a77468726561647301a876657273696f6e7382a6707974686f6ea6332e31312e37a5746f726368a6322e31332e
30ae6370755f6361706162696c697479a441565832a6736372697074a0aa747261696e5f68617368a23066a5746f72636880260000005e38
5a4d049ccb4059200000000000cb400400000000000000010203ce00011170ce00010000c302c2c21c0000004caa70cb0796cb4059600000
000000cb7ff80000000000000101ce000100000220000000622dbad50596cb4059700000000000cb7ff80000000000000001ce00011170ce
0001000011000000d90669e91393cb4059c0000000000007a430306666
"""
