"""The deputy of a mate: a rank of an island on another host that is not its captain.

To the launcher it is that rank. The server does not know it: what the worker says, the captain says. A mate puts its part of the
tensors into the worker's slot before, and takes its part of a version after. It says no more than which buffer.

    captain's deputy --Hello, Welcome (descriptors), Ready--> this --Welcome--> mate
    mate --Holds, Put (part)--> this: slot      mate --Get--> this: ring --part--> mate
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from plesio.host.memory import SharedBlock
from plesio.launch.job import Job
from plesio.launch.local.islands import Ties
from plesio.launch.local.order import parts_fit
from plesio.launch.local.stand_in import StandIn
from plesio.protocol import remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.launcher import Failed, Finished, StopRequest
from plesio.protocol.payloads import PartPayloads, cut
from plesio.tensors.arena import Layout
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.limits import LEASE_S
from plesio.transport.session import Session
from plesio.transport.wire import Frame
from plesio.transport.wire import Kind as FrameKind

decode_holds: Callable[[bytes], remote.Holds] = decoder_of(remote.Holds)
decode_put: Callable[[bytes], remote.Put] = decoder_of(remote.Put)
decode_get: Callable[[bytes], remote.Get] = decoder_of(remote.Get)
decode_said: Callable[[bytes], StopRequest | Finished | Failed] = decoder_of(StopRequest | Finished | Failed)


class MateDeputy(StandIn):
    """Stands in for a mate of `worker`, which is at the other end of `session`; `line`: the tie to its captain's deputy."""

    def __init__(
        self, job: Job, worker: int, launcher: Channel[remote.ToDeputy], line: Sequence[int], session: Session
    ) -> None:
        super().__init__(job, f"a rank of worker {worker}", launcher, session)
        self._worker = worker
        self._tie = Ties(1, line).channels[0]
        self._layout = Layout([])
        self._first = False  # whether what training begins with comes from its worker
        self._ring: list[memoryview] = []  # once its worker was welcomed
        self._slot = memoryview(b"")
        self._payloads: PartPayloads | None = None  # once it said what it holds
        self._listen(self._tie.fileno(), self._from_captain)
        self._hear |= {
            FrameKind.CHANNEL: self._holds,
            FrameKind.TENSORS: self._put,
            FrameKind.PULL: self._get,
            FrameKind.LAUNCHER: self._to_launcher,
        }

    def _from_captain(self) -> None:
        try:
            message, descriptors = self._tie.receive(LEASE_S)
        except ChannelClosedError:  # at the end of the run, or the launcher ends this process, too
            self._forget(self._tie.fileno())
            return
        if isinstance(message, messages.Hello):
            self._layout = Layout(message.model.specs)
            return
        if isinstance(message, messages.Ready):
            self._first = False  # what training begins with is the server's
            return
        if isinstance(message, messages.Welcome):
            self._first = message.first
            ring, slots, *others = descriptors
            self._ring = parts(ring, self._layout.nbytes, message.buffers)
            self._slot = parts(slots, self._layout.nbytes, self._job.config.seats)[self._worker]
            for one in others:
                os.close(one)
        self._session.send(FrameKind.CHANNEL, encode(message))

    def _holds(self, frame: Frame) -> None:
        part = decode_holds(frame.body).part
        if not self._ring or self._payloads is not None or not parts_fit(part, self._layout.specs):
            raise ProtocolError("it holds what is no part of its worker's model")
        self._payloads = PartPayloads(self._layout, self._job.config.strategy, part)

    def _put(self, frame: Frame) -> None:
        put = decode_put(frame.body)
        if put.slot:
            into = cut(self._slot, self._own.sent)
        else:
            if not (self._first and 0 <= put.copy < len(self._ring)):
                raise ProtocolError(f"it put its part into copy {put.copy} of what training begins with, out of turn")
            into = cut(self._ring[put.copy], self._own.everything)
        sent, expected = frame.payload_bytes, sum(view.nbytes for view in into)
        if sent != expected:
            raise ProtocolError(f"it put {sent} bytes; {expected} were expected")
        if expected:
            self._session.read_payload(into)
        self._session.send(FrameKind.TENSORS, b"")

    def _get(self, frame: Frame) -> None:
        get = decode_get(frame.body)
        if not 0 <= get.buffer < len(self._ring):
            raise ProtocolError(f"it asked for buffer {get.buffer} of {len(self._ring)}")
        spans = self._own.everything if get.all else self._own.moving
        self._session.send(FrameKind.TENSORS, b"", cut(self._ring[get.buffer], spans))

    @property
    def _own(self) -> PartPayloads:
        if self._payloads is None:
            raise ProtocolError("it said nothing of what it holds")
        return self._payloads

    def _to_launcher(self, frame: Frame) -> None:
        self._launcher.send(decode_said(frame.body))
        self._session.send(FrameKind.BEAT, b"")  # it waits for the word that this has come


def parts(descriptor: int, nbytes: int, count: int) -> list[memoryview]:
    """The block behind a descriptor, cut into `count` arenas' bytes."""
    block = SharedBlock(descriptor, nbytes * count)
    whole = block.memory.numpy().data
    block.close()
    return [whole[index * nbytes : (index + 1) * nbytes] for index in range(count)]
