"""The evaluator process: judges consistent snapshots beside the training, with the user's function.

It copies a version that the server pins and calls `evaluate(model)`. It sends the engine the metrics and the time of the
snapshot. It always judges the last snapshot, which comes when no worker is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf

import torch

from plesio.config.evaluations import pause_s
from plesio.launch.job import Job
from plesio.launch.local.children import keep_to_itself, reported_to
from plesio.observe.summary import Evaluation
from plesio.protocol.evaluator import Judged, Snapshot, SnapshotRequest, Told
from plesio.protocol.launcher import Evaluated
from plesio.protocol.rows import RowsRequest
from plesio.server.judge import Judge
from plesio.system.memory import SharedBlock
from plesio.tables.module import named_tables
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.model import load_structure
from plesio.transport.channel import Channel, readable
from plesio.transport.row_slots import RowSlots, wait_served
from plesio.worker.row_exchange import RowExchange

FOREVER_S = 10.0**6  # the evaluator has no deadline: it ends with the server's line


def judge_snapshots(job: Job, server: Channel[Told], engine: Channel[object]) -> None:
    """Judge snapshots until the last one, which comes unasked."""
    assert job.evaluate is not None, "otherwise there is no evaluator"
    judgement, wait_s = Judge(job.evaluate), pause_s(job.config.evaluations)
    wait_s = wait_s if wait_s < inf else 0.0  # the server answers when one is due
    early: deque[tuple[Told, list[int]]] = deque()  # the last snapshot, if it came while rows were waited for
    rows: RowExchange | None = None
    server.send(SnapshotRequest())
    while True:
        snapshot, descriptors = early.popleft() if early else server.receive(FOREVER_S, "a snapshot")
        assert isinstance(snapshot, Snapshot), "rows come while it judges"
        if snapshot.model is not None:  # the first one says where they are
            layout = Layout(snapshot.model.specs)
            block = SharedBlock(descriptors[0], snapshot.lies.nbytes)
            own = Arena.private(layout)
            model = load_structure(snapshot.structure, layout.specs, own.views)
            if snapshot.tables:
                reader, fds = snapshot.reader, descriptors[1 : 1 + snapshot.servers]
                slots = [RowSlots.attach(fd, snapshot.tables, reader + 1) for fd in fds]
                ask = partial(_ask, server, early, slots, descriptors[-1])
                rows = RowExchange(named_tables(model), slots, reader, ask)
        if rows is not None:
            rows.begin_to_read()
        own.copy_from(snapshot.lies.of(block.memory, layout))
        evaluation = Evaluation(snapshot.time_s, snapshot.version, snapshot.samples, judgement(model))
        engine.send(Evaluated(evaluation, snapshot.final, judgement.raised))
        if snapshot.final:
            return
        if rows is not None:
            server.send(Judged())
        if not early and not readable(server.fileno(), wait_s):
            server.send(SnapshotRequest())


def _ask(
    server: Channel[Told],
    early: deque[tuple[Told, list[int]]],
    slots: Sequence[RowSlots],
    bell: int,
    request: RowsRequest,
) -> None:
    """Return when the rows lie there: the one server says it, several ring the bell."""
    server.send(request)
    several, reader = len(slots) > 1, slots[0].readers - 1
    while not (several and wait_served(slots, reader, request, bell, server.fileno(), FOREVER_S)):
        came = server.receive(FOREVER_S, "rows of tables, or the last snapshot")
        if not isinstance(came[0], Snapshot):
            return
        early.append(came)


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the evaluator process. `descriptors`: engine, server."""
    torch.set_num_threads(1)
    engine: Channel[object] = Channel.attach(descriptors[0], Snapshot, "the engine")
    server: Channel[Told] = Channel.attach(descriptors[1], Told, "the server")
    keep_to_itself(descriptors, engine, server)
    with reported_to(engine):
        judge_snapshots(job, server, engine)
