"""A step that no longer counts is left before the next layer's forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from plesio.errors import StepCancelled


def check_before_layers(model: nn.Module, cancelled: Callable[[], bool]) -> None:
    """Before each layer's forward pass, ask whether the step is `cancelled`."""
    for module in model.modules():
        if next(module.children(), None) is None:
            module.register_forward_pre_hook(_CancellationCheck(cancelled))


class _CancellationCheck:
    """Before a layer's forward pass: leave the step if it was called off. It is not saved or copied with the model."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled

    def __call__(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        if self._cancelled():
            raise StepCancelled("this step no longer counts")

    def __reduce__(self) -> Any:
        return getattr, ({}, "get")  # it loads where there is no plesio; {}.get(module, inputs) gives the inputs back
