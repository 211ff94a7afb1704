"""SCAFFOLD in a worker: each client steps by its gradient, corrected by what all clients' gradients were of late.

    g <- g - c_i + c                              each local step
    c_i+ = c_i - c + (x - y_i) / sum of rates     when client i ends: the mean gradient of its turn
    x <- x + lr / |S| sum (y_i - x),  c <- c + 1 / N sum (c_i+ - c_i)      the round's version

c is in the version: beside each trained tensor lies one of its shape (`TensorSpec.beside`), which no optimizer moves. So what
clients move it by travels, is folded and is kept as what they move the model by. c_i is kept by the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Arena, Kind
from plesio.worker.replicas.parameters import ParameterReplica

KEPT = "scaffold"


class ControlVariates:
    """Those of the client whose turn it is; `rate`: lr, of the server."""

    def __init__(self, replica: ParameterReplica, rate: float) -> None:
        specs = replica.layout.specs
        trained = [index for index, spec in enumerate(specs) if spec.kind is Kind.TRAINED and not spec.beside]
        beside = [index for index, spec in enumerate(specs) if spec.beside]
        self._places, self._replica, self._rate = list(zip(trained, beside, strict=True)), replica, rate
        self._at = {id(replica.tensors[index]): at for at, index in enumerate(trained)}

    def begin(self, kept: dict[str, Any], drawn: int, clients: int) -> None:
        """The turn of a client that has `kept` this begins; it is one of those `drawn` of so many."""
        self._kept, self._share, self._share_of_all = kept, 1 / drawn, 1 / (clients * self._rate)
        self._common = [self._replica.arena.views[beside].clone() for _, beside in self._places]
        own = kept.get(KEPT) or map(torch.zeros_like, self._common)
        self._own = [mine.to(c.device) for mine, c in zip(own, self._common, strict=True)]
        self._rates = [0.0] * len(self._own)

    @contextmanager
    def correcting(self, optimizer: Optimizer) -> Iterator[None]:
        """While it steps, gradients are corrected, and one that is not there is zero; then they are the user's again."""
        _check(optimizer)
        mine = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                at = self._at.get(id(parameter))
                if at is None or not parameter.requires_grad:
                    continue
                mine.append((parameter, parameter.grad))
                correction = self._common[at] - self._own[at]
                parameter.grad = correction if parameter.grad is None else correction + parameter.grad.to_dense()
                self._rates[at] += float(group["lr"])
        yield
        for parameter, gradient in mine:
            parameter.grad = gradient

    def end(self, moved: Arena) -> None:
        """The turn counts: of how far the client `moved` the model, make what it moves the version by."""
        now = []
        for at, (index, beside) in enumerate(self._places):
            delta, c, own, rate = moved.views[index], self._common[at], self._own[at], self._rates[at]
            change = delta / -rate - c if rate else torch.zeros_like(c)
            now.append(own + change)
            moved.views[beside].copy_(change.mul_(self._share_of_all))
            delta.mul_(self._share)
        self._kept[KEPT] = now


def _check(optimizer: Optimizer) -> None:
    if type(optimizer) is not SGD or any(one["momentum"] or one["maximize"] for one in optimizer.param_groups):
        raise ConfigurationError(
            "ps.scaffold: a client's mean gradient is how far it moved, by the rates of its steps, and "
            f"{type(optimizer).__name__} moves it otherwise; prepare torch.optim.SGD with momentum=0 (a changing lr and "
            "weight_decay are right), or take ps.fedavg"
        )
