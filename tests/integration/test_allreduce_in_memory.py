"""`allreduce` on one host without a GPU: rounds in shared memory, with all that a server gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support import loops

HERE = ps.allreduce().in_memory
"""What a run on one host does, also where it is simulated: there `allreduce` itself has no server."""
ROUNDS = partial(loops.follow, build=loops.batch_norm, optimizers=loops.momentum, steps=15)


def same_bits(one: ps.Run, other: ps.Run) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


@pytest.mark.thorough
def test_it_computes_what_sync_sgd_does() -> None:
    one, other = (ps.run(ROUNDS, strategy, workers=3, timeout_s=30) for strategy in ("allreduce", ps.sync_sgd()))
    for name, value in one.state_dict.items():
        if "running" not in name:  # the worker's with the lowest number, there the mean
            torch.testing.assert_close(value, other.state_dict[name])
    assert (one.strategy, one.version, one.steps) == ("allreduce", 15, 45)


@pytest.mark.thorough
def test_it_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    done = ps.run(ROUNDS, ps.allreduce(), workers=3, runs=tmp_path, timeout_s=30)
    assert done.folder is not None
    again = ps.replay(done.folder, ROUNDS)
    assert all(torch.equal(value, again.state_dict[name]) for name, value in done.state_dict.items())


def scheduled(worker: ps.Worker, epochs: int) -> None:
    """Batches do not divide by the workers; a momentum, a schedule by epoch, statistics in buffers."""
    torch.manual_seed(0)
    model = loops.batch_norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loader = DataLoader(TensorDataset(*loops.data(40)), batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = worker.prepare(model, optimizer, loader, schedule)
    for _ in worker.epochs(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loops.loss_of(model, inputs, labels).backward()
            optimizer.step()
        schedule.step()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_interrupted_and_resumed_it_has_the_same_bits_and_is_replayed(tmp_path: Path) -> None:
    """Also where the learning rates differ for a round: those of the lowest worker hold, and replicas stay the same."""
    run = partial(ps.run, partial(scheduled, epochs=6), HERE, workers=2, engine=ps.Simulated("uniform"))
    whole = run()
    keep = ps.Checkpoint(every_s=0.35)
    cut = run(runs=tmp_path, checkpoint=keep, until=ps.Until(steps=14))
    on = run(resume=cut.folder, runs=tmp_path)
    assert 0 < cut.version < on.version == whole.version
    assert same_bits(on, whole)
    assert not whole.incidents
    assert on.folder is not None
    assert ps.replay(on.folder, partial(scheduled, epochs=6)).identical


@pytest.mark.thorough
def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    keep = ps.Checkpoint(every_s=0.05)
    until = ps.Until(steps=21)
    cut = ps.run(ROUNDS, "allreduce", workers=3, runs=tmp_path, checkpoint=keep, until=until, timeout_s=30)
    on = ps.run(ROUNDS, "allreduce", workers=3, resume=cut.folder, timeout_s=30)
    assert cut.version >= 7
    assert cut.folder is not None
    newest = max(int(one.name.rpartition("-")[2]) for one in (cut.folder / "checkpoints").iterdir())
    assert on.version == newest + 15


@pytest.mark.thorough
def test_its_workers_may_change_in_number(tmp_path: Path) -> None:
    def scale(live: ps.Live) -> None:
        if live.version > 20:
            live.scale(3)
        if live.now is not None and sum(one.steps > 0 for one in live.now.workers) == 3:
            (folder,) = tmp_path.iterdir()
            (folder / "asked-stop").touch()

    run = ps.run(
        loops.endless, "allreduce", workers=2, workers_max=3, watch=scale, until=ps.Until(seconds=60.0), runs=tmp_path
    )
    assert run.workers[2].steps > 0


def test_a_host_with_a_gpu_takes_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    run = ps.run(ROUNDS, "allreduce", workers=2, timeout_s=30, runs=tmp_path)
    assert run.steps == 15
    with pytest.raises(ps.ReplayError, match="processes all-reduce by torch"):
        ps.replay(run.folder, ROUNDS)
