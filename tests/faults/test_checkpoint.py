"""Runs that are interrupted and resumed: real processes, killed for real."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from conformance.table import strategies
from plesio.cli.main import main
from plesio.core.events import Grant, Joined, Left, Pushed
from plesio.core.sequencer import Sequencer
from plesio.server.checkpointer import Checkpointer
from plesio.server.checkpoints import FOLDER, MANIFEST, WEIGHTS, WorkerProgress, latest
from plesio.server.keeping import Keeping
from plesio.strategy import Strategy
from support.long_forms import but_slow, but_thorough
from support.replayed import chancy, fills_the_disk

EACH_WAY = {"async_sgd", "first_of(2)", "elastic_averaging(every=3)"}
"""Without rounds, with rounds that call steps off, with copies of workers' own; sync_sgd and packed local steps have tests of
their own; the others are in simulated runs (tests/simulation/test_resume.py)."""
ON_THE_SERVER = but_thorough(strategies(at_server=True, real=True), {"async_sgd"}, EACH_WAY - {"async_sgd"})
OFTEN = ps.Checkpoint(every_s=0.1, keep=3)


def trained(strategy: Strategy, folder: Path, train: Any = chancy, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=4, runs=folder, timeout_s=60, **options)


pauses_take_no_virtual_time = pytest.mark.filterwarnings("ignore:the training function called time.sleep")


def undisturbed(strategy: Strategy, train: Any) -> ps.Run:
    """In virtual time, where bits are the same (simulation/test_virtual)."""
    return ps.run(train, strategy, workers=4, engine=ps.Simulated("uniform"))


def interrupted(strategy: Strategy, folder: Path, **settings: Any) -> tuple[Path, Any]:
    """The folder of a run whose server was killed in the middle, and its training function."""
    folder.mkdir()
    train = functools.partial(chancy, ends=folder, **settings)
    with pytest.raises(ps.ServerLostError, match=f"go on from the last checkpoint with resume='{folder}/[^/]+'"):
        trained(strategy, folder, train, checkpoint=OFTEN, durability="none")
    (path,) = (one for one in folder.iterdir() if one.is_dir())
    return path, train


def same(one: ps.Run, other: ps.Run) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


@pytest.mark.thorough
@pauses_take_no_virtual_time
@pytest.mark.parametrize("kind", but_slow(["sgd", "adam", "adafactor"], {"adafactor"}))
def test_a_resumed_sync_sgd_run_equals_the_uninterrupted_one_bit_for_bit(kind: str, tmp_path: Path) -> None:
    whole = undisturbed(ps.sync_sgd(), functools.partial(chancy, epochs=12, kind=kind))
    folder, train = interrupted(ps.sync_sgd(), tmp_path / "broken", epochs=12, kind=kind)
    at = latest(folder).manifest.version
    assert 0 < at < whole.version
    resumed = trained(ps.sync_sgd(), tmp_path / "resumed", train, resume=folder, checkpoint=OFTEN)
    assert resumed.version == whole.version
    assert same(whole, resumed)
    assert resumed.incidents[0].what.startswith(f"resumed at version {at} from ")
    assert re.search(r"\b(1 update|\d+ updates) undone$", resumed.incidents[0].what)


@pytest.mark.thorough
@pauses_take_no_virtual_time
@pytest.mark.parametrize("strategy", [ps.diloco(2, codec="int4"), ps.sync_sgd(codec="int4")], ids=lambda one: one.name)
def test_a_resumed_run_of_local_steps_equals_the_uninterrupted_one_bit_for_bit(
    strategy: Strategy, tmp_path: Path
) -> None:
    """What workers hold comes back: momenta, and what was left out of packed deltas."""
    whole = undisturbed(strategy, functools.partial(chancy, epochs=12))
    folder, train = interrupted(strategy, tmp_path / "broken", epochs=12)
    assert {one.name for one in latest(folder).path.glob("*.pt")} == {f"worker-{worker}.pt" for worker in range(4)}
    assert same(whole, trained(strategy, tmp_path / "resumed", train, resume=folder))


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ON_THE_SERVER, ids=lambda one: one.name)
def test_every_recipe_resumes_and_its_journal_replays(strategy: Strategy, tmp_path: Path) -> None:
    folder, train = interrupted(strategy, tmp_path / "broken", epochs=12)
    resumed = trained(strategy, tmp_path / "resumed", train, resume=folder)
    assert resumed.batches_unvisited == 0
    again = ps.replay(resumed.folder, train)
    assert str(again) == f"bit-identical: {resumed.version:,} versions, all computed again"
    assert same(resumed, ps.Run(resumed.summary, again.state_dict, None))


@pytest.mark.thorough
def test_a_stopped_run_resumes(tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=40)  # long enough to be stopped in the middle
    kept = ps.Checkpoint(tmp_path / "ck")
    first = trained(ps.async_sgd(), tmp_path / "a", train, checkpoint=kept, until=ps.Until(steps=20))
    second = trained(ps.async_sgd(), tmp_path / "b", train, resume=tmp_path / "ck")
    assert second.version > first.version
    assert second.batches_unvisited == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("of", "most"), [("steps", 1), pytest.param("samples", 6, marks=pytest.mark.slow)])
def test_until_counts_work_before_the_resume(of: str, most: int, tmp_path: Path) -> None:
    """Cancelled steps count on neither side. `most`: the largest amount in one step."""
    train = functools.partial(chancy, epochs=40)
    kept = ps.Checkpoint(tmp_path / "ck")
    first = trained(ps.first_of(2), tmp_path / "a", train, checkpoint=kept, until=ps.Until(**{of: 100 * most}))
    before = getattr(latest(tmp_path / "ck").manifest, of)
    assert (100 - 2 * 4) * most <= before <= getattr(first, of)
    until = before + 30 * most
    second = trained(ps.first_of(2), tmp_path / "b", train, resume=tmp_path / "ck", until=ps.Until(**{of: until}))
    assert second.ended == f"{until} {of} were up"
    assert 30 * most <= getattr(second, of) < before


def test_a_contribution_that_crosses_its_own_cancellation_is_counted_once() -> None:
    keeper = Checkpointer(Keeping(), ps.first_of(2), workers=2)
    keeper.came(0, 1, WorkerProgress(1, 1, 8))
    keeper.answered(0, 1)
    keeper.answered(0, 2)
    keeper.came(0, 2, WorkerProgress(1, 1, 8))
    assert keeper.taken == (2, 16)
    keeper.came(0, 3, WorkerProgress(1, 1, 4))
    keeper.answered(0, 3)
    assert keeper.taken == (3, 20)


def test_a_worker_that_comes_back_twice_goes_on_behind_all_that_was_answered() -> None:
    keeper = Checkpointer(Keeping(), ps.async_sgd(), workers=2)
    for times in (1, 2):
        keeper.came(1, 1, WorkerProgress(1, 3, 8, 2))
        keeper.answered(1, 1)
        keeper.came(1, 2, WorkerProgress(1, 3, 8, 2))  # and is not answered
        keeper.again(1)
        assert keeper.before == [WorkerProgress(), WorkerProgress(times, 3 * times, 8 * times, 2 * times)]


@pytest.mark.parametrize("strategy", [ps.first_of(2), ps.buffered(2), ps.rennala(2)], ids=lambda one: one.name)
def test_pending_contributions_are_not_in_the_checkpoints_work(strategy: Strategy) -> None:
    """Whether their worker waits or goes on. Folded work counts though its worker died."""
    keeper, sequencer = Checkpointer(Keeping(), strategy, workers=2), Sequencer(strategy, workers=2)
    for worker in (0, 1):
        sequencer.receive(Joined(worker, 1), 0.0)
    keeper.came(0, 1, WorkerProgress(1, 3, 8))
    for effect in sequencer.receive(Pushed(0, 1, 1, steps=3, samples=8, batches=0), 0.0):
        if isinstance(effect, Grant):
            keeper.answered(0, 1)
    assert keeper.done(sequencer) == (0, 0)
    sequencer.receive(Left(0, 1, died=True), 0.0)
    keeper.came(1, 1, WorkerProgress(1, 1, 2))
    sequencer.receive(Pushed(1, 1, 1, steps=1, samples=2, batches=0), 0.0)
    assert sequencer.version == 1
    assert keeper.done(sequencer) == (4, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [ps.buffered(7), ps.rennala(7)], ids=lambda one: one.name)
def test_buffered_contributions_count_once_over_a_resume(strategy: Strategy, tmp_path: Path) -> None:
    """64 batches and one worker make 64 steps, wherever the run was stopped."""
    paced = ps.Pace(step_s=0.05)  # so that it is stopped before the 21st
    first = ps.run(
        chancy, strategy, workers=1, runs=tmp_path / "a", checkpoint=OFTEN, until=ps.Until(steps=18), pace=paced
    )
    manifest = latest(first.folder or tmp_path).manifest
    assert (manifest.steps, manifest.samples) == (7 * manifest.version, 6 * 7 * manifest.version)
    assert 18 <= first.steps != manifest.steps
    second = ps.run(chancy, strategy, workers=1, runs=tmp_path / "b", resume=first.folder)
    assert manifest.steps + second.steps == 64


@pytest.mark.thorough
def test_a_changed_training_function_warns_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on with the new function; no replay can run both."""
    first = trained(ps.sync_sgd(), tmp_path / "a", checkpoint=OFTEN, until=ps.Until(steps=12))
    at = latest(first.folder or tmp_path).manifest.version
    monkeypatch.setattr("plesio.launch.resume.train_hash", lambda train: "another")
    words = rf"resumed from .*{FOLDER}.*the training function, .* has changed .* plesio replay .* up to version {at} it needs"
    with pytest.warns(RuntimeWarning, match=words):
        second = trained(ps.sync_sgd(), tmp_path / "b", resume=first.folder)
    assert second.batches_unvisited == 0


