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
from math import nan
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
    Event,
    Evict,
    Fold,
    Joined,
    LeaseWanted,
    Left,
    Member,
    Pushed,
    Reported,
    RoundBegins,
    RowsWanted,
    Scaled,
    Switched,
    Ticked,
    Verdict,
    Whereabouts,
)
from plesio.core.sequencer import Sequencer
from plesio.protocol.journal import (
    FORMAT,
    Decision,
    Ended,
    JournalError,
    JournalHead,
    JournalWriter,
    Noted,
    Record,
    Resumed,
    read_journal,
)
from plesio.protocol.journal.records import HEAD, MAGIC, frame_header
from plesio.server.recording import Recorder
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import Each
from support.long_forms import examples

QUICK = settings(max_examples=examples(20), deadline=None, derandomize=True)
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


def member(worker: int, number: int, staleness: int = 0) -> Member:
    return Member(worker, 1, number, staleness, 1.0, 1, 16)


def pushed(worker: int, number: int) -> Pushed:
    return Pushed(worker, 1, number, 1, 16, 1)


def folded(time_s: float, worker: int, number: int, version: int, staleness: int = 0) -> Decision:
    """That contribution comes and makes a version."""
    fold = Fold(version, (member(worker, number, staleness),), 1.0)
    return Decision(time_s, pushed(worker, number), (fold,), (version << 40,), 1 / version)


def small(path: Path) -> Path:
    """A journal with most kinds of records: two workers, three contributions, one of them discarded."""
    writer, not_finite = JournalWriter(path, RUN), msgspec.structs.replace(pushed(1, 2), finite=False)
    for record in (
        Decision(100.0, Joined(0, 1)),
        Decision(100.0, Joined(1, 1)),
        Decision(100.25, LeaseWanted(0, 1, 0, 8, 2)),
        Decision(100.375, RowsWanted(0, 1, 1)),
        folded(100.5, 0, 1, version=1),
        folded(101.0, 1, 1, version=2, staleness=1),
        Decision(101.5, not_finite, (Discard(1, 1, 2, Verdict.NOT_FINITE, 0, 16),)),
        Decision(101.5, Abandoned(1, 1, 3, look=2)),
        Decision(101.75, Reported(0, 1, 5, 5)),
        Noted(102.0, 1, "worker 1 went quiet"),
        Decision(102.0, Ticked(), (Evict(1, 1, 12.5),)),
        Decision(102.0, Left(1, 1, True)),
    ):
        writer.keep(record)
    writer.end(7, "00ff", 103.0)
    return path


def ends(path: Path) -> list[int]:
    return [end for end, _ in read_journal(path).placed()]


# What is written is read


COUNT, BYTE4, SECONDS = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.floats(0, 1e9)
ANY_FLOAT = st.floats(width=64)
EVENTS = st.one_of(
    st.builds(Joined, COUNT, COUNT, st.none() | st.builds(Whereabouts, BYTE4, BYTE4, BYTE4, st.booleans())),
    st.builds(Left, COUNT, COUNT, st.booleans()),
    st.builds(Pushed, COUNT, COUNT, BYTE4, BYTE4, BYTE4, BYTE4, st.booleans(), BYTE4, st.booleans(), st.booleans()),
    st.builds(RowsWanted, COUNT, COUNT, BYTE4, st.booleans()),
    st.builds(Abandoned, COUNT, COUNT, BYTE4, BYTE4),
    st.builds(Reported, COUNT, COUNT, BYTE4, BYTE4),
    st.builds(LeaseWanted, COUNT, COUNT, BYTE4, BYTE4, BYTE4, BYTE4, st.booleans()),
    st.builds(RoundBegins, st.none() | st.lists(COUNT, max_size=3).map(tuple)),
    st.builds(Scaled, COUNT),
    st.builds(Switched, COUNT),
    st.builds(Ticked),
)
EIGHT = st.integers(0, 2**64 - 1)
MEMBERS = st.builds(Member, COUNT, COUNT, BYTE4, BYTE4, st.floats(0, 1), BYTE4, BYTE4)
EFFECTS = st.one_of(
    st.builds(Fold, EIGHT, st.lists(MEMBERS, max_size=4).map(tuple), ANY_FLOAT, st.none() | ANY_FLOAT),
    st.builds(Discard, COUNT, COUNT, BYTE4, st.sampled_from(Verdict), BYTE4, BYTE4),
    st.builds(Evict, COUNT, COUNT, SECONDS),
)
FEW, SUMS = st.lists(EFFECTS, max_size=3).map(tuple), st.lists(EIGHT, max_size=3).map(tuple)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Decision, SECONDS, EVENTS, FEW, SUMS, st.none() | ANY_FLOAT),
    st.builds(Noted, SECONDS, st.none() | COUNT, st.text()),
    st.builds(Resumed, SECONDS, EIGHT, st.lists(COUNT, max_size=3).map(tuple)),
)


