"""Batches that are read one ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plesio.worker.data.use import DataUse, one_ahead


@pytest.mark.parametrize(
    ("lost_at", "in_the_loader", "trained"),
    [(2, True, [0, 2, 3, 4]), (2, False, [0, 1, 2, 4]), (4, True, [0, 1, 2, 4]), (4, False, [0, 1, 2, 3, 4])],
)
def test_what_was_read_before_the_seat_was_lost_is_others(
    lost_at: int, in_the_loader: bool, trained: list[int]
) -> None:
    """In the loader, while it asks for that batch; or in the step of it, when the next one is read."""
    used, got = DataUse(), list[int]()

    def batches() -> Iterator[int]:
        for number in range(5):
            if in_the_loader and number == lost_at:
                used.lose()
            used.batches, used.samples = used.batches + 1, used.samples + 10
            yield number

    for number in one_ahead(batches(), used, lambda _: None):
        got.append(number)
        assert (used.batches, used.samples) == (1, 10)
        if not in_the_loader and number == lost_at:
            used.lose()
        used()
    assert got == trained
