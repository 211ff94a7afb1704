"""What a run may be able to do beside training: which capabilities a worker has (`plesio.worker.capability`)."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.tensors.model import tables_in
from plesio.worker.capability import Capability
from plesio.worker.clients.lent import LeasedClients
from plesio.worker.context import WorkerContext
from plesio.worker.given import Given, How
from plesio.worker.row_gradients import Tables
from plesio.worker.schedule import RunSchedule
from plesio.worker.shared_tables import SharedTables


def those_of(given: Given, how: How, context: WorkerContext, schedules: Sequence[RunSchedule]) -> list[Capability]:
    """In the order in which they are told. What is to become a table does so now. `schedules`: those prepared, also later."""
    able: list[Capability] = [Tables(given.convert(how.tables) if how.tables is not None else [])]
    if not context.inline and (shared := tables_in(given.model)):  # in one process they would share what waits
        able.append(SharedTables(list(shared.values()), context.state))
    return [*able, *(LeasedClients(one, context, schedules) for one in given.clients)]
