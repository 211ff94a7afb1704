"""Real runs, killed for real, that go on under another strategy or with other workers."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from faults.test_remote import meanwhile
from faults.test_remote import until as wait_until
from faults.test_tables import counting
from plesio.cli.main import main
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from support import remote
from support.long_forms import but_slow
from support.loops import data, loss_of, mlp
from support.replayed import chancy
from support.row_loop import dealt

OFTEN = ps.Checkpoint(every_s=0.1, keep=3)


def interrupted(strategy: Strategy, folder: Path, **settings: Any) -> tuple[Path, Any]:
    """The folder of a run whose server was killed in the middle, and its training function."""
    folder.mkdir()
    train = functools.partial(chancy, ends=folder, epochs=12, **settings)
    with pytest.raises(ps.ServerLostError):
        trained(strategy, folder, train, checkpoint=OFTEN, durability="none")
    (path,) = (one for one in folder.iterdir() if one.is_dir())
    return path, train


def trained(strategy: Strategy, folder: Path, train: Any, workers: int = 4, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=workers, runs=folder, timeout_s=60, **options)


def said(run: ps.Run) -> str:
    return run.incidents[1].what


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:resumed under", "ignore:.*outer momentum")
@pytest.mark.parametrize(
    ("was", "now", "workers"),
    [
        pytest.param(ps.sync_sgd(), ps.local_sgd(2), 3, marks=pytest.mark.slow),
        (ps.local_sgd(2), ps.async_sgd(), 4),
        (ps.async_sgd(), ps.diloco(3, codec="int4"), 5),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_a_killed_run_goes_on_under_another_strategy_and_then_under_its_own(
    was: Strategy, now: Strategy, workers: int, tmp_path: Path
) -> None:
    folder, train = interrupted(was, tmp_path / "broken", kind="adam")
    before = latest(folder).manifest
    second = trained(
        now, tmp_path / "b", train, workers, resume=folder, checkpoint=OFTEN, until=ps.Until(steps=before.steps + 30)
    )
    assert said(second).startswith(f"resumed under {now.name}")
    assert second.folder is not None
    between = latest(second.folder).manifest
    assert before.steps + 10 < between.steps
    third = trained(was, tmp_path / "c", train, 2, resume=second.folder, checkpoint=OFTEN)
    assert third.batches_unvisited == 0
    assert third.folder is not None
    leases = latest(third.folder).manifest.order.leases
    assert leases.done + leases.skipped == 12 * 16
    assert said(third).startswith(
        f"resumed under {was.name} with 2 workers, was under {now.name} with {workers} workers"
    )


def learns(worker: Any, kind: str = "adam") -> None:
    model = mlp()
    make: Any = torch.optim.AdamW if kind == "adam" else functools.partial(torch.optim.SGD, momentum=0.9)
    loader = DataLoader(TensorDataset(*data(96)), batch_size=4)
    model, optimizer, loader = worker.prepare(model, make(model.parameters(), lr=0.01), loader)
    for _ in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_of(model, inputs, labels).backward()
            optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", but_slow(["adam", "sgd"], {"adam"}))
def test_allreduce_in_memory_takes_the_servers_state_and_gives_it_back(kind: str, tmp_path: Path) -> None:
    """It computes what `sync_sgd` does, to rounding; so a run that goes to and fro gives the weights of one that stays."""
    train = functools.partial(learns, kind=kind)
    whole = trained(ps.sync_sgd(), tmp_path / "whole", train, 2)
    folder = None
    for steps, strategy in ((20, ps.sync_sgd()), (60, ps.allreduce()), (100, ps.sync_sgd()), (None, ps.allreduce())):
        until = ps.Until(steps=steps) if steps else None
        run = trained(strategy, tmp_path / "parts", train, 2, resume=folder, checkpoint=ps.Checkpoint(), until=until)
        assert len(run.incidents) == (2 if folder else 0)
        folder = run.folder
    assert run.version == whole.version
    for name, value in whole.state_dict.items():
        torch.testing.assert_close(run.state_dict[name], value)


@pytest.mark.thorough
def test_a_run_goes_on_with_room_for_more_workers_than_it_had(tmp_path: Path) -> None:
    folder, train = interrupted(ps.sync_sgd(), tmp_path / "broken")

    def watch(live: ps.Live) -> None:
        if live.steps > latest(folder).manifest.steps + 20:
            live.scale(5)

    run = trained(ps.async_sgd(), tmp_path / "b", train, 2, workers_max=5, resume=folder, watch=watch)
    words = "resumed under async_sgd with 2 workers (at most 5), was under sync_sgd with 4 workers"
    assert said(run) == words
    assert "scaled from 2 to 5 workers" in [one.what for one in run.incidents]
    assert run.batches_unvisited == 0


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:resumed under sync_sgd .* their mean goes on")
@pytest.mark.parametrize(("was", "now"), [(ps.async_sgd(), ps.sync_sgd()), (ps.sync_sgd(), ps.local_sgd(2))])
def test_rows_of_tables_go_on(was: Strategy, now: Strategy, tmp_path: Path) -> None:
    loop = functools.partial(dealt, pause_s=0.0)
    first = trained(was, tmp_path, loop, 3, checkpoint=ps.Checkpoint(), until=ps.Until(steps=40))
    assert first.folder is not None
    kept = latest(first.folder).tables()["ids"]
    begun = trained(now, tmp_path, functools.partial(loop, epochs=0), 2, resume=first.folder)
    rows = begun.tables["ids"].get_extra_state()
    assert rows.keys() == kept.keys()
    assert all(torch.equal(value, torch.from_numpy(kept[name])) for name, value in rows.items())
    run = trained(now, tmp_path, loop, 2, resume=first.folder)
    assert run.batches_unvisited == 0
    assert len(run.tables["ids"].get_extra_state()["keys"]) >= len(kept["keys"])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("was", "now", "workers"),
    [
        (ps.async_sgd(), ps.sync_sgd(rows="each"), 2),
        (ps.buffered(4), ps.async_sgd(), 3),
        (ps.sync_sgd(rows="each"), ps.buffered(4), 4),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_the_row_of_each_sample_steps_once_over_both_runs(
    was: Strategy, now: Strategy, workers: int, tmp_path: Path
) -> None:
    uniform: dict[str, Any] = {"engine": ps.Simulated("uniform"), "runs": tmp_path}
    first = ps.run(counting, was, workers=3, checkpoint=ps.Checkpoint(), until=ps.Until(steps=14), **uniform)
    run = ps.run(counting, now, workers=workers, resume=first.folder, **uniform)
    torch.testing.assert_close(run.tables["ids"].get_extra_state()["values"], torch.full((60, 1), -1.0))


@pytest.mark.thorough
def test_a_worker_that_outlives_a_head_does_not_join_the_one_of_another_strategy(tmp_path: Path) -> None:
    """It was built for the first."""
    with remote.head(rejoin_s=30.0) as head:
        for rank in range(2):
            head.fork(functools.partial(chancy, epochs=400), rank=rank)

        def kill() -> None:
            wait_until(lambda: any((tmp_path / "runs").glob("*/checkpoints/version-*")))
            os.kill(head.server_pid(), signal.SIGKILL)

        with meanwhile(kill), pytest.raises(ps.ServerLostError):
            head.run(ps.sync_sgd(), workers=2, checkpoint=OFTEN, runs=tmp_path / "runs", durability="none")
        (folder,) = (tmp_path / "runs").iterdir()
        head.reopen()
        with pytest.raises(ps.PlesioError):
            head.run(ps.async_sgd(), workers=2, resume=folder, timeout_s=5.0)
        assert 0 not in head.end()
    assert "was told other settings than the run has: strategy='sync_sgd', not 'async_sgd'" in head.warned


@pytest.mark.thorough
def test_the_command_line_goes_on_under_another_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("from support.replayed import chancy as train\n")
    common = ["run", str(script), "--runs"]
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    assert main([*common, first, "--strategy", "sync_sgd", "--workers", "2", "--checkpoint-every-s", "0.1"]) == 0
    (folder,) = (tmp_path / "a").iterdir()
    assert main([*common, second, "--strategy", "local_sgd(every=4)", "--workers", "3", "--resume", str(folder)]) == 0
    words = "resumed under local_sgd(every 4 steps) with 3 workers, was under sync_sgd with 2 workers"
    assert words in capsys.readouterr().out.replace("\n", " ")
    (folder,) = (tmp_path / "b").iterdir()
    assert main(["replay", str(folder), "--function", "chancy"]) == 2
    assert "cannot be replayed from its journal alone" in capsys.readouterr().err
    assert main(["runs", "--runs", second]) == 0
