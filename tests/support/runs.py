"""Runs compared: with each other, with their replays, and with themselves in two parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import plesio as ps


def same(one: Any, other: Any) -> bool:
    """Whether the weights, or those of the runs, are the same bit for bit (NaN, too)."""
    ours, theirs = (getattr(run, "state_dict", run) for run in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(bits(ours[name]), bits(theirs[name])) for name in ours)


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.detach().reshape(-1).view(torch.uint8)


def assert_replays(run: ps.Run, train: Callable[..., object], **options: Any) -> None:
    """All versions are computed again, to the same bits."""
    again = ps.replay(run.folder, train, **options)
    assert str(again) == f"bit-identical: {run.version:,} versions, all computed again"
    assert same(run, again)


EACH_QUARTER_SECOND = ps.Checkpoint(every_s=0.25)


def in_two_parts(
    simulated: Callable[..., ps.Run], folder: Path, until: ps.Until, keeps: ps.Checkpoint = EACH_QUARTER_SECOND
) -> tuple[ps.Run, ps.Run, ps.Run]:
    """The whole run, its first part, and the second, which ends at the same version."""
    whole = simulated()
    first = simulated(runs=folder / "a", checkpoint=keeps, until=until)
    assert 0 < first.version < whole.version
    second = simulated(runs=folder / "b", checkpoint=keeps, resume=first.folder)
    assert second.version == whole.version
    return whole, first, second


def by_name(one: Any) -> str | None:
    """Of a strategy among parameters; pytest's own id of others.

    >>> by_name(ps.first_of(2)), by_name(3)
    ('first_of(2)', None)
    """
    return getattr(one, "name", None)
