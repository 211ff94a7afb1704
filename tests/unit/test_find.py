"""How a process finds the run that it is to join."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import plesio as ps
from plesio.errors import ConfigurationError
from plesio.launch.remote.find import EVERYWHERE, LOOPBACK, SLURM_PORTS, RunPlace, place, token_of

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "one",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[03-07,12]",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_PROCID": "0",
}


def test_an_address_comes_before_the_environment() -> None:
    joins = {"PLESIO_JOIN": "10.0.0.2:1", "PLESIO_RANK": "3", **TORCHRUN}
    assert place("10.0.0.1:7070", 2, joins) == RunPlace("10.0.0.1", 7070, 2)
    assert place(None, None, joins) == RunPlace("10.0.0.2", 1, 3)
    assert place("tcp://[::1]:7070", None, {}) == RunPlace("::1", 7070, far=True)
    several = place(None, None, {"PLESIO_JOIN": "tcp://10.0.0.1:7070,10.0.0.2:7071"})
    assert several == RunPlace("10.0.0.1", 7070, far=True, others=(("10.0.0.2", 7071),))
    with pytest.raises(ps.ConfigurationError, match=r"PLESIO_JOIN='': HOST:PORT was wanted"):
        place(None, None, {"PLESIO_JOIN": "10.0.0.1:7070,"})


def test_torchrun_puts_the_head_beside_the_store() -> None:
    other = place(None, None, TORCHRUN)
    assert other == RunPlace("node0", 0, 1, 4, store="node0:29500", key="plesio/head/one")
    first = place(None, None, {**TORCHRUN, "RANK": "0"})
    assert (first.starts, first.listens) == (True, EVERYWHERE)


def test_on_one_host_the_head_listens_on_the_loopback() -> None:
    assert place(None, None, {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}).listens == LOOPBACK
    assert place(None, None, {**SLURM, "SLURM_STEP_NODELIST": "gpu03"}).listens == LOOPBACK


def test_all_processes_of_a_slurm_step_find_the_same_head() -> None:
    first = place(None, None, SLURM)
    other = place(None, None, {**SLURM, "SLURM_PROCID": "7"})
    assert (first.host, first.port) == (other.host, other.port) == ("gpu03", 20_000 + 31 * 77 + 2)
    assert (first.starts, other.starts) == (True, False)
    assert (other.rank, other.workers) == (7, 12)


def test_ports_of_slurm_jobs_stay_in_their_range() -> None:
    ports = {place(None, None, {**SLURM, "SLURM_JOB_ID": str(job)}).port for job in range(10_000, 11_000)}
    assert len(ports) == 1000
    assert ports <= set(SLURM_PORTS)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "address=.*PLESIO_JOIN.*torchrun.*SLURM.*Ray"),
        ({"PLESIO_JOIN": "10.0.0.1"}, "PLESIO_JOIN='10.0.0.1': HOST:PORT was wanted"),
        ({"PLESIO_JOIN": "h:1", "PLESIO_RANK": "one"}, "PLESIO_RANK='one'"),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}, "--rdzv-backend c10d"),
        ({"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "x"}, "SLURM_PROCID='x'"),
    ],
)
def test_what_cannot_be_found_is_told(environment: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        place(None, None, environment)


def test_processes_that_need_a_token_at_once_get_the_same(tmp_path: Path) -> None:
    tokens: list[str] = []
    barrier = threading.Barrier(8)

    def get() -> None:
        barrier.wait()
        tokens.append(token_of(None, {}, tmp_path / "of" / "token"))

    threads = [threading.Thread(target=get) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(tokens)) == 1
    assert len(tokens) == 8
    assert os.listdir(tmp_path / "of") == ["token"]


def test_tokens_that_protect_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"5 characters; at least 16"):
        token_of("short", {})
    token_of(None, {}, tmp_path / "token")
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"others may read .*chmod 600"):
        token_of(None, {}, tmp_path / "token")


def test_an_error_of_join_comes_without_inner_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLESIO_JOIN", raising=False)
    with pytest.raises(ps.ConfigurationError, match="nothing says where the run is") as caught, ps.join("async_sgd"):
        pass
    assert [one.name for one in caught.traceback] == ["test_an_error_of_join_comes_without_inner_frames", "__enter__"]
