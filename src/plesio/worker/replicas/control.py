"""SCAFFOLD in a worker: each client steps by its gradient, corrected by what all clients' gradients were of late.

    g <- g - c_i + c                              each local step
    c_i+ = c_i - c + (x - y_i) / sum of rates     when client i ends: the mean gradient of its turn
    x <- x + lr / |S| sum (y_i - x),  c <- c + 1 / N sum (c_i+ - c_i)      the round's version

c is in the version: beside each trained tensor lies one of its shape (`TensorSpec.beside`), which no optimizer moves. So what
clients move it by travels, is folded and is kept as what they move the model by. c_i is kept by the client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import SGD, Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Arena
from plesio.tensors.several import parts_of
from plesio.worker.replicas.parameters import ParameterReplica

KEPT = "scaffold"


class ControlVariates:
    """Those of the client whose turn it is; `rate`: lr, of the server."""

    def __init__(self, replica: ParameterReplica, optimizer: Optimizer, rate: float) -> None:
        self._replica, self._optimizer, self._rate = replica, optimizer, rate
        beside = [index for index, spec in enumerate(replica.layout.specs) if spec.beside]
        self._places = dict(zip(replica.places, beside, strict=True))

    def begin(self, kept: dict[str, Any], drawn: int, clients: int) -> None:
        """A client's turn begins, one of so many that were drawn of so many; it has `kept` this."""
        self._kept, self._share, self._all_share = kept, 1 / drawn, 1 / (clients * self._rate)
        self._groups = {id(one): group for group in self._plain_groups() for one in group["params"]}
        self._common = [self._replica.arena.views[beside].clone() for beside in self._places.values()]
        self._own = kept.get(KEPT) or list(map(torch.zeros_like, self._common))
        self._correction = [c - own.to(c.device) for c, own in zip(self._common, self._own, strict=True)]
        self._rates = [0.0] * len(self._common)

    def _plain_groups(self) -> list[dict[str, Any]]:
        parts = parts_of(self._optimizer)
        groups = [group for one in parts for group in one.param_groups]
        if any(type(one) is not SGD for one in parts) or any(one["momentum"] or one["maximize"] for one in groups):
            kinds = " and ".join(type(one).__name__ for one in parts)
            raise ConfigurationError(
                f"ps.scaffold: a client's mean gradient is how far it moved, by the rates of its steps, and {kinds} moves it "
                "otherwise; prepare torch.optim.SGD with momentum=0 (weight_decay and a changing lr are right), or take ps.fedavg"
            )
        return groups

    @torch.no_grad()
    def correct(self) -> None:
        """The gradients of a step that is about to be taken. A parameter without one has a gradient of zero."""
        stepping = self._replica.stepping
        for at, index in enumerate(self._places):
            if index not in stepping:
                continue
            tensor = self._replica.tensors[index]
            slope = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.to_dense()
            tensor.grad = slope.add_(self._correction[at])
            self._rates[at] += float(self._groups[id(tensor)]["lr"])

    def end(self, moved: Arena) -> None:
        """The turn is over and counts: `moved` has how far it moved the model, and is to have what that is of the version."""
        now = []
        for at, (index, beside) in enumerate(self._places.items()):
            delta, c, own, rate = moved.views[index], self._common[at], self._own[at], self._rates[at]
            change = delta / -rate - c if rate else torch.zeros_like(c)
            now.append(own.to(c.device) + change)
            moved.views[beside].copy_(change.mul_(self._all_share))
            delta.mul_(self._share)
        self._kept[KEPT] = now
