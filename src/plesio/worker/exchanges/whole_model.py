"""Through the server, for a worker that has the whole model, with its tables."""

from __future__ import annotations

from plesio.capabilities import halves
from plesio.strategy import Strategy
from plesio.tables.module import named_tables
from plesio.worker.exchanges.by_client import ClientExchange
from plesio.worker.exchanges.making import Making
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.replicas import load_kernels
from plesio.worker.row_exchange import RowExchange


def build(made: Making) -> ServerExchange:
    """Where nothing else is the case."""
    first, *later = made.strategy.phases
    replica = made.replica(first)
    load_kernels(made.place.layout, later)
    exchange = _kind(made.strategy)(
        made.state, made.optimizer, replica, *made.to_server, replicate=made.replica, brought=made.place.brought
    )
    if (rows := made.place.rows) is not None:
        several = any(one.send.stepped for one in made.strategy.phases)
        reader = made.state.worker if rows.slots[0].readers > 1 else 0  # in places of its own
        exchange.has_tables(RowExchange(named_tables(made.model), rows.slots, reader, rows.ask, rows.send, several))
    return exchange


def _kind(strategy: Strategy) -> type[ServerExchange]:
    usual = ClientExchange if strategy.every.by_client else ServerExchange
    return next((half.WorkerHalf for half in halves(strategy, "worker")), usual)
