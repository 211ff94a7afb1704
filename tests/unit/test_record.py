"""The record of a run for the live page: bounded, read whole however it is replaced, and never in training's way."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from plesio.observe import asked, record
from plesio.observe.record import LIVE, Record
from plesio.observe.standing import Standing, WorkerNow
from plesio.observe.summary import Incident
from plesio.observe.totals import Totals
from plesio.watch.runs import Tail, found, listed

HEAD = {"strategy": "async_sgd", "workers": 1}


def tell(to: Record, number: int, **values: float) -> None:
    worker = WorkerNow(0, "compute", float(number), number, float(number), 0.0, 0.0, 0)
    totals = Totals(version=number, steps=number, samples=number)
    to.at(float(number), totals, Standing((worker,), stale={0: {0: number}}), values)


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / LIVE).read_text().splitlines()]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RECENT", 10)
    monkeypatch.setattr(record, "OLD_MAX", 16)


@pytest.mark.usefixtures("small")
def test_a_record_is_bounded_and_keeps_the_last_of_each_metric(tmp_path: Path) -> None:
    to = Record(tmp_path, HEAD)
    tell(to, 0, accuracy=0.5)
    for number in range(1, 1000):
        tell(to, number, loss=1 / number)
    to.end("finished")
    lines = lines_of(tmp_path)
    told = [one for one in lines if one["kind"] == "at"]
    assert len(told) <= 16 + 2 * 10
    assert told[-1]["version"] == 999
    assert told[-1]["values"] == {"loss": 1 / 999}
    assert any("accuracy" in one["values"] for one in told)  # a dropped line's goes to the next
    assert [one["n"] for one in lines] == sorted(one["n"] for one in lines)
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("head", "end")


@pytest.mark.usefixtures("small")
def test_a_long_record_is_as_fine_at_its_beginning_as_in_its_middle(tmp_path: Path) -> None:
    to = Record(tmp_path, HEAD)
    for number in range(1, 2_000):
        tell(to, number)
    to.end("")
    times = [one["t"] for one in lines_of(tmp_path) if one["kind"] == "at"]
    assert times[0] == 1.0
    assert max(later - one for one, later in pairwise(times)) < 3 * 2_000 / 8  # 16 lines at most, thinned to 8


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("recent", [7, 10])
def test_no_value_of_a_metric_is_lost_by_thinning(tmp_path: Path, recent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RECENT", recent)  # one of them makes odd numbers of older lines
    to = Record(tmp_path, HEAD)
    for number in range(100):
        tell(to, number, **{f"metric_{number}": 1.0})
    to.end("")
    told = {name for one in lines_of(tmp_path) if one["kind"] == "at" for name in one["values"]}
    assert told == {f"metric_{number}" for number in range(100)}


@pytest.mark.usefixtures("small")
def test_a_full_disk_leaves_the_record_as_far_as_it_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    to = Record(tmp_path, HEAD)
    for number in range(19):
        tell(to, number)
    with pytest.warns(RuntimeWarning, match="No space left on device; the live page stands still, training goes on"):
        tell(to, 19)
    before = (tmp_path / LIVE).read_bytes()
    for number in range(20, 100):
        tell(to, number)
    assert (tmp_path / LIVE).read_bytes() == before
    assert len(lines_of(tmp_path)) > 20
    assert [one.name for one in tmp_path.iterdir()] == [LIVE]


def test_names_in_another_encoding_are_written_escaped(tmp_path: Path) -> None:
    to = Record(tmp_path, {**HEAD, "context": [["command", "train.py caf\udce9"]]})
    to.event(Incident(1.0, 0, "no file caf\udce9"))
    to.end("caf\udce9")
    head, event, end = lines_of(tmp_path)
    assert head["context"] == [["command", "train.py caf\\udce9"]]
    assert event["what"] == "no file caf\\udce9"
    assert end["why"] == "caf\\udce9"


@pytest.mark.usefixtures("small")
def test_of_advice_the_last_is_kept_when_the_file_is_replaced(tmp_path: Path) -> None:
    to = Record(tmp_path, HEAD)
    for number in range(500):
        tell(to, number)
        if number in (3, 4):
            to.advice(f"advice {number}")
    to.end("")
    assert [one["what"] for one in lines_of(tmp_path) if one["kind"] == "advice"] == ["advice 4"]


@pytest.mark.usefixtures("small")
def test_a_reader_sees_every_line_once_though_the_file_is_replaced(tmp_path: Path) -> None:
    to, tail = Record(tmp_path, HEAD), Tail(tmp_path)
    seen = [json.loads(line) for line in tail.lines()]
    for number in range(500):
        tell(to, number)
        seen += [json.loads(line) for line in tail.lines()]
    to.end("")
    assert [one["version"] for one in seen if one["kind"] == "at"] == list(range(500))
    numbers = [one["n"] for one in seen]
    assert numbers == sorted(set(numbers))


def test_half_a_line_is_read_when_it_is_whole_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    to, tail = Record(tmp_path, HEAD), Tail(tmp_path)
    with open(tmp_path / LIVE, "ab") as file:
        file.write(b'\xff\xfe no json\n{"n":7,"kind":"ev')
    assert [json.loads(line)["n"] for line in tail.lines()] == [1]
    with open(tmp_path / LIVE, "ab") as file:
        file.write(b'ent"}\n')
    assert [json.loads(line)["n"] for line in tail.lines()] == [7]
    to.end("finished")


def test_a_record_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    to = Record(tmp_path, HEAD)
    to._file.close()
    to._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.warns(RuntimeWarning, match="training goes on"):
        tell(to, 1)
    tell(to, 2)


def test_discards_are_events_that_are_told_now_and_then(tmp_path: Path) -> None:
    to = Record(tmp_path, HEAD)
    for second in range(8):
        to.at(float(second), Totals(discarded={"stale": second + 1}), Standing(), {})
    to.event(Incident(8.0, 1, "worker 1 died"))
    to.end("")
    what = [one["what"] for one in lines_of(tmp_path) if one["kind"] == "event"]
    assert what == [
        "contributions were discarded: 1 (stale)",
        "contributions were discarded: 5 (stale)",
        "worker 1 died",
    ]


def test_runs_are_found_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    for name in ("good", "ray/one"):
        (tmp_path / name).mkdir(parents=True)
        Record(tmp_path / name, HEAD).end("")
    for name, content in (("other", '{"n":1,"kind":"head","format":99,"strategy":"x"}\n'), ("half", '{"n":1,"ki')):
        (tmp_path / name).mkdir()
        (tmp_path / name / LIVE).write_text(content)
    (tmp_path / "nothing").mkdir()
    assert set(found(tmp_path)) == {"good", "ray/one", "other", "half"}
    why = {one.name: one.other for one in listed(tmp_path)}
    assert why["good"] == why["ray/one"] == ""
    assert "another version" in why["other"]
    assert "half-written" in why["half"]
    assert list(found(tmp_path / "good")) == ["good"]


def test_a_head_that_was_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LIVE).touch()
    assert "half-written" in listed(tmp_path)[0].other
    Record(tmp_path / "run", HEAD).end("")
    assert (listed(tmp_path)[0].strategy, listed(tmp_path)[0].other) == ("async_sgd", "")


def test_runs_that_are_no_text_do_not_hide_the_others(tmp_path: Path) -> None:
    for name, line in (("strategy", b'"strategy":"\xff"'), ("context", b'"context":"\xff"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / LIVE).write_bytes(b'{"n":1,"kind":"head","format":1,' + line + b"}\n")
    other = tmp_path / "caf\udce9"
    other.mkdir()
    Record(other, HEAD).end("")
    assert {one.name for one in listed(tmp_path)} == {"strategy", "context", "caf\\udce9"}
    assert Tail(tmp_path / "strategy").lines() == []
    assert len(Tail(tmp_path / "context").lines()) == 1


def test_the_run_that_began_last_is_listed_first_whoever_wrote_last(tmp_path: Path) -> None:
    records = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        records.append(Record(tmp_path / str(number), {**HEAD, "began": float(number)}))
    for one in reversed(records):
        one.end("")
    assert [one.name for one in listed(tmp_path)] == ["1", "0"]


def test_what_was_asked_is_taken_once(tmp_path: Path) -> None:
    asked.ask(tmp_path, "stop")
    assert asked.taken(tmp_path) == ["stop"]
    assert asked.taken(tmp_path) == []
