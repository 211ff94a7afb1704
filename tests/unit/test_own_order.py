"""A lone worker draws the order of its batches itself; a process that goes on for one that ended says where that shows."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from plesio.worker.data.own_order import OwnOrder
from plesio.worker.randomness.draws import OwnDraws


def order(draws: OwnDraws) -> OwnOrder:
    torch.manual_seed(1)
    data: Any = TensorDataset(torch.arange(20))
    return OwnOrder(DataLoader(data, batch_size=2, shuffle=True), draws, seeds=True)


@pytest.mark.parametrize(("epoch", "number"), [(0, 0), (0, 4), (1, 0)])
def test_a_pass_that_is_drawn_from_its_beginning_is_as_in_the_script(epoch: int, number: int) -> None:
    """The first one's order is, too: the script draws the same again."""
    one = order(OwnDraws())
    with warnings.catch_warnings(action="error"):
        one.begin(epoch)
        one.batch(epoch, number)


def test_the_middle_of_a_pass_of_a_process_that_ended_is_warned_of() -> None:
    one = order(OwnDraws())
    one.begin(1)
    with pytest.warns(RuntimeWarning, match="goes on in the middle of pass 1 for one that ended"):
        one.batch(1, 4)
    with warnings.catch_warnings(action="error"):
        one.batch(1, 5)


def test_a_process_that_has_what_the_one_before_drew_from_draws_the_same() -> None:
    draws = OwnDraws()
    one = order(draws)
    one.begin(1)
    drawn = [one.batch(1, number) for number in range(6)]
    again = OwnDraws()
    other = order(again)
    again.take_up(draws.kept())
    with warnings.catch_warnings(action="error"):
        other.begin(1)
        assert other.batch(1, 5) == drawn[5]
