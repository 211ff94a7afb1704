"""What workers leave for checkpoints is known once it is whole."""

from __future__ import annotations

import io
import os

import pytest
import torch

from plesio.transport.held import Held


def test_what_a_worker_writes_piece_by_piece_is_read_as_one() -> None:
    held, numbers = Held.create(workers=2), torch.arange(100_000)
    with held.writing(1, 7) as file:
        torch.save({"numbers": numbers}, file)
        assert held.get(1, 7) is None
    data = held.get(1, 7)
    assert data is not None
    assert torch.equal(torch.load(io.BytesIO(data), weights_only=True)["numbers"], numbers)
    assert held.get(0, 7) is None


def test_a_state_that_failed_half_way_is_not_known_and_leaves_the_last_one() -> None:
    held = Held.create(workers=1)
    held.put(0, 1, b"whole")
    with pytest.raises(TypeError), held.writing(0, 2) as file:
        file.writelines([b"half", 0])  # type: ignore[list-item]
    assert held.get(0, 2) is None
    assert held.get(0, 1) == b"whole"


def test_a_shorter_state_in_the_place_of_a_longer_one_ends_where_it_ends() -> None:
    held = Held.create(workers=1)
    held.put(0, 1, b"a long one")
    held.put(0, 3, b"")
    assert held.get(0, 1) is None
    assert held.get(0, 3) == b""


def test_it_is_there_when_all_processes_of_a_worker_have_left_it() -> None:
    held = Held.create(workers=2, ranks=2)
    held.put_all(1, 4, b"")
    assert not held.has(1, 4), "of one process"
    for rank in range(2):
        Held(os.dup(held.fd), 2, rank).put(1, 4, b"")  # what cannot be saved is nothing, and there
    assert held.has(1, 4)
    assert not held.has(1, 2)
    assert not held.has(0, 4)


def test_it_is_asked_for_until_the_server_says_otherwise() -> None:
    held = Held.create(workers=1)
    worker = Held(os.dup(held.fd))
    held.put(0, 0, b"momentum")
    assert worker.asked
    for asked in (False, True):
        held.asked = asked
        assert worker.asked is asked
    assert held.get(0, 0) == b"momentum"
