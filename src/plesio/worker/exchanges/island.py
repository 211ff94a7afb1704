"""Through the server, for a rank of an island, or of a model that torch has split: it exchanges its part."""

from __future__ import annotations

from plesio.worker.exchanges.island_bell import IslandBell
from plesio.worker.exchanges.making import Making
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.replicas.shards import shards_for


def build(made: Making) -> ServerExchange | None:
    """Where this process has a part of the model."""
    if made.shards is None:
        return None
    replica = shards_for(made.strategy)(*made.own, made.place.slot, made.shards, made.shards.leader)
    bell = made.line[0]
    if isinstance(bell, IslandBell):
        bell.tensors, bell.probes = len(made.tensors), replica.probes
    return ServerExchange(made.state, made.optimizer, replica, *made.to_server)