def test_weights_are_plain_safetensors_and_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = trained(ps.async_sgd(), tmp_path, checkpoint=OFTEN)
    assert run.folder is not None
    kept = sorted((run.folder / FOLDER).iterdir())
    assert 1 <= len(kept) <= 3
    weights = load_file(kept[-1] / WEIGHTS)
    assert all(torch.equal(value, run.state_dict[name]) for name, value in weights.items())
    assert weights.keys() == run.state_dict.keys()


@pytest.mark.thorough
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path, functools.partial(chancy, epochs=12), checkpoint=OFTEN)
    assert run.folder is not None
    older, newer = sorted((run.folder / FOLDER).iterdir())[-2:]
    data = bytearray((newer / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (newer / WEIGHTS).write_bytes(data)
    assert latest(run.folder).path == older
    (older / MANIFEST).write_text((older / MANIFEST).read_text().replace('"workers"', '"Workers"'))
    for path in (run.folder / FOLDER).iterdir():
        if path not in (older, newer):
            shutil.rmtree(path)
    with pytest.raises(
        ps.CheckpointError, match=r"manifest\.json is damaged.*safetensors is damaged|safetensors is damaged"
    ):
        trained(ps.async_sgd(), tmp_path, resume=run.folder)


@pytest.mark.thorough
def test_resume_of_another_run_is_refused(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path, checkpoint=OFTEN)
    with pytest.raises(ps.CheckpointError, match="seed=0, this one has seed=5"):
        trained(ps.async_sgd(), tmp_path, resume=run.folder, seed=5)
    from support.loops import endless

    changed = pytest.warns(RuntimeWarning, match="the training function, .* has changed since")
    with changed, pytest.raises(ps.CheckpointError, match=r"is of another model: it has .* got "):
        trained(ps.async_sgd(), tmp_path, endless, resume=run.folder)


@pytest.mark.thorough
def test_an_invalid_resume_folder_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """The error comes before anything is started."""
    run = trained(ps.async_sgd(), tmp_path / "runs", checkpoint=OFTEN)
    without = trained(ps.async_sgd(), tmp_path / "runs")
    empty, file = tmp_path / "empty", tmp_path / "runs" / "file"
    empty.mkdir()
    file.touch()
    wrong = {
        tmp_path / "runs" / "nosuch": "there is no such folder; give ",
        tmp_path / "runs": "there is no checkpoint in it; give ",
        without.folder: "there is no checkpoint in it; give ",
        file: "there is no checkpoint in it; give ",
        empty: r"there is no checkpoint in it; give the folder of a run that kept .*--checkpoint-every-s 60$",
    }
    for place, words in wrong.items():
        with pytest.raises(ps.CheckpointError, match=f"^resume='{place}': {words}"):
            trained(ps.async_sgd(), tmp_path / "none", resume=place)
    with pytest.raises(ps.ConfigurationError, match="under hogwild workers fold without one"):
        trained(ps.hogwild(), tmp_path / "none", resume=run.folder)
    assert not (tmp_path / "none").exists()


def test_checkpoints_without_a_server_or_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.ConfigurationError, match="need a server, and under hogwild"):
        trained(ps.hogwild(), tmp_path, checkpoint=OFTEN)
    with pytest.raises(ps.ConfigurationError, match="give runs="):
        ps.run(chancy, ps.sync_sgd(), workers=2, checkpoint=OFTEN)


def test_a_full_disk_is_reported_once_and_training_goes_on(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path / "runs", fills_the_disk, checkpoint=ps.Checkpoint(every_s=0.02))
    assert run.version > 0
    told = [one.what for one in run.incidents if one.what.startswith("the checkpoint ")]
    assert len(told) == 1, "once, though it was tried again and again"
    assert "cannot be written" in told[0]
    assert run.folder is not None
    assert json.loads((run.folder / "summary.json").read_text())["version"] == run.version


@pytest.mark.thorough
def test_run_resumes_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("from support.replayed import chancy as train\n")
    common = ["run", str(script), "--workers", "2", "--strategy", "sync_sgd"]
    assert main([*common, "--runs", str(tmp_path / "a"), "--checkpoint-every-s", "0.1"]) == 0
    (folder,) = (tmp_path / "a").iterdir()
    assert main([*common, "--runs", str(tmp_path / "b"), "--resume", str(folder)]) == 0
    assert "resumed at version 32 from" in capsys.readouterr().out.replace("\n", " ")
    assert main([*common, "--resume", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder; give the folder of a run that kept checkpoints" in capsys.readouterr().err
