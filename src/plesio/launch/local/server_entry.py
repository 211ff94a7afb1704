"""The entry of the server process: its ends of all lines, and whether it survives its death."""

from __future__ import annotations

from contextlib import suppress

import torch

from plesio.launch.job import Job
from plesio.launch.local.logged_turns import LoggedTurns
from plesio.launch.local.replicated_turns import ReplicatedTurns
from plesio.launch.local.server_process import Server
from plesio.launch.local.turns import Turns
from plesio.protocol import launcher
from plesio.protocol.evaluator import Asked
from plesio.protocol.journal import JournalWriter
from plesio.protocol.reading import VersionRequest
from plesio.protocol.replication import StateWanted
from plesio.protocol.table_server import FromTableServer
from plesio.server.lines import Line
from plesio.transport.channel import Channel, ChannelClosedError


def main(job: Job, descriptors: list[int]) -> None:
    """`descriptors`: engine, evaluator, readers' process, standbys' process, journal, those of table servers, then channel, push,
    answer of each worker."""
    torch.set_num_threads(job.threads)
    survives, asked = job.config.is_durable, job.config.durability == "process"
    turns: Turns = LoggedTurns(descriptors[0], asked) if survives else Turns()
    rest, world = iter(descriptors), turns.world
    engine: Channel[launcher.ToServer] = world.attach(next(rest), launcher.ToServer, "the engine")
    evaluator: Channel[Asked] | None = None
    if job.evaluate is not None:
        evaluator = world.attach(next(rest), Asked, "the evaluator")
    readers: Channel[VersionRequest] | None = None
    if job.reading is not None:
        readers = world.attach(next(rest), VersionRequest, "the readers' process")
    if job.config.standby:
        heads: Channel[StateWanted] = Channel.attach(next(rest), StateWanted, "the standbys' process")
        turns = ReplicatedTurns(heads, job.config.acknowledge == "standby")
    writer: JournalWriter | None = None
    if job.keeping.journal:
        writer = JournalWriter.begun(next(rest), job.keeping.journal, world.once)
        writer.copied = turns.journalled
    tables: list[Channel[FromTableServer]] = [
        world.attach(next(rest), FromTableServer, f"table server {server}") for server in range(job.table_servers)
    ]
    lines: list[Line | None] = [None] * job.config.seats
    if job.listening is None:
        for worker in range(job.config.workers):
            lines[worker] = Line.open(worker, job.incarnation, rest, world)
    with suppress(ChannelClosedError):  # the engine is gone, and with it whoever wanted the result
        Server(job, engine, evaluator, lines, writer, tables, turns, readers).run()
