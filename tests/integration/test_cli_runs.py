"""`plesio runs`: run folders are listed, compared, tagged and pruned."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
import tomli_w

from plesio.cli.main import main
from plesio.observe.history import history, kept, to_prune
from plesio.observe.record import Record
from plesio.observe.summary import Evaluation, Summary
from plesio.observe.totals import Staleness, WorkerSummary
from support.typed import said


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def run_folder(name: str, strategy: str = "async_sgd", accuracy: float = 0.9, days: float = 0.0) -> Path:
    """A run's folder as runs leave it behind, so many days ago."""
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    settings = {"run": {"workers": 4, "train": "train of digits.py"}, "strategy": {"name": strategy}}
    (folder / "run.toml").write_text(tomli_w.dumps(settings))
    worker = WorkerSummary(0, 100, 100, 100, 0, compute_s=2.0, wait_s=0.0, exchange_s=0.0, speed=50.0)
    summary = Summary(
        strategy=strategy, recipe=strategy, workers=(worker,), wall_s=2.0, version=100, steps=100, samples=100,
        folded=100, discarded={}, bytes=0, staleness=Staleness(0.0, 0, 0, 0, {}),
        history=(Evaluation(1.0, 50, 50, {"accuracy": accuracy}),),
    )  # fmt: skip
    figures = {**msgspec.structs.asdict(summary), "steps_per_s": summary.steps_per_s, "ideal_share": 1.0}
    (folder / "summary.json").write_bytes(msgspec.json.encode(figures))
    then = time.time() - days * 86_400
    for file in folder.iterdir():
        os.utime(file, (then, then))
    return folder


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The names of the folders in the list."""
    assert main(["runs", "list", "--json", *options]) == 0
    return [Path(one["folder"]).name for one in json.loads(capsys.readouterr().out)]


def test_the_list_filters_and_sorts(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("1", accuracy=0.95)
    run_folder("2", "sync_sgd", 0.8)
    run_folder("3", accuracy=float("nan"))
    assert listed(capsys) == ["1", "2", "3"]
    assert listed(capsys, "--strategy", "async") == ["1", "3"]
    assert listed(capsys, "--sort", "accuracy") == ["3", "2", "1"]
    out = said(capsys, "runs")
    rows = [line.split() for line in out.splitlines()]
    assert ["2", "sync_sgd", "4", "2.00", "s", "50", "100%", "0.8000", "finished"] in rows
    assert "known here: changed, time, speed, accuracy" in said(capsys, "runs", "list", "--sort", "f1", code=2)
    assert "nowhere: No such file or directory" in said(capsys, "runs", "list", "--runs", "nowhere", code=2)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("summary.json", None, "under way, or cut short"),
        ("summary.json", '{"strategy": "as', "summary.json cannot be read"),
        ("summary.json", '{"version": "of another time"}', "summary.json cannot be read"),
        ("run.toml", "[run", "run.toml cannot be read"),
    ],
)
def test_half_written_folders_are_listed_with_what_is_wrong(
    file: str, text: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder("1")
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    assert kept(folder).why.startswith(why)
    assert "async_sgd" in said(capsys, "runs", "list")


def test_tags_and_notes_are_kept_and_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run_folder("1"))
    run_folder("2")
    assert main(["runs", "tag", folder, "base", "good", "--note", "[bold]lr .1"]) == 0
    assert capsys.readouterr().out == "#base #good; [bold]lr .1\n"
    assert main(["runs", "tag", folder, "--drop", "good"]) == 0
    assert listed(capsys.readouterr() and capsys, "--tag", "base") == ["1"]
    assert "finished; #base; [bold]lr .1" in said(capsys, "runs")
    assert "runs is no run folder: it has no run.toml" in said(capsys, "runs", "tag", "runs", "x", code=2)


def test_runs_are_compared_with_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(run_folder("1")), str(run_folder("2", "sync_sgd")), str(run_folder("3", "sync_sgd", 0.5))]
    out = said(capsys, "runs", "compare", *folders, "--until", "accuracy=0.9", "--report", "report.html")
    assert "sync_sgd 3" in out
    assert (
        "async_sgd, sync_sgd 2 and sync_sgd 3 tie: they reached accuracy 0.9 in 1.00, 1.00 and more than 2.00 s" in out
    )
    assert "sync_sgd 2" in Path("report.html").read_text()
    capsys.readouterr()
    assert main(["runs", "compare", "1", "2"]) == 0  # names, as the list has them
    assert "50.0 and 50.0 steps a second" in capsys.readouterr().out
    for name in ("1", "2"):
        settings = {"run": {"train": "train", "until": {"accuracy": 0.9, "seconds": 9}}, "strategy": {"name": "x"}}
        Path("runs", name, "run.toml").write_text(tomli_w.dumps(settings))
    assert main(["runs", "compare", "1", "2"]) == 0  # by what both were to reach
    assert "tie: they reached accuracy 0.9" in capsys.readouterr().out
    assert main(["runs", "compare", "runs"]) == 2
    assert "such as accuracy=0.95" in said(capsys, "runs", "compare", folders[0], "--until", "accuracy", code=2)


def test_what_is_pruned_has_no_tag_and_is_not_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        run_folder(str(number), days=10 - number)
    assert main(["runs", "tag", "runs/1", "keep"]) == 0
    Path("runs/2/summary.json").unlink()
    os.utime("runs/2/run.toml")
    found = history(Path("runs"))
    assert [one.folder.name for one in to_prune(found, keep=2, older_days=None)] == ["0", "3"]
    assert [one.folder.name for one in to_prune(found, keep=None, older_days=6.5)] == ["0", "3"]
    assert [one.folder.name for one in to_prune(found, keep=None, older_days=9.0)] == ["0"]
    assert "would remove runs/0" in said(capsys, "runs", "prune", "--keep", "2")
    assert main(["runs", "prune", "--keep", "2", "--yes"]) == 0
    assert sorted(one.name for one in Path("runs").iterdir()) == ["1", "2", "4"]
    assert "--keep N or --older DAYS" in said(capsys, "runs", "prune", code=2)


@pytest.mark.thorough
def test_a_thousand_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(1000):
        run_folder(f"{number:04}")
    assert len(listed(capsys)) == 1000


def removable() -> list[str]:
    return [one.folder.name for one in to_prune(history(Path("runs")), keep=0, older_days=None)]


def test_a_run_that_writes_into_its_folder_is_under_way_however_old_it_is() -> None:
    for file in ("live.jsonl", "journal.bin", "checkpoints/checkpoint-1"):
        folder = run_folder(file.replace("/", "-"), days=3)
        (folder / "summary.json").unlink()
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    assert removable() == []


@pytest.mark.parametrize("text", ['tags = ["baseline"', "tags = 5", "note = 3", b"\xff".decode("latin1")])
def test_a_run_whose_notes_cannot_be_read_is_listed_and_kept(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder("1", days=3) / "notes.toml").write_text(text, encoding="latin1")
    assert listed(capsys) == ["1"]
    assert removable() == []
    assert "notes.toml cannot be read" in history(Path("runs"))[0].why


def test_notes_that_cannot_be_written_leave_the_old_ones(capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder("1")
    assert main(["runs", "tag", str(folder), "base"]) == 0
    (folder / "notes.toml.new").mkdir()  # in the way
    assert "notes.toml cannot be written" in said(capsys, "runs", "tag", str(folder), "more", code=2)
    assert kept(folder).tags == ("base",)


def test_a_tag_that_is_no_text_is_escaped() -> None:
    folder = run_folder("1")
    assert main(["runs", "tag", str(folder), "a\udcff"]) == 0
    assert kept(folder).tags == ("a\\udcff",)


def test_folders_of_others_and_links_are_not_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(("hello = [broken", "[tool]\nname = 'theirs'\n")):
        theirs = Path("runs", f"theirs-{number}")
        theirs.mkdir(parents=True)
        (theirs / "run.toml").write_text(text)
        os.utime(theirs / "run.toml", (0, 0))
    Path("runs/link").symlink_to(run_folder("1", days=3).resolve())
    assert removable() == ["1"]
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert sorted(one.name for one in Path("runs").iterdir()) == ["link", "theirs-0", "theirs-1"]
    capsys.readouterr()


def test_the_runs_that_changed_last_are_kept_whatever_their_names() -> None:
    run_folder("00-best", days=0)
    run_folder("zz-older", days=5)
    assert [one.folder.name for one in to_prune(history(Path("runs")), keep=1, older_days=None)] == ["zz-older"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "text", [b'{"history": 5}', b'{"history": [{}]}', b'{"history": [{"metrics": []}]}', b"\xff\xfe"]
)
def test_figures_of_another_version_are_listed_and_cannot_be_compared(
    text: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder("1")
    (folder / "summary.json").write_bytes(text)
    assert listed(capsys) == ["1"]
    assert "is not the summary of a run" in said(capsys, "runs", "compare", str(folder), code=2)


def test_a_failed_run_is_listed_as_failed(tmp_path: Path) -> None:
    folder = run_folder("1")
    (folder / "summary.json").unlink()
    record = Record(folder, {})
    record.end("the server process died", failed=True)
    assert kept(folder).ended == "failed: the server process died"


def test_the_folder_can_be_named_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("1").rename("elsewhere")
    Path("others").mkdir()
    Path("elsewhere").rename("others/one")
    assert "one" in said(capsys, "runs", "--runs", "others")
    assert "one" in said(capsys, "runs", "--runs", "others", "list")
    assert "compare takes run folders; leave --runs out" in said(
        capsys, "runs", "--runs", "others", "compare", "others/one", code=2
    )
