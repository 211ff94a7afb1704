"""Entry of a proxy's process: whose it is to be turns out when somebody knocks."""

from __future__ import annotations

from contextlib import suppress

import torch

from plesio.launch.job import Job
from plesio.launch.local.proxy import Launcher, first_words, opened
from plesio.launch.local.rank_proxy import RankProxy
from plesio.launch.local.table_proxy import TableProxy
from plesio.launch.local.worker_proxy import WorkerProxy
from plesio.protocol import remote
from plesio.protocol.coding import ProtocolError, encode
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.limits import SEAT_S
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, FrameKind, Wire


def main(job: Job, descriptors: list[int]) -> None:
    """`descriptors`: launcher, connection. Whatever ends this is a death of whom it stands for, and ends nobody else."""
    torch.set_num_threads(1)
    launcher: Launcher = Channel.attach(descriptors[0], remote.ToProxy, "the launcher")
    wire = opened(job, descriptors[1])
    if wire is None:
        return
    try:
        _serve(job, launcher, wire)
    except (ChannelClosedError, BrokenPipeError, ConnectionLostError):
        pass  # the server, the launcher or the worker is gone
    except ProtocolError as error:
        launcher.send(remote.SeatRefused("PlesioError", f"{wire.peer}: {error}"))


def _serve(job: Job, launcher: Launcher, wire: Wire) -> None:
    """Have the launcher give a seat to whoever is at the other end, and be its proxy."""
    knock = first_words(wire)
    if isinstance(knock, remote.Resume):
        why = "its seat was given up: nobody came back to it within the lease, or the head is another"
        wire.send(FrameKind.SESSION, encode(remote.SeatRefused("PlesioError", why)))
    if not isinstance(knock, remote.Knock):
        return
    launcher.send(knock)
    reply, line = launcher.receive(SEAT_S, "a seat")
    if not isinstance(reply, remote.SeatGiven):
        wire.send(FrameKind.SESSION, encode(reply))
        return
    wire.send(FrameKind.SESSION, encode(reply.seated))
    kind = TableProxy if knock.holds_rows else RankProxy if knock.leader else WorkerProxy
    session = Session(wire, knock.who)
    wire.eager = kind.eager
    try:
        kind(job, reply.seated.worker, launcher, line, session).run()
    except ProtocolError as error:
        with suppress(ConnectionLostError):
            session.send(FrameKind.SESSION, encode(remote.SeatRefused("PlesioError", f"the head hung up: {error}")))
        raise
