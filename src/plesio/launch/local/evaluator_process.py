"""The evaluator process: judges consistent snapshots beside the training, with the user's function.

It copies a version that the server pins and calls `evaluate(model)`. It sends the engine the metrics and the time of the
snapshot. It always judges the last snapshot, which comes when no worker is left.
"""

from __future__ import annotations

import torch

from plesio.host.memory import SharedBlock
from plesio.launch.job import Job
from plesio.launch.local.children import keep_to_itself, reported_to
from plesio.observe.summary import Evaluation
from plesio.protocol.evaluator import Snapshot, SnapshotRequest
from plesio.protocol.launcher import Evaluated
from plesio.server.judge import Judge
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.model import load_structure
from plesio.transport.channel import Channel, readable

FOREVER_S = 10.0**6  # the evaluator has no deadline: it ends with the server's line


def judge_snapshots(job: Job, server: Channel[Snapshot], engine: Channel[object]) -> None:
    """Judge snapshots until the last one, which comes unasked."""
    assert job.evaluate is not None, "otherwise there is no evaluator"
    judgement = Judge(job.evaluate)
    server.send(SnapshotRequest())
    while True:
        snapshot, descriptors = server.receive(FOREVER_S, "a snapshot")
        if snapshot.model is not None:  # the first one says where they are
            layout = Layout(snapshot.model.specs)
            block = SharedBlock(descriptors[0], snapshot.lies.nbytes)
            own = Arena.private(layout)
            model = load_structure(snapshot.structure, layout.specs, own.views)
        own.copy_from(snapshot.lies.of(block.memory, layout))
        evaluation = Evaluation(snapshot.time_s, snapshot.version, snapshot.samples, judgement(model))
        engine.send(Evaluated(evaluation, snapshot.final, judgement.raised))
        if snapshot.final:
            return
        if not readable(server.fileno(), job.config.evaluate_every_s):
            server.send(SnapshotRequest())


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the evaluator process. `descriptors`: engine, server."""
    torch.set_num_threads(1)
    engine: Channel[object] = Channel.attach(descriptors[0], Snapshot, "the engine")
    server: Channel[Snapshot] = Channel.attach(descriptors[1], Snapshot, "the server")
    keep_to_itself(descriptors, engine, server)
    with reported_to(engine):
        judge_snapshots(job, server, engine)
