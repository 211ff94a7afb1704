"""A lone worker draws the order of its batches itself; a process that goes on for one that ended says where that shows."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from plesio.worker.data.own_order import OwnOrder
from plesio.worker.randomness.draws import OwnDraws


class Sampled(Sampler[int]):
    """Shuffles by a source of its own, as it goes on."""

    def __init__(self) -> None:
        self._source = random.Random()

    def __iter__(self) -> Iterator[int]:
        return (self._source.randrange(20) for _ in range(20))

    def __len__(self) -> int:
        return 20


def order(draws: OwnDraws, seed: int = 1, **how: Any) -> OwnOrder:
    torch.manual_seed(seed)
    data: Any = TensorDataset(torch.arange(20))
    return OwnOrder(DataLoader(data, batch_size=2, **(how or {"shuffle": True})), draws, seeds=True)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_pass_that_is_drawn_from_its_beginning_is_as_in_the_script(epoch: int) -> None:
    one = order(OwnDraws())
    with warnings.catch_warnings(action="error"):
        one.begin(epoch)
        one.batch(epoch, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_middle_of_a_pass_of_a_process_that_ended_is_warned_of(epoch: int) -> None:
    one = order(OwnDraws())
    one.begin(epoch)
    with pytest.warns(RuntimeWarning, match=f"goes on in the middle of pass {epoch} for one that ended"):
        one.batch(epoch, 4)
    with warnings.catch_warnings(action="error"):
        one.batch(epoch, 5)


def drawn(one: OwnOrder, epoch: int) -> list[Any]:
    one.begin(epoch)
    return [one.batch(epoch, number) for number in range(10)]


def test_a_process_that_has_what_the_one_before_held_draws_the_same() -> None:
    draws, again = OwnDraws(), OwnDraws()
    first = drawn(order(draws), 1)
    other = order(again)
    again.take_up(draws.kept())
    with warnings.catch_warnings(action="error"):
        other.begin(1)
        assert other.batch(1, 5) == first[5]


def test_a_process_that_is_told_how_the_one_before_began_draws_the_same_also_after_a_look_and_goes_on_as_that_would() -> (
    None
):
    draws = OwnDraws()
    one = order(draws)
    first, start, second = drawn(one, 1), draws.start.packed(), drawn(one, 2)
    other = order(OwnDraws(), seed=2)
    with warnings.catch_warnings(action="error"):
        other.goes_on(1, start)
        for number in 4, 5:
            other.begin(1)
            assert other.batch(1, number) == first[number]
        assert [other.batch(1, number) for number in range(6, 10)] == first[6:]
        assert drawn(other, 2) == second


def test_of_a_sampler_that_may_have_a_source_of_its_own_it_is_warned_all_the_same() -> None:
    draws = OwnDraws()
    order(draws, sampler=Sampled()).begin(1)
    other = order(OwnDraws(), sampler=Sampled())
    other.goes_on(1, draws.start.packed())
    other.begin(1)
    with pytest.warns(RuntimeWarning, match="goes on in the middle of pass 1 for one that ended"):
        other.batch(1, 4)
