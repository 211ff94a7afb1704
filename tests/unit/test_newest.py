"""resume="newest": which run a command that is started again goes on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.config import RunConfig
from plesio.launch.newest import newest
from plesio.observe.folders import hold
from plesio.observe.history import CONFIGURATION
from plesio.observe.record import LIVE
from plesio.observe.summary import ALL_LEFT
from support import loops
from support.runs import same

ENGINE = ps.Simulated("uniform")


def config(runs: Path, **others: Any) -> RunConfig:
    given = {"strategy": "sync_sgd", "workers": 2, "checkpoint": ps.Checkpoint(), "resume": "newest", **others}
    return RunConfig(runs=runs, **given)


KEEPS = ps.Checkpoint()


def left(
    runs: Path,
    name: str,
    end: str = "",
    checkpoint: bool = True,
    train: str = "follow of loops.py",
    keeps: ps.Checkpoint = KEEPS,
    **others: Any,
) -> Path:
    """A run folder, newer than those before; `end`: the last line of its record; `others`: settings of its run."""
    folder = runs / name
    (folder / "checkpoints" / "version-00000005" if checkpoint else folder).mkdir(parents=True)
    document = config(runs, checkpoint=keeps, **{"resume": None, **others}).as_document()
    document["run"]["train"] = train
    document["surroundings"] = {"process": "7 of node1"}
    (folder / CONFIGURATION).write_text(tomli_w.dumps(document))
    now_ns = len(list(runs.iterdir())) * 10**9
    os.utime(folder / CONFIGURATION, ns=(now_ns, now_ns))
    if end:
        (folder / LIVE).write_text(f'{{"kind":"head"}}\n{end}\n')
    return folder


FINISHED = '{"n":9,"kind":"end","why":"20 steps were up","failed":false}'
INTERRUPTED = '{"n":9,"kind":"end","why":"interrupted","failed":false}'
FAILED = '{"n":9,"kind":"end","why":"finished, without report.html","failed":true}'
UNDER_WAY = '{"n":9,"kind":"at","t":1.0}'


@pytest.mark.parametrize(
    ("earlier", "does"),
    [
        pytest.param([], "begins", id="there is none"),
        pytest.param([{"end": UNDER_WAY}], "a", id="killed"),
        pytest.param([{"end": INTERRUPTED}], "a", id="interrupted"),
        pytest.param([{"end": INTERRUPTED.replace("interrupted", ALL_LEFT)}], "a", id="all workers left"),
        pytest.param([{"end": FAILED}], "a", id="failed, or could not be written"),
        pytest.param([{"end": FINISHED}], "a has finished", id="finished"),
        pytest.param([{}, {}], "b", id="the newer of two"),
        pytest.param([{}, {"checkpoint": False}], "a", id="passes over one without a checkpoint"),
        pytest.param([{"checkpoint": False}, {"checkpoint": False}], "begins", id="none has a checkpoint"),
        pytest.param([{"end": FINISHED}, {"checkpoint": False}], "begins", id="began anew after one that finished"),
        pytest.param([{}, {"end": FINISHED}], "b has finished", id="went on and finished"),
        pytest.param([{}, {"strategy": "async_sgd"}], "a", id="another strategy"),
        pytest.param([{}, {"train": "other of loops.py"}], "a", id="another function"),
        pytest.param([{}, {"engine": ENGINE}], "a", id="a simulated one"),
    ],
)
def test_what_a_command_does_that_is_started_again(earlier: list[dict[str, Any]], does: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, one in zip("abc", earlier, strict=False):
        left(runs, name, **one)
    found = newest(config(runs), loops.follow)
    done = f"{found.finished.name} has finished" if found.finished else None
    assert (done or (found.place and found.place.name) or "begins") == does
    assert (found.held is None) == (found.place is None)
    if found.held is not None:
        found.held.close()


def test_a_run_without_a_checkpoint_of_its_own_leads_to_where_it_went_on_from(tmp_path: Path) -> None:
    before = left(tmp_path / "elsewhere", "a")
    left(tmp_path / "runs", "b", checkpoint=False, resume=before)
    kept = left(tmp_path / "runs", "c", checkpoint=False)
    with (found := newest(config(tmp_path / "runs"), loops.follow)).held:  # type: ignore[union-attr]
        assert found.place == before
        assert f"({kept}: passed over, without a checkpoint)" in found.words


def test_checkpoints_in_a_folder_of_their_own_are_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "ck" / "version-00000005").mkdir(parents=True)
    left(tmp_path / "runs", "a", checkpoint=False, keeps=ps.Checkpoint(tmp_path / "ck"))
    with (found := newest(config(tmp_path / "runs"), loops.follow)).held:  # type: ignore[union-attr]
        assert found.place == tmp_path / "ck"


def test_a_run_that_is_alive_is_refused_by_name(tmp_path: Path) -> None:
    folder = left(tmp_path, "a")
    with open(folder / CONFIGURATION, "rb") as held:
        assert hold(held)
        with pytest.raises(ps.CheckpointError, match=rf"newest.*{folder} is alive: process 7 of node1 began it"):
            newest(config(tmp_path), loops.follow)
    newest(config(tmp_path), loops.follow).held.close()  # type: ignore[union-attr]


def test_one_of_two_commands_that_are_started_at_once_is_refused(tmp_path: Path) -> None:
    left(tmp_path, "a")
    with (first := newest(config(tmp_path), loops.follow)).held:  # type: ignore[union-attr]
        assert first.place is not None
        with pytest.raises(ps.CheckpointError, match="another is just going on with it"):
            newest(config(tmp_path), loops.follow)


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "one", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
}  # fmt: skip


def test_a_process_of_torchrun_ends_with_0_where_the_newest_run_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = left(tmp_path, "a", FINISHED, train="workers that joined")
    monkeypatch.delenv("PLESIO_JOIN", raising=False)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(SystemExit) as ended,
        ps.join("sync_sgd", runs=tmp_path, checkpoint=ps.Checkpoint(), resume="newest"),
    ):
        pytest.fail("it is no worker of any run")
    assert ended.value.code == 0
    assert capfd.readouterr().err == f"plesio: the newest run, {folder}, has finished: nothing is left to do\n"


HOLDS = "import sys; from plesio.observe.folders import hold; f = open(sys.argv[1]); print(hold(f), flush=True); sys.stdin.read()"


def test_a_process_that_is_killed_keeps_no_lock(tmp_path: Path) -> None:
    folder = left(tmp_path, "a")
    command = [sys.executable, "-c", HOLDS, str(folder / CONFIGURATION)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with pytest.raises(ps.CheckpointError, match="is alive"):
            newest(config(tmp_path), loops.follow)
        other.kill()
        other.wait()
    newest(config(tmp_path), loops.follow).held.close()  # type: ignore[union-attr]


def test_without_locks_it_goes_on_and_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left(tmp_path, "a")

    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(RuntimeWarning, match=r"cannot be locked \(Function not implemented\), so nobody can tell"):
        assert newest(config(tmp_path), loops.follow).place == folder


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"runs": None}, "resume='newest' is looked for in the folder runs="),
        ({"checkpoint": None}, "resume='newest' goes on from checkpoints, and this run keeps none"),
        ({"data": "new"}, "each start would begin the new data again"),
    ],
)
def test_what_cannot_be_beside_newest(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        config(**{"runs": Path("runs"), **settings})


def test_the_folder_of_runs_means_the_newest_run(tmp_path: Path) -> None:
    assert config(tmp_path, resume=str(tmp_path)).resume == "newest"
    assert config(tmp_path, resume=str(tmp_path / "newest")).resume == tmp_path / "newest"


def counts(worker: ps.Worker, rows: bool) -> None:
    """One epoch, with a table if `rows`; Ctrl-C at version 10 of a run that begins there."""
    torch.manual_seed(3)
    model = loops.mlp()
    ids = ps.Table(2) if rows else torch.nn.Embedding(loops.CLASSES, 2)
    model.add_module("ids", ids)
    loader = DataLoader(TensorDataset(*loops.data()), batch_size=2)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    for inputs, labels in loader:
        if worker.rank == 0 and worker.version == 10 and not worker.steps_before:
            signal.raise_signal(signal.SIGINT)
        optimizer.zero_grad()
        (loops.loss_of(model[:3], inputs, labels) + ids(labels).square().sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("rows", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_one_call_begins_goes_on_and_gives_the_finished_run(
    rows: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def start() -> ps.Run:
        kept, train = ps.Checkpoint(every_s=0.01), partial(counts, rows=rows)
        return ps.run(train, "sync_sgd", workers=2, engine=ENGINE, runs=tmp_path, checkpoint=kept, resume="newest")

    with pytest.raises(ps.RunInterrupted):
        start()
    done = start()
    assert (done.version, done.samples) == (24, 96 - 2 * 2 * 10), "each sample once"
    assert tomllib.loads((done.folder / CONFIGURATION).read_text())["run"]["resume"].startswith(str(tmp_path))
    again = start()
    assert again.folder == done.folder
    assert same(again, done)
    assert again.summary == done.summary
    assert [one.rows for one in again.tables.values()] == [one.rows for one in done.tables.values()] == [3] * rows
    begins, goes_on, finished = capfd.readouterr().err.splitlines()
    assert begins.startswith(f"plesio: in {tmp_path} there is no run of sync_sgd on counts of test_newest.py")
    assert goes_on.startswith("plesio: going on with the newest run")
    assert finished.endswith(f"{done.folder}, has finished: nothing is left to do")
