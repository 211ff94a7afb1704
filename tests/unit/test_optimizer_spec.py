"""An optimizer is rebuilt from plain data unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from plesio.errors import ConfigurationError
from plesio.protocol.coding import decoder_of, encode
from plesio.tensors.carrying import from_plain
from plesio.tensors.optimizer_spec import OptimizerSpec, check_same_optimizers, class_named


class Mine(torch.optim.SGD):
    """Of no module that another process could import."""


Mine.__module__ = "__another_main__"
MAKE: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.25)),  # type: ignore[arg-type]
    lambda ps: torch.optim.SGD([{"params": ps[:1], "momentum": 0.5}, {"params": ps[1:]}], lr=0.5),
    lambda ps: torch.optim.Adafactor(ps),
    lambda ps: Mine(ps, lr=0.5),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_class_settings_and_small_state_round_trip(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((3, 2), (2,))]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, dtype=dtype)
    optimizer.step()
    was = OptimizerSpec.of(optimizer, parameters)
    now = decoder_of(OptimizerSpec)(encode(was))
    assert now.kind is type(optimizer)
    assert str(now.carried) == str(was.carried)
    if now.carried is not None:
        for parameter, after in zip(parameters, now.carried.held, strict=True):
            for key, value in optimizer.state[parameter].items():
                if key not in after.whole:
                    kept = from_plain(after.rest[key])
                    assert torch.equal(value, kept) if torch.is_tensor(value) else value == kept, key
    assert encode(now.groups) == encode(was.groups)
    check_same_optimizers([was], [OptimizerSpec.names_of(optimizer)], 1, 0)


def test_an_optimizer_that_stays_in_the_worker_is_sent_as_names() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
    optimizer.param_groups[0]["odd"] = 1j
    sent = OptimizerSpec.names_of(optimizer)
    assert set(sent.groups[0].values()) == {None}
    assert not sent.defaults


@pytest.mark.parametrize(
    "name", ["nowhere:Mine", "torch.optim:Mine", "torch:Tensor", "os:system", "", ":", "a..b:c", "torch.optim:"]
)
def test_a_name_of_no_optimizer_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="finds no optimizer of that name"):
        class_named(name)
