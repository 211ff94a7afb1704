"""Runs with tables that are interrupted and resumed: real processes, a server killed for real; checkpoints that do not fit."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.protocol.rows import RowsRequest
from plesio.server.checkpoints import FOLDER, latest, read
from plesio.strategy import Strategy
from support.long_forms import but_slow, in_turn
from support.row_loop import Net, dealt, rows_of, same_rows, samples

OFTEN = ps.Checkpoint(every_s=0.1, keep=3)


def trained(strategy: Strategy, folder: Path, loop: Any = dealt, **options: Any) -> ps.Run:
    return ps.run(loop, strategy, runs=folder, timeout_s=60, **{"workers": 3, **options})


def simulated(strategy: Strategy, folder: Path, loop: Any, **options: Any) -> ps.Run:
    return ps.run(loop, strategy, engine=ps.Simulated("uniform"), runs=folder, **{"workers": 3, **options})


def interrupted(strategy: Strategy, folder: Path, **settings: Any) -> tuple[Path, Any]:
    """The folder of a run whose server was killed in the middle, and its training function."""
    folder.mkdir()
    loop = partial(dealt, ends=folder, **settings)
    with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint with resume="):
        trained(strategy, folder, loop, checkpoint=OFTEN)
    (path,) = (one for one in folder.iterdir() if one.is_dir())
    return path, loop


def same(one: ps.Run, other: ps.Run) -> bool:
    dense = all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())
    return dense and same_rows(one, other)


WRONG: dict[int, tuple[tuple[tuple[int, int], ...], str]] = {
    1: ((), "rows of 0 tables are wanted, and there are 2"),
    2: (((0, 1), (1 << 20, 5)), "1,048,581 distinct rows of table 'deep.words'"),
    3: (((0, 1 << 40), (0, 0)), "are no message"),
}
"""What workers ask for, and how the answer begins."""


def asks_wrongly(worker: Any) -> None:
    model = Net()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch, labels = samples()
    for step in range(6):
        if worker.rank in WRONG and step == 2:
            worker._context._server.send(RowsRequest(step + 1, WRONG[worker.rank][0]))
        with worker.step():
            optimizer.zero_grad()
            (model(batch[:4]).sigmoid() - labels[:4]).square().mean().backward()
            optimizer.step()


@pytest.mark.thorough
def test_workers_that_ask_for_rows_wrongly_are_hung_up_on() -> None:
    run = ps.run(asks_wrongly, ps.async_sgd(), workers=4, timeout_s=60)
    assert [one.left for one in run.workers] == ["finished", "died", "died", "died"]
    said = [(one.worker, one.what) for one in run.summary.incidents if "hung up on" in one.what]
    for rank, (_, words) in WRONG.items():
        assert any(words in what for worker, what in said if worker == rank), said


@pytest.mark.thorough
@pytest.mark.parametrize("mortal", but_slow([False, True], {True}))
def test_a_resumed_sync_sgd_run_has_the_rows_of_the_uninterrupted_one_bit_for_bit(mortal: bool, tmp_path: Path) -> None:
    """That one in virtual time, where bits are the same."""
    whole = simulated(ps.sync_sgd(), tmp_path / "whole", partial(dealt, epochs=8, mortal=mortal, pause_s=0.0))
    folder, loop = interrupted(ps.sync_sgd(), tmp_path / "broken", epochs=8, mortal=mortal)
    saved = latest(folder)
    assert 0 < saved.manifest.version < whole.version
    assert [*saved.tables()] == ["ids", "deep.words"]
    resumed = trained(ps.sync_sgd(), tmp_path / "resumed", loop, resume=folder, checkpoint=OFTEN)
    assert resumed.version == whole.version
    assert same(whole, resumed)
    assert not mortal or all(len(one) for one in (saved.tables()["ids"]["counts"], rows_of(whole)["ids"]["counts"]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy",
    but_slow([ps.async_sgd(), ps.sync_sgd(rows="each"), ps.buffered(2, rows="with")], {"async_sgd"}),
    ids=lambda one: one.name,
)
def test_a_run_with_tables_resumes_and_its_journal_replays(strategy: Strategy, tmp_path: Path) -> None:
    folder, loop = interrupted(strategy, tmp_path / "broken", epochs=8)
    kept = latest(folder).tables()["ids"]
    resumed = trained(strategy, tmp_path / "resumed", loop, resume=folder)
    assert resumed.batches_unvisited == 0
    rows = resumed.tables["ids"].get_extra_state()
    assert rows["keys"][: len(kept["keys"])].tolist() == kept["keys"].tolist(), "in the order of their birth"
    assert resumed.folder is not None
    assert str(ps.replay(resumed.folder, loop)) == f"bit-identical: {resumed.version:,} versions, all computed again"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "mortal"),
    in_turn([ps.sync_sgd(), ps.local_sgd(3)], [False, True]),
    ids=lambda one: str(getattr(one, "name", one)),
)
def test_so_it_is_in_virtual_time(strategy: Strategy, mortal: bool, tmp_path: Path) -> None:
    loop = partial(dealt, pause_s=0.0, mortal=mortal)
    whole = simulated(strategy, tmp_path / "whole", loop)
    first = simulated(strategy, tmp_path / "a", loop, checkpoint=ps.Checkpoint(), until=ps.Until(steps=36))
    assert 0 < first.version < whole.version
    assert not same(first, whole)
    second = simulated(strategy, tmp_path / "b", loop, resume=first.folder)
    assert same(second, whole)
    assert second.folder is not None
    assert str(ps.replay(second.folder, loop)) == f"bit-identical: {second.version:,} versions, all computed again"


def counting(worker: Any) -> None:
    """Each sample has a row, which moves by 1 whenever it steps."""
    net = torch.nn.ModuleDict({"ids": ps.Table(1, ps.RowSGD(1.0), scale=0.0), "top": torch.nn.Linear(1, 1)})
    loader = DataLoader(TensorDataset(torch.arange(60)), batch_size=2, shuffle=True)
    net, optimizer, loader = worker.prepare(net, torch.optim.SGD(net["top"].parameters(), lr=0.1), loader)
    for (ids,) in loader:
        optimizer.zero_grad()
        (net["ids"](ids).sum() + net["top"](torch.ones(1, 1)).sum()).backward()
        optimizer.step()


ONCE = [
    (ps.async_sgd(), 1.0),
    (ps.buffered(3, rows="with"), 1 / 3),
    (ps.buffered(4), 1.0),
    (ps.sync_sgd(rows="each"), 1.0),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("strategy", "share"), ONCE, ids=lambda one: getattr(one, "name", ""))
def test_over_a_resume_the_rows_of_each_sample_step_once(strategy: Strategy, share: float, tmp_path: Path) -> None:
    """Also those of contributions that wait for their fold: they are computed again, or no checkpoint is made."""
    until = ps.Until(steps=14)
    first = simulated(strategy, tmp_path / "a", counting, checkpoint=ps.Checkpoint(), until=until)
    assert first.version > 0
    second = simulated(strategy, tmp_path / "b", counting, resume=first.folder)
    values = second.tables["ids"].get_extra_state()["values"]
    torch.testing.assert_close(values, torch.full((60, 1), -share))


@pytest.mark.few(1)
@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
def test_a_drawn_seed_stays_over_a_resume(real: bool, tmp_path: Path) -> None:
    """A lone worker draws it from the script's own source, which is another by then; the rows of both runs replay."""
    ran, seeds = trained if real else simulated, []
    folder: Path | None = None
    for name in ("a", "b"):
        more: dict[str, Any] = {"resume": folder} if folder else {"until": ps.Until(steps=10)}
        run = ran(ps.sync_sgd(), tmp_path / name, counting, workers=1, checkpoint=ps.Checkpoint(), **more)
        seeds.append(run.tables["ids"].spec("ids").seed)
        folder = run.folder
        torch.rand(1)
    assert seeds[0] == seeds[1]
    assert folder is not None
    assert str(ps.replay(folder, counting)) == f"bit-identical: {run.version:,} versions, all computed again"


