"""Workers of one host that go on while their answers travel, killed at each point: nothing is lost, and nothing counts twice.

The model counts (`support.row_each`); a fold takes a part of what a step took.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.strategy import Strategy
from support.long_forms import but_slow, but_thorough
from support.row_each import row_each

WORKERS, SAMPLES, BATCH, H = 4, 640, 4, 3
AHEAD = 20  # steps that the others make before one has died
STRATEGIES = {"deltas": ps.async_local_sgd(H, overlap=True), "gradients": ps.async_sgd("plain", ahead=1)}


def counting(
    worker: ps.Worker, dies_at: int = 0, when: str = "", pause_s: float = 0.002, folder: Path | None = None
) -> None:
    """One epoch; worker 1 kills itself `when` its step `dies_at` is to come, in its forward pass, or after it.

    The others leave it data until then, however slow it is. What happened is in the folder.
    """
    if folder is not None:
        (folder / "server").write_text(str(worker.server_pid))
    model, optimizer, loader = row_each(worker, SAMPLES, BATCH)
    for step, (samples,) in enumerate(loader, 1):
        dies = worker.rank == 1 and step == dies_at and worker.server_pid > 0  # not in a replay
        if dies and when == "before":
            end_itself(folder)
        while dies_at and folder is not None and worker.rank != 1 and step == AHEAD and not (folder / "died").exists():
            time.sleep(pause_s)
        optimizer.zero_grad()
        model(samples).sum().backward()
        if dies and when == "within":
            end_itself(folder)
        time.sleep(pause_s)
        optimizer.step()
        if dies and when == "after":
            end_itself(folder)


def end_itself(folder: Path | None) -> None:
    assert folder is not None
    (folder / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def rows(run: ps.Run) -> torch.Tensor:
    return -WORKERS * run.state_dict["weight"].flatten()


CASES = [f"{when} {at}" for at in (H, H + 1, 2 * H) for when in ("before", "within", "after")]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", but_thorough(CASES, {f"within {H + 1}"}, {f"after {H}", f"before {2 * H}"}))
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_worker_killed_while_it_goes_on_loses_no_batch(strategy: Strategy, case: str, tmp_path: Path) -> None:
    when, at = case.split()
    train = partial(counting, dies_at=int(at), when=when, folder=tmp_path)
    run = ps.run(train, strategy, workers=WORKERS, timeout_s=60, runs=tmp_path)
    assert [one.left for one in run.workers].count("died") == 1
    assert torch.equal(rows(run), torch.ones(SAMPLES))
    assert run.batches_unvisited == 0
    assert run.samples == SAMPLES
    assert ps.replay(str(run.folder), train).identical


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(STRATEGIES, {"deltas"}))
def test_a_server_that_never_answers_a_worker_that_went_on_is_named_in_time(name: str, tmp_path: Path) -> None:
    frozen: list[int] = []

    def freeze(live: ps.Live) -> None:
        if live.version > 4 and not frozen:
            frozen.append(int((tmp_path / "server").read_text()))
            os.kill(frozen[0], signal.SIGSTOP)

    train = partial(counting, pause_s=0.02, folder=tmp_path)
    with pytest.raises(ps.DeadlineError, match="the server"):
        ps.run(train, STRATEGIES[name], workers=2, timeout_s=2.0, watch=freeze)
    assert frozen


@pytest.mark.thorough
def test_a_run_that_is_stopped_while_answers_travel_ends_at_once() -> None:
    slow = partial(counting, pause_s=0.02)
    run = ps.run(slow, STRATEGIES["deltas"], workers=WORKERS, until=ps.Until(steps=60), timeout_s=30)
    assert run.ended == "60 steps were up"
    assert 0 < rows(run).sum() < SAMPLES
    assert [one.left for one in run.workers] == ["finished"] * WORKERS


def test_what_was_done_since_the_last_answer_is_sent_at_the_end() -> None:
    run = ps.run(counting, STRATEGIES["deltas"], workers=WORKERS, timeout_s=60)
    assert torch.equal(rows(run), torch.ones(SAMPLES))
    assert run.samples == SAMPLES


def test_the_loop_hears_of_its_last_contribution_when_it_asks() -> None:
    """A site that says how many samples it had goes on, too; and nobody hangs."""

    def site(worker: ps.Worker) -> tuple[int, int]:
        model = nn.Linear(2, 1)
        model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
        for _ in range(6):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(3, 2)).mean().backward()
                optimizer.step()
            worker.contribute(samples=12)
        return worker.version, worker.discarded

    run = ps.run(site, ps.fedavg(overlap=True), workers=2, timeout_s=30)
    assert run.version == 6
    assert run.samples == 2 * 6 * 12
    assert run.staleness.max <= 1
    assert run.returned[0][1] == 0
