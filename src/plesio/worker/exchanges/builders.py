"""Which exchange a worker has: each file of one has a builder, which makes it where it is the one."""

from __future__ import annotations

from plesio.worker.exchanges import island, own_step, shared_memory, whole_model
from plesio.worker.exchanges.all_reduce import exchange as all_reduce
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.exchanges.making import Builder, Making

BUILDERS: tuple[Builder, ...] = (
    shared_memory.build,
    own_step.build,
    all_reduce.build,
    island.build,
    whole_model.build,
)
"""In this order. The last one is for whoever is left."""


def exchange_of(made: Making) -> Exchange:
    """By the first that has one."""
    return next(exchange for build in BUILDERS if (exchange := build(made)) is not None)
