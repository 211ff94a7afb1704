"""What workers leave for checkpoints is known once it is whole."""

from __future__ import annotations

import io

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