def test_the_seed_of_the_first_worker_counts(tmp_path: Path) -> None:
    def loop(worker: Any) -> None:
        torch.manual_seed(worker.rank)
        counting(worker)

    run = simulated(ps.sync_sgd(), tmp_path, loop, workers=2)
    torch.manual_seed(0)
    assert run.tables["ids"].spec("ids").seed == ps.Table(1).spec("ids").seed


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that kept a checkpoint."""
    loop = partial(dealt, pause_s=0.0)
    run = simulated(ps.sync_sgd(), tmp_path_factory.mktemp("kept"), loop, checkpoint=ps.Checkpoint())
    assert run.folder is not None
    return run.folder


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "dim": ({"dim": 5}, "ids: table of rows of 4 by RowAdagrad, got ids: table of rows of 5 by RowAdagrad"),
    "name": ({"inner": "tags"}, "deep.words: table of rows of 2 by RowAdam, got deep.tags: table of rows of 2"),
    "none": ({"tables": False}, r"ids: table of rows of 4 by RowAdagrad, got ids.weight: float32 \(30, 4\)"),
}


@pytest.mark.filterwarnings("ignore:the training function, .* has changed since")
@pytest.mark.parametrize(
    ("what", "real"), in_turn([*OTHERS], [False, True]), ids=lambda one: one if isinstance(one, str) else f"real={one}"
)
def test_a_checkpoint_of_other_tables_is_refused(what: str, real: bool, kept: Path, tmp_path: Path) -> None:
    other, words = OTHERS[what]
    with pytest.raises(ps.CheckpointError, match=f"is of another model: it has {words}"):
        (trained if real else simulated)(ps.sync_sgd(), tmp_path, partial(dealt, pause_s=0.0, **other), resume=kept)


def test_a_checkpoint_without_tables_is_refused_where_the_model_has_some(tmp_path: Path) -> None:
    without = partial(dealt, tables=False, pause_s=0.0)
    run = simulated(ps.sync_sgd(), tmp_path / "a", without, checkpoint=ps.Checkpoint())
    with pytest.raises(
        ps.CheckpointError, match="got ids: table of rows of 4 by RowAdagrad; build the model as it was"
    ):
        simulated(ps.sync_sgd(), tmp_path / "b", partial(dealt, pause_s=0.0), resume=run.folder)


def test_a_run_resumes_with_another_rate_for_its_rows(kept: Path, tmp_path: Path) -> None:
    """As a saved table is loaded by a table of the same width and rule."""
    run = simulated(ps.sync_sgd(), tmp_path, partial(dealt, pause_s=0.0, epochs=4, lr=0.5), resume=kept)
    assert run.version > latest(kept).manifest.version


@pytest.mark.thorough
def test_a_damaged_table_is_skipped_for_an_older_checkpoint(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path, partial(dealt, epochs=6), checkpoint=OFTEN)
    assert run.folder is not None
    older, newer = sorted((run.folder / FOLDER).iterdir())[-2:]
    file = newer / "table-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()  # the older checkpoint may have the same file
    file.write_bytes(data)
    assert latest(run.folder).path == older
    (older / "table-0.safetensors").unlink()
    for path in (run.folder / FOLDER).iterdir():
        if path not in (older, newer):
            (path / "manifest.json").unlink()
    with pytest.raises(ps.CheckpointError, match=r"table-1\.safetensors is damaged"):
        trained(ps.async_sgd(), tmp_path, partial(dealt, epochs=6), resume=run.folder)


def links(path: Path) -> int:
    """How many files of changed rows a checkpoint has of the first table."""
    return len([*path.glob("table-0.*.safetensors")])


@pytest.mark.thorough
def test_a_run_resumes_from_each_link_of_a_chain_as_if_undisturbed(tmp_path: Path) -> None:
    loop = partial(dealt, pause_s=0.0)
    every = ps.Checkpoint(every_s=0.2, keep=99)
    whole = simulated(ps.sync_sgd(), tmp_path / "whole", loop, checkpoint=every)
    assert whole.folder is not None
    paths = sorted((whole.folder / FOLDER).iterdir())
    assert max(map(links, paths)) >= 1
    assert [links(path) for path in paths].count(0) >= 2, "all rows change all the time: a chain is short"
    for number, path in enumerate(paths[:-1]):
        alone = Path(shutil.copytree(path, tmp_path / "alone" / str(number) / path.name))
        resumed = simulated(ps.sync_sgd(), tmp_path / str(number), loop, resume=alone)
        assert same(resumed, whole)


@pytest.mark.thorough
def test_a_run_whose_server_is_killed_between_checkpoints_goes_on_from_the_last(tmp_path: Path) -> None:
    """Nothing that is half there, and the checkpoint is a link of a chain."""
    loop = partial(rare, ends=tmp_path)
    with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint"):
        trained(ps.sync_sgd(), tmp_path / "broken", loop, checkpoint=ps.Checkpoint(every_s=0.05, keep=9))
    (folder,) = (tmp_path / "broken").iterdir()
    paths = sorted((folder / FOLDER).glob("version-*"))
    assert links(paths[-1]) >= 2
    for path in paths:
        read(path)  # each is whole
    whole = simulated(ps.sync_sgd(), tmp_path / "whole", loop)
    resumed = trained(ps.sync_sgd(), tmp_path / "resumed", loop, resume=folder)
    assert same(resumed, whole)


def rare(worker: Any, ends: Path) -> None:
    """A table of 2,000 rows of which a step takes a few; worker 0 kills the server once there is a chain of 3 files."""
    torch.manual_seed(1)
    net = torch.nn.ModuleDict({"ids": ps.Table(4), "top": torch.nn.Linear(4, 1)})
    samples = torch.cat([torch.arange(2000), torch.arange(2000) % 90]).reshape(-1, 10)
    loader = DataLoader(TensorDataset(samples), 1)
    net, optimizer, loader = worker.prepare(net, torch.optim.SGD(net["top"].parameters(), lr=0.1), loader)
    for step, (ids,) in enumerate(batch for _ in range(2) for batch in loader):
        optimizer.zero_grad()
        net["top"](net["ids"](ids)).square().mean().backward()
        optimizer.step()
        if worker.rank == 0 and not (ends / "ended").exists():
            time.sleep(0.003 if step < 200 else 0.05)  # towards the end it waits for them: there are 266 steps
            if any((ends / "broken").rglob("version-*/table-0.2.safetensors")):
                (ends / "ended").touch()
                os.kill(worker.server_pid, signal.SIGKILL)


def fills_the_disk(worker: Any) -> None:
    """From worker 0's fifth step to its 35th the server can write files of a few bytes only."""
    import resource

    def limit(nbytes: int) -> None:
        if worker.rank == 0 and worker.server_pid:  # in a replay it is 0: this very process
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(worker.server_pid, resource.RLIMIT_FSIZE, (nbytes if nbytes else hard, hard))

    net = torch.nn.ModuleDict({"ids": ps.Table(64), "top": torch.nn.Linear(64, 1)})
    net, optimizer = worker.prepare(net, torch.optim.SGD(net["top"].parameters(), lr=0.1))
    for step in range(40):
        if step == 5:
            limit(1 << 13)  # room for all but a table
        elif step == 35:
            limit(0)
        optimizer.zero_grad()
        net["top"](net["ids"](torch.arange(20) + 20 * step)).square().sum().backward()
        optimizer.step()
        time.sleep(0.01)


@pytest.mark.thorough
def test_a_full_disk_is_reported_once_and_training_goes_on(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path / "runs", fills_the_disk, checkpoint=ps.Checkpoint(every_s=0.02))
    told = [one.what for one in run.incidents if one.what.startswith("the checkpoint ")]
    assert len(told) == 1, "once, though it was tried again and again"
    assert "cannot be written" in told[0]
    assert len(rows_of(run)["ids"]["keys"]) == 800, "the rows come to the caller in memory, not in a file"