@QUICK
@given(records=st.lists(RECORDS, max_size=12), text=st.text(max_size=40))
def test_written_records_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], text: str
) -> None:
    path = tmp_path_factory.mktemp("run") / "journal.bin"
    writer = JournalWriter(path, RUN)
    for record in records:
        writer.keep(record)
    writer.end(2**64 - 1, text, 3.0)
    every = [*records, Ended(3.0, 2**64 - 1, text)]
    journal = read_journal(path)
    assert journal.head == RUN
    assert repr(list(journal)) == repr(every)  # a NaN is no equal of itself
    assert journal.complete
    assert journal.missing is None
    assert writer.position == path.stat().st_size == ends(path)[-1]


def test_a_run_folder_is_accepted_for_its_journal(tmp_path: Path) -> None:
    assert repr(list(read_journal(small(tmp_path / "journal.bin")))) == repr(list(read_journal(tmp_path)))


def test_the_bytes_of_the_format_are_stable(tmp_path: Path) -> None:
    assert small(tmp_path / "journal.bin").read_bytes().hex() == GOLDEN.replace("\n", ""), "count FORMAT up"


def test_a_contribution_costs_less_than_100_bytes(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal.bin", RUN)
    before = writer.position
    for number in range(1, 101):
        writer.keep(folded(number / 1000, 0, number, number))
    assert (writer.position - before) / 100 < 100
    writer.close()


def test_unknown_fields_of_the_header_are_ignored(tmp_path: Path) -> None:
    later = {**msgspec.to_builtins(RUN), "colour": "green"}
    path = with_head(tmp_path, HEAD + msgspec.msgpack.encode(later))
    assert read_journal(path).head == RUN


# When it is handed over


def test_events_are_flushed_every_tenth_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    writer.keep(Decision(5.0, pushed(0, 1)))
    assert len(ends(path)) == 1
    writer.keep(Decision(5.05, pushed(0, 2)))
    assert len(ends(path)) == 1
    writer.keep(Decision(5.125, pushed(0, 3)))
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
from plesio.protocol.journal import Decision, JournalHead, JournalWriter
writer = JournalWriter(sys.argv[1], JournalHead(strategy="killed"))
for number in range(100):
    writer.keep(Decision(number * 0.05, Joined(number, 1)))
writer.note("not flushed", 5.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_loses_only_unflushed_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    times = [one.time_s for one in read_journal(path).decisions()]
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

DEEP = b"\x91" * 100_000 + b"\xc0"
"""An array in an array in an array..."""


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
        if not isinstance(record, Decision):
            continue
        reported += record.event.versions if isinstance(record.event, Reported) else 0
        for one in (record.event, *record.effects, *(member for fold in record.folds for member in fold.members)):
            if isinstance(one, Pushed | Member | Discard):
                highest[one.worker] = max(highest[one.worker], one.number)
    return sum(highest.values()) + reported


def test_damage_in_the_middle_counts_the_contributions_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    for number in range(1, 51):
        writer.keep(Decision(number / 10, pushed(0, number)))
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


def test_a_record_that_goes_too_deep_is_reported_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    JournalWriter(path, RUN).close()
    body = b"\x95\xa1N" + msgspec.msgpack.encode(1.0) + b"\xc0\xa0" + DEEP
    with path.open("ab") as file:
        file.write(frame_header(body, file.tell()) + body)
    journal = read_journal(path)
    assert journal.missing is not None
    assert not list(journal)


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


@pytest.mark.parametrize("body", [b"\x04", HEAD, HEAD + DEEP, HEAD + msgspec.msgpack.encode({"strategy": "x"})])
def test_a_journal_without_a_header_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(JournalError, match="damaged"):
        read_journal(with_head(tmp_path, body))


@pytest.mark.parametrize("other", [9, FORMAT + 1])
def test_another_format_is_refused_by_its_number(tmp_path: Path, other: int) -> None:
    body = HEAD + msgspec.msgpack.encode({"format": other, "strategy": 5})
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
    sequencer, recorder, now_s, effects = Sequencer(strategy, 3, silence_s=5.0), Recorder(writer), 1000.0, []

    def take(event: Event, loss: float = nan) -> None:
        done = sequencer.receive(event, now_s)
        recorder.told(event, done, now_s, loss)
        effects.extend(done)

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
    for one in read_journal(path).decisions():
        effects += sequencer.receive(one.event, one.time_s)
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
    row_of = {(row.worker, row.number): row for row in rows if row.number}
    assert len(row_of) == sum(1 for row in rows if row.number)
    told = [one.event for one in read_journal(path).decisions()]
    sent = {(one.worker, one.number) for one in told if isinstance(one, Pushed)}
    assert sent <= row_of.keys()
    for effect in effects:
        for member in effect.members if isinstance(effect, Fold) else ():
            row = row_of[member.worker, member.number]
            assert (row.what, row.version) == ("folded", effect.version)
            assert (row.computed_from, row.staleness) == (effect.version - 1 - member.staleness, member.staleness)
            assert (row.share, row.loss is None) == (member.share, False)
            assert row.held_s == 0 or any(phase.gather != Each() for phase in strategy.phases)
        if isinstance(effect, Discard):
            row = row_of[effect.worker, effect.number]
            assert row.what == f"discarded: {effect.verdict.name.lower().replace('_', ' ')}"


def test_a_duplicate_leaves_the_first_contributions_row_unchanged() -> None:
    first, duplicate = Decision(1.0, pushed(0, 1), loss=0.5), Discard(0, 1, 1, Verdict.DUPLICATE, 0)
    again = Decision(2.0, pushed(0, 1), (duplicate,), loss=0.25)
    fold = Fold(1, (member(0, 1),), 1.0)
    waiting = list(story([first, again, Decision(2.0, Ticked(), (fold,), (0,))]))
    assert [(row.what, row.loss) for row in waiting] == [("discarded: duplicate", 0.5), ("folded", 0.5)]
    assert waiting[1].held_s == 1.0
    late = list(story([msgspec.structs.replace(first, effects=(fold,)), again]))
    assert [(row.what, row.loss) for row in late] == [("folded", 0.5), ("discarded: duplicate", 0.25)]


@pytest.mark.parametrize("pause_s", [90.0, -8.0], ids=["the same clock", "a machine that was started anew"])
def test_the_story_does_not_count_the_pause_of_a_resumed_run(pause_s: float) -> None:
    records = [
        Decision(10.0, Joined(0, 1)),
        Decision(12.0, Joined(1, 1)),
        Resumed(12.0 + pause_s, 0),
        Decision(15.0 + pause_s, Joined(0, 2)),
    ]
    assert [row.time_s for row in story(records)] == [0.0, 2.0, 2.0, 5.0]


def test_the_story_uses_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    writer = JournalWriter(path, RUN)
    for number in range(1, 5001):
        writer.keep(folded(number / 1000, 0, number, number))
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
        stale = 12 if worker and number % 10 == 0 else 1
        writer.keep(folded(version / 10, worker, number, version, stale))
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
     0.500         1      0        1         0     0  1.000          1  folded
     1.000         2      1        1         0     1  1.000        0.5  folded
     1.500         2      1        2         2     0                    discarded: not finite
     1.500         2      1                                             dropped a step at look 2, 3 batches with it
     1.750         7      0                                             folded 5 in place
     2.000         7      1                                             worker 1 went quiet
     2.000         7      1                                             evicted: silent for 12.5 s
     2.000         7      1                                             died or was stopped
     3.000         7                                                    ended, weights 00ff
"""
GOLDEN = """
89706c6573696f0aca0000008807fd79018da6666f726d61740da87374726174656779a96173796e635f736764a66669656c647382a56576
65727981a5737465707301a6676174686572a465616368a7776f726b65727302a47365656407a8737465616c696e67c3a973696c656e6365
5f73cb4072c00000000000a77468726561647301a876657273696f6e7382a6707974686f6ea6332e31312e37a5746f726368a6322e31332e
30ae6370755f6361706162696c697479a441565832a6736372697074a0aa747261696e5f68617368a23066a5746f7263688015000000185e
db7a96a144cb405900000000000094a14a0001c09090c015000000d8f00c0196a144cb405900000000000094a14a0101c09090c019000000
0475e40896a144cb405910000000000098a144000100080200c29090c016000000f56781b696a144cb405918000000000095a157000101c2
9090c04c000000f172c8f196a144cb40592000000000009ba150000101011001c300c2c29195a14601919700010100cb3ff0000000000000
0110cb3ff0000000000000c091cf0000010000000000cb3ff00000000000004c0000006274999696a144cb40594000000000009ba1500101
01011001c300c2c29195a14602919701010101cb3ff00000000000000110cb3ff0000000000000c091cf0000020000000000cb3fe0000000
00000025000000f36cd32c96a144cb40596000000000009ba150010102011001c200c2c29197a14401010202001090c016000000553e6453
96a144cb405960000000000095a141010103029090c016000000c8c1520f96a144cb405970000000000095a152000105059090c021000000
93a6352c94a14ecb405980000000000001b3776f726b657220312077656e74207175696574200000001053673a96a144cb40598000000000
0091a1549194a1450101cb402900000000000090c016000000449f66cc96a144cb405980000000000095a14c0101c3c29090c0120000003a
28054594a145cb4059c0000000000007a430306666
"""
