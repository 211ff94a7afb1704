"""A worker's copy of the model, by what its strategy sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from plesio.strategy import Strategy
from plesio.strategy.answers import Delta
from plesio.tensors.arena import CPU, Layout
from plesio.tensors.packing import Packing
from plesio.worker.replicas.on_device import DeviceGradientReplica
from plesio.worker.replicas.packed import PackedGradientReplica
from plesio.worker.replicas.parameters import BlendingReplica, DeltaReplica, ParameterReplica
from plesio.worker.replicas.parts import PartedReplica
from plesio.worker.replicas.replica import GradientReplica, Replica


def replica_for(strategy: Strategy, device: torch.device) -> Callable[..., Replica]:
    """The class of a worker's replica, and what it is told of the strategy; `device`: the model's."""
    if strategy.adopt.blends:
        return partial(BlendingReplica, alpha=strategy.adopt.alpha)  # type: ignore[union-attr]
    if strategy.send.differs:
        send: Delta = strategy.send  # type: ignore[assignment]
        # corrected or masked, what had no gradient moves, too
        private = send.privacy is not None or send.control or send.secure is not None
        kind = DeltaReplica if send.fragments == 1 else PartedReplica
        return partial(
            kind, codec=send.codec, feedback=send.feedback, private=private, may_come_late=strategy.may_come_late
        )
    if strategy.send.stepped:
        return ParameterReplica
    if strategy.send.codec is not None:
        return partial(PackedGradientReplica, strategy=strategy)
    return GradientReplica if device == CPU else DeviceGradientReplica


def load_kernels(layout: Layout, later: Sequence[Strategy]) -> None:
    """Those that the replicas of later phases need, so that a switch does not wait for them."""
    for codec in (one.send.codec for one in later):
        if codec is not None:
            Packing(layout, codec).ready()
