"""A worker's warning points at the user's line, however many of plesio's lie between."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from plesio.worker.optimizer import ExchangedOptimizer
from plesio.worker.warn import warn_not_finite


def test_warnings_point_at_the_users_step() -> None:
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    state = SimpleNamespace(parts_now=False, leaving=False, left_here=None)
    exchange = SimpleNamespace(local=False, by_client=False, state=state, step=partial(warn_not_finite, 3))
    optimizer = ExchangedOptimizer(plain, exchange, SimpleNamespace(before_step=lambda: None), lambda _: None)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # wraps step in a function of torch's
    with pytest.warns(RuntimeWarning, match="worker 3: a contribution held a NaN") as caught:
        optimizer.step()
    assert caught[0].filename == __file__
