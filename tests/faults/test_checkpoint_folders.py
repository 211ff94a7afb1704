"""Folders of checkpoints that hold something already: another run's, damaged ones, what a killed server left."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

import plesio as ps
from plesio.core.sequencer import Sequencer
from plesio.launch.resume import behind
from plesio.protocol.journal import read_journal
from plesio.server.checkpoints import (
    FOLDER,
    FORMAT,
    MANIFEST,
    PREFIX,
    STATE,
    WEIGHTS,
    CheckpointStore,
    Manifest,
    check_free,
    latest,
    read,
)
from plesio.strategy import Strategy
from support import loops
from support.long_forms import but_thorough
from support.replayed import chancy

LONG = functools.partial(chancy, epochs=40)
OFTEN = 0.03
CUT = ps.Until(steps=60)


def trained(
    folder: Path, train: Callable[..., object] = LONG, strategy: Strategy | None = None, **options: Any
) -> ps.Run:
    """A run in lock step that is stopped in the middle, unless `until` says otherwise."""
    kept = {"until": CUT, **options}
    return ps.run(train, strategy or ps.sync_sgd(), workers=2, runs=folder / "runs", timeout_s=60, **kept)


def kept_in_run(run: ps.Run) -> Path:
    assert run.folder is not None
    return run.folder


def versions(folder: Path) -> list[int]:
    return sorted(int(one.name.removeprefix(PREFIX)) for one in folder.glob(f"{PREFIX}*"))


def at(folder: Path, version: int) -> Path:
    return folder / f"{PREFIX}{version:08d}"


def damage(path: Path) -> None:
    data = bytearray((path / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (path / WEIGHTS).write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def put(store: CheckpointStore, version: int, value: float = 0.0) -> Path:
    """Write a checkpoint of that version with that weight."""
    order = Sequencer(ps.sync_sgd(), 2).state()
    manifest = Manifest(
        version=version, strategy="sync_sgd", fields={}, workers=2, seed=0, train_hash="", layout=(), order=order,
        numbers={}, progress=(),
    )  # fmt: skip
    return store.save(manifest, {"w": torch.full((3,), value)}, {})


KEEP, EVERY_S = "keep must be a whole number of at least 1", "every_s must be a number of seconds above 0"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *(({"keep": keep}, KEEP) for keep in (0, -1, True, 1.5, "2")),
        *(({"every_s": every_s}, EVERY_S) for every_s in (0, -1.0, float("nan"), "60")),
    ],
)
def test_options_that_cannot_be_are_refused(option: dict[str, Any], words: str) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ps.ConfigurationError, match=rf"^Checkpoint\({name}={value!r}\): {words}$"):
        ps.Checkpoint(**option)


# Another run's


def test_a_folder_with_another_runs_checkpoints_is_refused(tmp_path: Path) -> None:
    """The error comes before anything is started; the folder is unchanged."""
    folder = tmp_path / "ck"
    trained(tmp_path, checkpoint=ps.Checkpoint(folder))
    (version,) = versions(folder)
    before = contents(folder)
    words = (
        rf"^Checkpoint\(folder='{folder}'\): there are checkpoints in it of another run, the newest of version "
        rf"{version}, written 20..-..-.. ..:..:..; give another folder, go on from them with resume='{folder}', or"
    )
    with pytest.raises(ps.CheckpointError, match=words):
        trained(tmp_path / "other", checkpoint=ps.Checkpoint(folder))
    assert contents(folder) == before
    assert not (tmp_path / "other").exists()


@pytest.mark.thorough
def test_a_folder_is_refused_unless_resumed_from_its_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    trained(tmp_path, checkpoint=ps.Checkpoint(folder, every_s=OFTEN, keep=3))
    other = trained(tmp_path, checkpoint=ps.Checkpoint())
    older = at(folder, versions(folder)[-2])
    before = contents(folder)
    for place in (kept_in_run(other), older):
        with pytest.raises(
            ps.CheckpointError, match=r"in it that this run, resumed from .*, does not go on from, the new"
        ):
            trained(tmp_path, resume=place, checkpoint=ps.Checkpoint(folder))
    assert contents(folder) == before


@pytest.mark.thorough
def test_a_resumed_run_stopped_at_once_can_be_resumed(tmp_path: Path) -> None:
    """Its folder holds the version it started from."""
    first = trained(tmp_path, loops.endless, until=ps.Until(steps=4), checkpoint=ps.Checkpoint())
    slow = functools.partial(loops.endless, pause_s=1.0)
    second = trained(tmp_path, slow, until=ps.Until(seconds=0.1), checkpoint=ps.Checkpoint(), resume=first.folder)
    assert versions(kept_in_run(second) / FOLDER) == versions(kept_in_run(first) / FOLDER)
    third = trained(tmp_path, loops.endless, until=ps.Until(steps=100), resume=second.folder)
    assert third.version > second.version


def test_a_resumed_folder_is_recognised_through_links_and_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(CheckpointStore(tmp_path / "ck", keep=1), 1)
    (tmp_path / "link").symlink_to("ck")
    monkeypatch.chdir(tmp_path)
    names = [tmp_path / "ck", Path("ck"), Path("link")]
    for folder in names:
        for place in names:
            check_free(folder, latest(place))
    with pytest.raises(ps.CheckpointError, match="of another run"):
        check_free(Path("link"), None)


def test_a_file_as_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(
            ps.ConfigurationError, match=rf"Checkpoint\(folder='{place}'\) cannot be written: .*another folder"
        ):
            trained(tmp_path, checkpoint=ps.Checkpoint(place))
    assert not (tmp_path / "runs").exists()


# Damaged ones


@pytest.mark.thorough
def test_a_resumed_run_continues_in_a_folder_with_a_damaged_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    trained(tmp_path, checkpoint=ps.Checkpoint(folder, every_s=OFTEN, keep=3))
    *_, older, newest = versions(folder)
    damage(at(folder, newest))
    second = trained(tmp_path, resume=folder, checkpoint=ps.Checkpoint(folder, keep=1), until=None)
    said = second.incidents[0].what
    assert said.startswith(f"resumed at version {older} from {at(folder, older)}, passing over what is newer: ")
    assert f"{at(folder, newest) / WEIGHTS} is damaged; " in said
    assert versions(folder) == [second.version]
    weights = latest(folder).weights()
    assert all(torch.equal(weights[name], value) for name, value in second.state_dict.items())


def test_a_damaged_checkpoint_is_replaced_when_its_number_is_reached(tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path, keep=3)
    for version in (10, 20, 30):
        put(first, version)
    damage(at(tmp_path, 30))
    put(CheckpointStore(tmp_path, 2, resumed=at(tmp_path, 20)), 30, value=5.0)
    assert read(at(tmp_path, 30)).weights()["w"].tolist() == [5.0] * 3
    assert versions(tmp_path) == [20, 30]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("keep", "left"), [(1, [15]), (2, [10, 15]), (3, [5, 10, 15]), (4, [5, 10, 15, 30])])
def test_damaged_checkpoints_go_before_good_ones(keep: int, left: list[int], tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path, keep=9)
    for version in (5, 10, 20, 30):
        put(first, version)
    for version in (20, 30):
        damage(at(tmp_path, version))
    resumed = latest(tmp_path)
    assert resumed.manifest.version == 10
    assert [str(version) in what for version, what in zip((30, 20), resumed.passed, strict=True)] == [True, True]
    put(CheckpointStore(tmp_path, keep, resumed.path), 15)
    assert versions(tmp_path) == left
    assert latest(tmp_path).manifest.version == 15


def test_checkpoints_of_a_concurrent_run_are_neither_replaced_nor_deleted(tmp_path: Path) -> None:
    mine, other = CheckpointStore(tmp_path, keep=1), CheckpointStore(tmp_path, keep=1)
    put(mine, 1)
    put(other, 2, value=7.0)
    with pytest.raises(ps.CheckpointError, match=r"version-00000002 is there already: another run writes into"):
        put(mine, 2)
    put(mine, 3)
    assert versions(tmp_path) == [2, 3]
    assert read(at(tmp_path, 2)).weights()["w"].tolist() == [7.0] * 3


@pytest.mark.thorough
def test_a_deleted_run_folder_is_not_recreated_and_training_goes_on(tmp_path: Path) -> None:
    """A new folder would hold checkpoints without run.toml and journal."""

    def delete(live: Any) -> None:
        if live.steps > 10:
            shutil.rmtree(tmp_path, ignore_errors=True)

    train = functools.partial(loops.endless, pause_s=0.002)
    with pytest.warns(RuntimeWarning, match="the run folder .* cannot be written"):
        run = ps.run(
            train, "async_sgd", workers=1, runs=tmp_path, watch=delete, checkpoint=ps.Checkpoint(every_s=0.02),
            until=ps.Until(steps=400),
        )  # fmt: skip
    assert run.steps >= 400
    assert not run.folder.exists()
    told = [one.what for one in run.incidents if one.what.startswith("the checkpoint ")]
    assert f"{run.folder.resolve()} is gone" in told[-1]
    put(CheckpointStore(tmp_path, keep=1), 1)
    with pytest.raises(ps.CheckpointError, match=r"cannot be written: .*gone is gone; put it back"):
        put(CheckpointStore(tmp_path / "gone" / FOLDER, keep=1), 1)


def test_temporary_folders_of_dead_servers_are_removed(tmp_path: Path) -> None:
    """Folders of living processes stay."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [tmp_path / f".{PREFIX}00000009.{gone.pid}", tmp_path / f".{PREFIX}00000009.damaged.{gone.pid}"]
    alive = tmp_path / f".{PREFIX}00000009.{os.getppid()}"
    for one in (*left, alive):
        one.mkdir()
        (one / WEIGHTS).touch()
    put(CheckpointStore(tmp_path, keep=1), 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([alive.name, at(tmp_path, 1).name])


def test_temporary_folders_with_the_servers_own_pid_are_removed(tmp_path: Path) -> None:
    """Containers reuse pids. Folders with other names stay."""
    mine, others = (tmp_path / f".{PREFIX}00000001.{end}" for end in (os.getpid(), "kept"))
    for one in (mine, others):
        one.mkdir()
        (one / WEIGHTS).touch()
    put(CheckpointStore(tmp_path, keep=1), 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([others.name, at(tmp_path, 1).name])


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a checkpoint's manifest and give it the checksum that fits."""
    data = json.loads((path / MANIFEST).read_bytes().rstrip(b"\n").rpartition(b"\n")[0])
    change(data)
    body = json.dumps(data).encode()
    (path / MANIFEST).write_bytes(body + b"\n" + xxh3_64_hexdigest(body).encode() + b"\n")


@pytest.mark.parametrize(
    "files",
    [{}, {WEIGHTS: "0"}, {WEIGHTS: "0", STATE: "0", "../secret": "0"}, {WEIGHTS: "0", STATE: "0", "worker-x.pt": "0"}],
)
def test_a_manifest_names_the_two_files_and_those_of_workers(files: dict[str, str], tmp_path: Path) -> None:
    path = put(CheckpointStore(tmp_path, keep=1), 1)
    rewrite(path, lambda data: data.update(files=files))
    with pytest.raises(ps.CheckpointError, match=r"it must name .* and beside them only workers' files"):
        read(path)


def test_a_foreign_file_that_is_there_while_a_checkpoint_is_written_spoils_none(tmp_path: Path) -> None:
    store, manifest = CheckpointStore(tmp_path, keep=1), read(put(CheckpointStore(tmp_path, keep=1), 1)).manifest
    path = store.save(replace(manifest, version=2), {}, {}, write_rows=lambda folder, *_: (folder / ".nfs0001").touch())
    assert read(path).manifest.files.keys() == {WEIGHTS, STATE}


def test_all_files_of_a_checkpoint_have_the_same_mode(tmp_path: Path) -> None:
    path = put(CheckpointStore(tmp_path, keep=1), 1)
    (tmp_path / "plain").touch()
    assert {one.stat().st_mode for one in path.iterdir()} == {(tmp_path / "plain").stat().st_mode}


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no numbers of the optimizer": lambda data: data["numbers"]["optimizer"].clear(),
    "no schedules": lambda data: data["attachments"].clear(),
    "a part of the data that is not there": lambda data: data["order"]["leases"].clear(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", but_thorough(MALFORMED, {"no schedules"}))
def test_a_malformed_checkpoint_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    first = trained(tmp_path, checkpoint=ps.Checkpoint())
    rewrite(latest(kept_in_run(first)).path, MALFORMED[what])
    with pytest.raises(ps.CheckpointError) as caught:
        trained(tmp_path, resume=kept_in_run(first))
    assert "\n" not in str(caught.value)
    assert "resume=" not in str(caught.value), "it must not be recommended to resume from it"


def test_a_checkpoint_of_another_format_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = put(CheckpointStore(tmp_path / FOLDER, keep=1), 1)
    manifest = (path / MANIFEST).read_bytes().rstrip(b"\n").rpartition(b"\n")[0]
    older = manifest.replace(b'"format": %d' % FORMAT, b'"format": 3')
    assert older != manifest
    (path / MANIFEST).write_bytes(older + b"\n" + xxh3_64_hexdigest(older).encode() + b"\n")
    words = rf"has format 3, this plesio reads {FORMAT}; use the other plesio, or begin a new run and load .*{WEIGHTS}"
    with pytest.raises(ps.CheckpointError, match=words):
        trained(tmp_path, resume=tmp_path)


# Another optimizer

NAMES = {"sgd": r"torch\.optim\.sgd\.SGD", "adam": r"torch\.optim\.adamw\.AdamW", "plain": r"torch\.optim\.sgd\.SGD"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("was", "now", "strategy"),
    [
        ("sgd", "adam", ps.sync_sgd()),
        ("plain", "sgd", ps.async_sgd()),  # async_sgd looks ahead only where there is momentum
        pytest.param("adam", "sgd", ps.async_sgd(), marks=pytest.mark.thorough),
        pytest.param("sgd", "plain", ps.async_sgd(), marks=pytest.mark.thorough),
    ],
)
def test_an_optimizer_of_another_kind_or_folded_otherwise_is_refused(
    was: str, now: str, strategy: Strategy, tmp_path: Path
) -> None:
    first = trained(tmp_path, functools.partial(LONG, kind=was), strategy, checkpoint=ps.Checkpoint())
    how = r" \(optimizer.*\)" if "plain" in (was, now) else ""
    words = rf"state of {NAMES[was]}{how}, and this run prepared {NAMES[now]}{' .opt' if how else '; prepare'}"
    with pytest.raises(ps.CheckpointError, match=words):
        trained(tmp_path, functools.partial(LONG, kind=now), strategy, resume=kept_in_run(first))


# A damaged journal


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        pytest.param(
            lambda whole: os.urandom(3000), r"is not known: .*journal\.bin is no journal", marks=pytest.mark.thorough
        ),
        pytest.param(lambda whole: b"", r"is not known: the journal .* is empty", marks=pytest.mark.slow),
        (
            lambda whole: whole[:-400],
            r"is not known: the journal .* does not reach the checkpoint, which is at byte \d+",
        ),
    ],
    ids=["garbage", "empty", "cut"],
)
def test_a_damaged_old_journal_warns_and_the_run_resumes(
    damaged: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    first = kept_in_run(trained(tmp_path, checkpoint=ps.Checkpoint()))
    position = latest(first).manifest.position
    journal = first / "journal.bin"
    journal.write_bytes(damaged(journal.read_bytes()[:position]))
    with pytest.warns(
        RuntimeWarning, match=rf"^resumed from {first}/{FOLDER}/.*; how many later updates are undone {words}"
    ):
        second = trained(tmp_path, resume=first, until=ps.Until(steps=100))
    assert "is not known: " in second.incidents[0].what
    assert "undone is not known" in second.incidents[0].what
    assert "0 updates" not in second.incidents[0].what
    assert read_journal(kept_in_run(second)).missing is None


@pytest.mark.thorough
def test_the_old_journal_gives_the_number_of_undone_updates(tmp_path: Path) -> None:
    first = trained(tmp_path, checkpoint=ps.Checkpoint(every_s=OFTEN, keep=9))
    folder = kept_in_run(first)
    *_, older, newest = versions(folder / FOLDER)
    shutil.rmtree(at(folder / FOLDER, newest))
    second = trained(tmp_path, resume=folder, until=ps.Until(steps=100))
    got = first.version
    assert newest <= got
    undone = "1 update undone" if got - older == 1 else f"{got - older} updates undone"
    assert f"the run had got to version {got}: {undone}" in second.incidents[0].what
    assert "passing over" not in second.incidents[0].what


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [True, False], ids=["deleted", "never kept"])
def test_without_the_old_journal_undone_updates_are_unknown(kept: bool, tmp_path: Path) -> None:
    """The journal notes it; there is no warning."""
    checkpoint = ps.Checkpoint(tmp_path / "ck")
    first = ps.run(
        LONG, "sync_sgd", workers=2, until=CUT, runs=tmp_path / "first" if kept else None, checkpoint=checkpoint,
        timeout_s=60,
    )  # fmt: skip
    if kept:
        (kept_in_run(first) / "journal.bin").unlink()
    second = trained(tmp_path, resume=tmp_path / "ck", until=ps.Until(steps=100))
    said = second.incidents[0].what
    assert said.endswith("; how many later updates are undone is not known: there is no journal")
    assert read_journal(kept_in_run(second)).missing is None


def test_a_checkpoint_deleted_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A run that still goes on deletes its older checkpoints."""
    path = put(CheckpointStore(tmp_path, keep=1), 1)
    (path / WEIGHTS).unlink()
    with pytest.raises(ps.CheckpointError, match=r"safetensors is not there; if the run .* still goes on"):
        read(path)


def test_the_latest_checkpoint_is_the_one_of_the_greatest_number(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for version in (99_999_000, 100_000_500):
        put(store, version)
    assert latest(tmp_path).manifest.version == 100_000_500


def test_an_interrupted_run_says_what_it_lacks_and_how_far_its_checkpoint_is_behind(tmp_path: Path) -> None:
    path = put(CheckpointStore(tmp_path / "checkpoints", keep=2), 260)
    assert [behind(one, 600, 2) for one in (tmp_path, tmp_path / "checkpoints", path, None)] == [340, 340, 340, 0]
    assert behind(path, 262, 2) == 0, "what two workers had under way at the stop"
    assert behind(shutil.copytree(path, tmp_path / "best"), 600, 2) == 0, "its name does not tell"
    run = SimpleNamespace(summary=SimpleNamespace(version=600), lacking=["weights.safetensors", "summary.json"])
    assert str(ps.RunInterrupted(run, Path("runs/a"), Path("runs/a"), behind=340)) == (
        "interrupted at version 600; written to runs/a, without weights.safetensors, summary.json; "
        "go on with resume='runs/a'; the newest checkpoint there is of version 260, 340 behind"
    )


def test_a_users_copy_of_a_checkpoint_is_kept(tmp_path: Path) -> None:
    first = put(CheckpointStore(tmp_path, keep=1), 100)
    copy = shutil.copytree(first, tmp_path / f"{first.name}.backup")
    store = CheckpointStore(tmp_path, keep=1, resumed=first)
    put(store, 200)
    put(store, 300)
    assert sorted(tmp_path.iterdir()) == [copy, at(tmp_path, 300)]
