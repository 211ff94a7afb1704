"""Runs whose tables are dealt to several servers, each a process, resumed with another number of them; one killed for real."""

from __future__ import annotations

import os
import resource
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plesio as ps
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from plesio.tables import load_kernels
from support.long_forms import but_slow
from support.processes import called
from support.row_loop import dealt, same_rows
from support.row_twin import ADAGRAD, assert_rows, train, twin_of

OFTEN = ps.Checkpoint(every_s=0.1, keep=3)


def trained(strategy: Strategy, folder: Path, loop: Any = dealt, **options: Any) -> ps.Run:
    return ps.run(loop, strategy, workers=3, runs=folder, timeout_s=60, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy",
    but_slow([ps.async_sgd(), ps.sync_sgd(), ps.first_of(2), ps.local_sgd(3)], {"async_sgd", "sync_sgd"}),
    ids=lambda one: one.name,
)
def test_servers_of_their_own_have_the_rows_of_the_twin_and_any_number_replays(
    strategy: Strategy, tmp_path: Path
) -> None:
    run = ps.run(train, strategy, workers=3, runs=tmp_path, timeout_s=60, servers=4)
    assert run.folder is not None
    assert_rows(run, twin_of(run.folder, strategy, ADAGRAD))
    for servers in (1, 3):
        again = ps.replay(run.folder, train, servers=servers)
        assert str(again) == f"bit-identical: {run.version:,} versions, all computed again"


@pytest.mark.thorough
def test_rows_asked_for_ahead_come_from_each_server(tmp_path: Path) -> None:
    loop = partial(train, way="ahead")
    run = ps.run(loop, ps.sync_sgd(), workers=3, runs=tmp_path, timeout_s=60, servers=3)
    assert run.folder is not None
    assert_rows(run, twin_of(run.folder, ps.sync_sgd(), ADAGRAD, way="ahead"))


@pytest.mark.thorough
def test_a_resumed_run_may_have_another_number_of_servers_each_time(tmp_path: Path) -> None:
    """4, killed; then 2, killed; then 3: bit for bit the rows of one that nobody disturbed."""
    whole = trained(ps.sync_sgd(), tmp_path / "whole", partial(dealt, epochs=12))
    options: dict[str, Any] = {"checkpoint": OFTEN}
    for servers in (4, 2):
        folder = tmp_path / str(servers)
        folder.mkdir()
        with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint") as lost:
            trained(ps.sync_sgd(), folder, partial(dealt, epochs=12, ends=folder), servers=servers, **options)
        options["resume"] = lost.value.resume
        files = latest(lost.value.resume).manifest.files
        assert {f"table-{table}-{server}.safetensors" for table in (0, 1) for server in range(servers)} <= {*files}
    resumed = trained(ps.sync_sgd(), tmp_path / "3", partial(dealt, epochs=12), servers=3, **options)
    assert (resumed.version, same_rows(whole, resumed)) == (whole.version, True)


@pytest.mark.thorough
def test_a_checkpoint_that_one_server_cannot_write_is_an_incident(tmp_path: Path) -> None:
    full = tmp_path / "full"

    def watch(live: ps.Live) -> None:
        if live.version >= 1 and not full.exists():
            for pid in called("table server 0"):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            full.touch()

    loop = partial(dealt, waits=full)
    run = trained(ps.async_sgd(), tmp_path, loop, servers=3, checkpoint=OFTEN, watch=watch)
    assert any("checkpoint" in one.what for one in run.incidents)
    assert ps.replay(run.folder, loop).identical


@pytest.mark.thorough
def test_a_watch_that_is_slow_takes_no_end_for_a_death(tmp_path: Path) -> None:
    """The launcher hears that table servers have ended before it comes to the server's last words."""
    run = trained(ps.async_sgd(), tmp_path, servers=2, watch=lambda _: time.sleep(0.3))
    assert run.ended == "finished"


@pytest.mark.thorough
def test_what_travelled_does_not_depend_on_the_number_of_servers(tmp_path: Path) -> None:
    one, several = (trained(ps.sync_sgd(), tmp_path, servers=servers) for servers in (1, 3))
    assert (one.bytes, one.version) == (several.bytes, several.version)
    with pytest.raises(ps.ConfigurationError, match="servers=0: a whole number from 1 to 64"):
        ps.replay(one.folder, dealt, servers=0)


@pytest.mark.parametrize(
    "one", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.thorough)], ids=["killed", "stopped"]
)
def test_a_server_that_is_killed_or_stopped_ends_the_run_and_is_named(one: signal.Signals, tmp_path: Path) -> None:
    def watch(live: ps.Live) -> None:
        if live.version >= 3:
            for pid in called("table server 1"):
                os.kill(pid, one)

    words = r"table server 1 \(\d+\) died at version \d+.*checkpoint"
    loop, error = partial(dealt, epochs=400), (ps.ServerLostError,)
    if one is signal.SIGSTOP:  # the server waits for an answer, or a worker for rows
        words, error = "from table server 1: nothing came", (ps.ServerLostError, ps.DeadlineError)  # type: ignore[assignment]
    load_kernels()  # compiled now, and not while the deadline runs
    timeout_s = 15 if one is signal.SIGSTOP else 60
    with pytest.raises(error, match=words):
        ps.run(loop, ps.async_sgd(), workers=2, runs=tmp_path, timeout_s=timeout_s, servers=2, watch=watch)
