"""What counts as a wait for a device (`support.synchronisations`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.devices import lazy
from support.synchronisations import Synchronisations

WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "_local_scalar_dense": lambda one: one.sum().item(),
    "device to host": lambda one: one.cpu(),
    "host to device": lambda one: one.copy_(torch.zeros(3)),
    "nonzero": lambda one: one.nonzero(),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_read_from_a_device_is_a_wait(what: str) -> None:
    one = torch.ones(3, device=lazy())
    with Synchronisations() as waits:
        WAITS[what](one)
    assert waits.counts == {what: 1}


def test_work_on_the_device_or_the_cpu_alone_is_none() -> None:
    there, here = torch.ones(3, device=lazy(), requires_grad=True), torch.ones(3)
    with Synchronisations() as waits:
        (there * 2).square().sum().backward()
        assert there.grad is not None
        torch._foreach_norm([there.grad])
        there.detach().copy_(there.grad)
        here.sum().item()
        here.clone().copy_(here)
        torch.zeros(3).copy_(there.detach(), non_blocking=True)
    assert waits.total == 0, waits.counts
