"""Threads of workers that somebody else started."""

from __future__ import annotations

import os

import pytest
import torch

from plesio.launch.remote.cores import processes_here, threads_among


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.append(number))
    threads[:] = [4]


threads: list[int] = []


@pytest.mark.parametrize(("processes", "share"), [(0, 4), (1, 4), (2, 2), (3, 1), (9, 1)])
def test_a_hosts_cores_are_shared_among_its_workers(four_cores: None, processes: int, share: int) -> None:
    with threads_among(processes, {}):
        assert threads[-1] == share
    assert threads[-1] == 4


def test_a_number_that_the_user_chose_stays(four_cores: None) -> None:
    with threads_among(4, {"OMP_NUM_THREADS": "4"}):
        assert threads == [4]
    threads[:] = [1]
    with threads_among(2, {}):
        assert threads == [1]


def test_the_host_has_the_head_besides() -> None:
    assert processes_here(8, True, {"SLURM_NTASKS_PER_NODE": "3"}) == 4
    assert processes_here(8, False, {"SLURM_NTASKS_PER_NODE": "3(x2)"}) == 0
