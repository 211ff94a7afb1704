"""A worker's copy of the model, by what its strategy sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from plesio.strategy import Strategy
from plesio.strategy.answers import Delta
from plesio.worker.replicas.parameters import BlendingReplica, DeltaReplica, ParameterReplica
from plesio.worker.replicas.parts import PartedReplica
from plesio.worker.replicas.replica import GradientReplica, Replica


def replica_for(strategy: Strategy) -> Callable[..., Replica]:
    """The class of a worker's replica, and what it is told of the strategy."""
    if strategy.adopt.blends:
        return partial(BlendingReplica, alpha=strategy.adopt.alpha)  # type: ignore[union-attr]
    if strategy.send.differs:
        send: Delta = strategy.send  # type: ignore[assignment]
        private = send.privacy is not None
        kind = DeltaReplica if send.fragments == 1 else PartedReplica
        return partial(kind, codec=send.codec, feedback=send.feedback, private=private)
    return ParameterReplica if strategy.send.stepped else GradientReplica
