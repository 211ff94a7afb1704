"""The entry of the server process: its ends of all lines, and which of the two servers they are for."""

from __future__ import annotations

from contextlib import suppress

import torch

from plesio.host.recovery_log import RecoveryLog
from plesio.launch.job import Job
from plesio.launch.local.durable_server import DurableServer, remembering
from plesio.launch.local.server_process import Server
from plesio.protocol import launcher
from plesio.protocol.evaluator import Asked
from plesio.protocol.journal import JournalWriter
from plesio.protocol.table_server import FromTableServer
from plesio.server.lines import Line
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.world import DIRECT


def main(job: Job, descriptors: list[int]) -> None:
    """`descriptors`: engine, evaluator, journal, those of table servers, then channel, push, answer of each worker."""
    torch.set_num_threads(job.threads)
    log = RecoveryLog() if job.config.is_durable else None
    world = remembering(log) if log is not None else DIRECT
    rest = iter(descriptors)
    engine: Channel[launcher.ToServer] = world.attach(next(rest), launcher.ToServer, "the engine")
    evaluator: Channel[Asked] | None = None
    if job.evaluate is not None:
        evaluator = world.attach(next(rest), Asked, "the evaluator")
    writer = JournalWriter.begun(next(rest), job.keeping.journal) if job.keeping.journal else None
    tables: list[Channel[FromTableServer]] = [
        world.attach(next(rest), FromTableServer, f"table server {server}") for server in range(job.table_servers)
    ]
    lines: list[Line | None] = [None] * job.config.seats
    if job.listening is None:
        for worker in range(job.config.workers):
            lines[worker] = Line.open(worker, job.incarnation, rest, world)
    if log is not None:
        server: Server = DurableServer(job, engine, evaluator, lines, writer, tables, world, log)
    else:
        server = Server(job, engine, evaluator, lines, writer, tables)
    with suppress(ChannelClosedError):  # the engine is gone, and with it whoever wanted the result
        server.run()
