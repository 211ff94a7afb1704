"""What a person sees of a run from a script or a notebook: progress, prints, logs, and what training functions return."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import plesio as ps
from plesio.cli.replay import _train_of
from plesio.launch.local.output import _Prefixed
from plesio.observe.progress import ProgressLine
from plesio.observe.totals import Totals
from plesio.protocol.journal import JournalHead
from support.programs import PYTHON


def speaking(worker: ps.Worker) -> Any:
    model: Any = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, SGD(model.parameters(), lr=0.1))
    for _ in range(20):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    print(f"first of {worker.rank}\nsecond of {worker.rank}")
    logging.getLogger("mine").info("logged by %d", worker.rank)
    return {"rank": worker.rank, "weight": model.weight.detach().clone()}


def nothing(worker: ps.Worker) -> Any:
    speaking(worker)
    return threading_lock() if worker.rank else bytes(20 << 20)


def threading_lock() -> Any:
    import threading

    return threading.Lock()


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=["processes", "simulated"])
@pytest.mark.parametrize("strategy", ["async_sgd", "local_sgd"])
def test_what_train_returns_is_kept_by_worker(strategy: str, engine: Any) -> None:
    run = ps.run(speaking, strategy, workers=2, engine=engine)
    assert [one["rank"] for one in run.returned] == [0, 1]
    assert run.returned[1]["weight"].shape == (1, 1)


def test_what_cannot_be_sent_or_is_too_large_is_left_out() -> None:
    assert ps.run(nothing, "async_sgd", workers=2).returned == [None, None]


SCRIPT = """
import logging, sys
sys.path[:0] = {path!r}
import plesio as ps
from integration.test_what_a_person_sees import speaking

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    for workers, progress in ((2, None), (1, None), (1, True)):
        ps.run(speaking, "sync_sgd", workers=workers, progress=progress, pace=0.02)
        print({next!r}, flush=True)
        print({next!r}, file=sys.stderr, flush=True)
"""
NEXT = "the next run"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What three runs of a program print, and what they log: of two workers, of one, and of one with progress."""
    path = [str(Path(__file__).parents[1]), *(one for one in sys.path if one)]
    file = tmp_path_factory.mktemp("person") / "script.py"
    file.write_text(SCRIPT.format(path=path, next=NEXT))
    done = subprocess.run([*PYTHON, str(file)], capture_output=True, text=True, timeout=280, check=True)
    return list(zip(*(told.split(f"{NEXT}\n") for told in (done.stdout, done.stderr)), strict=True))


@pytest.mark.thorough
def test_lines_of_several_workers_begin_with_their_rank(printed: list[tuple[str, str]]) -> None:
    said, logged = printed[0]
    wanted = [f"[worker {rank}] {which} of {rank}" for rank in range(2) for which in ("first", "second")]
    assert sorted(said.splitlines()) == sorted(wanted)
    assert sorted(re.findall(r".*INFO:mine.*", logged)) == [
        f"[worker {rank}] INFO:mine:logged by {rank}" for rank in range(2)
    ]
    assert "steps" not in logged.replace("20 steps each", "").replace("worker.steps", ""), "nobody watches a pipe"


def test_a_line_that_is_written_in_parts_has_one_prefix() -> None:
    file = io.StringIO()
    told = _Prefixed(file, "[worker 1] ")
    for text in ("epoch ", "1\n", "loss", ": "):
        told.write(text)
    told.flush()
    told.write("0.5\n\rhalf")
    told.flush()
    assert file.getvalue() == "[worker 1] epoch 1\n[worker 1] loss: 0.5\n[worker 1] \r[worker 1] half"


def test_a_single_worker_prints_as_it_is(printed: list[tuple[str, str]]) -> None:
    said, logged = printed[1]
    assert said == "first of 0\nsecond of 0\n"
    assert "INFO:mine:logged by 0" in logged


def test_progress_shows_time_and_steps(printed: list[tuple[str, str]]) -> None:
    _, shown = printed[2]
    assert re.search(r"sync_sgd +0\.\d s +\d+ steps", shown)


def test_progress_line_is_written_over_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine("sync_sgd", None)
    for _ in range(2):
        line.show(Totals(wall_s=12.0, steps=1234), {"accuracy": 0.5})
    line.clear()
    shown = capsys.readouterr().err
    assert shown.count("12.0 s  1,234 steps (103/s)  accuracy 0.5") == 1
    assert shown.endswith("\r")


def test_a_run_shows_its_table_in_a_notebook_and_its_parts_by_tab() -> None:
    run = ps.run(speaking, "sync_sgd", workers=1, engine=ps.Simulated("uniform"))
    assert run._repr_html_().startswith("<pre>sync_sgd: finished")
    assert {"returned", "logged", "ended", "history", "state_dict"} <= set(dir(run))


def test_replay_of_a_notebooks_run_says_where_to_replay_it() -> None:
    head = type("Head", (), {"script": "/tmp/ipykernel_12/442.py"})()
    assert isinstance(JournalHead, type)
    with pytest.raises(
        ps.ConfigurationError, match=r"is not there; .* or replay the run in Python: ps.replay\(run, train\)"
    ):
        _train_of(head, None, None, force=False)
