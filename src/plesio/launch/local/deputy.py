"""A deputy: the process that stands in for a worker of another host.

To the server and the launcher it is that worker: it holds the worker's line, maps the run's memory, and its end is the
worker's death. What the worker contributes is received straight into its slot. What the worker goes on from is sent straight
from the ring. So no tensor is copied in this process, and a stranger's bytes are parsed apart from the server's. A worker that
says what it may not (`plesio.launch.local.order`) is hung up on: to the others that is a death.

    worker  --frames-->  deputy  --pipes, channels-->  server, launcher
                        (slot, ring)
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import torch

from plesio.host.memory import SharedBlock
from plesio.launch.job import Job
from plesio.launch.local.order import Order, Pull, Said
from plesio.protocol import remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.launcher import Failed, Finished
from plesio.protocol.payloads import Payloads, cut
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.rows import in_range
from plesio.transport.board import Board
from plesio.transport.channel import HEAD, Channel, ChannelClosedError
from plesio.transport.connect import accept
from plesio.transport.doorbell import ANSWER_LAYOUT, Lookout, decode_answer
from plesio.transport.limits import BEAT_S, HANDSHAKE_S, LEASE_S, RETURN_S, SEAT_S
from plesio.transport.ring import Ring
from plesio.transport.secure import ProofError
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, Frame, HungUpError, Wire
from plesio.transport.wire import Kind as FrameKind

TICK_S = 0.2
decode_knock: Callable[[bytes], remote.FromNewcomer] = decoder_of(remote.FromNewcomer)
decode_to_server: Callable[[bytes], messages.ToServer] = decoder_of(messages.ToServer)
decode_to_launcher: Callable[[bytes], remote.ToLauncher] = decoder_of(remote.ToLauncher)
decode_from_worker: Callable[[bytes], messages.FromWorker] = decoder_of(messages.FromWorker)


class Deputy:
    """Stands in for `worker`, which is at the other end of `session`; `line`: its ends of channel, push and answer."""

    _payloads: Payloads  # once it said Hello

    def __init__(
        self, job: Job, worker: int, launcher: Channel[remote.ToDeputy], line: Sequence[int], session: Session
    ) -> None:
        self._job = job
        self._worker = worker
        self._seats = job.config.seats
        self._launcher = launcher
        self._server: Channel[messages.ToWorker] = Channel.attach(line[0], messages.ToWorker, "the server")
        self._push, self._answer = line[1:]
        self._session = session
        self._order = Order(job.config.strategy)
        self._ring = Ring[memoryview]([])
        self._slot = memoryview(b"")
        self._board: Board | None = None
        self._news = remote.BoardNews(0, 0)
        self._shown_at = 0
        self._parted = False
        self._until_s = 0.0  # without a connection: when the worker's time to come back is over
        self._hear = {
            FrameKind.SESSION: self._part,
            FrameKind.CHANNEL: self._to_server,
            FrameKind.DOORBELL: self._to_doorbell,
            FrameKind.LAUNCHER: self._to_launcher,
            FrameKind.PULL: self._pulled,
        }

    def run(self) -> None:
        """Pass on what is said, until the worker, the server or the launcher is gone, or the worker says what it may not."""
        poller, watched = select.poll(), -1
        for descriptor in (self._launcher.fileno(), self._server.fileno(), self._answer):
            poller.register(descriptor, select.POLLIN)
        lookout = Lookout(poller)
        while not self._parted and not (self._until_s and time.monotonic() > self._until_s):
            if watched != (now := self._session.fileno()):
                if watched >= 0:
                    poller.unregister(watched)
                if now >= 0:
                    poller.register(now, select.POLLIN)
                watched = now
            ready = {descriptor for descriptor, _ in lookout.wait(0.0 if self._session.has_input else TICK_S)}
            try:
                if self._launcher.fileno() in ready:
                    self._from_launcher()
                if watched in ready or self._session.has_input:
                    while self._from_worker():
                        pass
                if self._server.fileno() in ready:  # while the worker is away, its session keeps what it is told
                    self._from_server()
                if self._answer in ready:
                    self._from_answer()
                self._tick()
            except ConnectionLostError as lost:
                self._cut(hung_up=isinstance(lost, HungUpError))

    def _cut(self, hung_up: bool) -> None:
        """The worker has the lease to come back, or less if it `hung_up`; anew, if its next connection comes to nothing."""
        if not self._until_s:
            self._session.close()
            self._until_s = time.monotonic() + RETURN_S if hung_up else self._session.heard_s + LEASE_S
            self._launcher.send(remote.Away(True))

    def _tick(self) -> None:
        now_s = time.monotonic()
        if self._until_s:
            return
        if now_s - self._session.heard_s > LEASE_S:
            raise ConnectionLostError(f"worker {self._worker} said nothing for {LEASE_S:g} s")
        if now_s - self._session.told_s > BEAT_S:
            self._session.beat()
        if self._board is not None:
            news = remote.BoardNews(self._board.broken, self._board.mirror_wanted)
            if news != self._news:
                self._news = news
                self._order.mirrors = max(self._order.mirrors, news.mirror_wanted)
                self._session.send(FrameKind.CHANNEL, encode(news))

    # From the worker

    def _from_worker(self) -> bool:
        """Pass one frame on; whether there was one."""
        frame = self._session.receive(0.0)
        if frame is None:
            return False
        handler = self._hear.get(frame.kind)
        if handler is None:
            raise ProtocolError(f"it sent a frame of kind {frame.kind.name}, as only a head does")
        handler(frame)
        return not self._parted

    def _heard(self, frame: Frame, message: Said) -> None:
        """Make sure that it may say this, and read what comes with it to where it belongs."""
        self._order.check(message)
        into = self._place(message)
        sent, expected = frame.payload_bytes, sum(view.nbytes for view in into)
        if sent != expected:
            raise ProtocolError(f"it sent {sent} bytes with {type(message).__name__}; {expected} were expected")
        if expected:
            self._session.read_payload(into)
        if isinstance(message, messages.Contribution):
            self._check_sound(message)
        self._order.note(message)

    def _check_sound(self, made: messages.Contribution) -> None:
        layout, packing = self._payloads.layout, self._payloads.packing
        if not in_range(layout, self._slot, made.rows):
            raise ProtocolError("it sent a row that a table does not have")
        if packing is not None and made.finite:
            slot = Arena(layout, torch.frombuffer(self._slot, dtype=torch.uint8))
            if not packing.is_sound(slot):
                raise ProtocolError("it sent a packing that no codec makes")

    def _place(self, message: Said) -> Sequence[memoryview]:
        match message:
            case messages.Contribution():
                return cut(self._slot, self._payloads.spans(message))
            case messages.Ready():
                return self._ring.leading(self._order.copies)
            case messages.MirrorFilled():
                return self._ring.leading(1)
            case messages.Farewell() if self._order.wanted:  # the last weights
                return [self._ring.buffers[self._shown_at].read]
        return ()

    def _to_server(self, frame: Frame) -> None:
        message = decode_to_server(frame.body)
        if isinstance(message, messages.Hello):
            if self._job.listening is None or not self._job.listening.trusts:
                message = message.without_code()
            model = msgspec.structs.replace(message.model, tables={})  # of another host: nothing to look for here
            message = msgspec.structs.replace(message, worker=self._worker, model=model)
        self._heard(frame, message)
        if isinstance(message, messages.Hello):
            self._payloads = Payloads(Layout(message.model.specs), self._job.config.strategy)
        self._server.send(message)

    def _to_doorbell(self, frame: Frame) -> None:
        self._heard(frame, decode_from_worker(frame.body))
        os.write(self._push, HEAD.pack(len(frame.body)) + frame.body)

    def _to_launcher(self, frame: Frame) -> None:
        message = decode_to_launcher(frame.body)
        self._heard(frame, message)
        self._launcher.send(message)
        if isinstance(message, (Finished, Failed)):
            self._session.send(FrameKind.BEAT, b"")  # it waits for the word that this has come

    def _pulled(self, frame: Frame) -> None:
        self._heard(frame, Pull())
        self._session.send(FrameKind.TENSORS, b"", cut(self._ring.buffers[self._shown_at].read, self._payloads.moving))

    def _part(self, frame: Frame) -> None:
        if not isinstance(decode_knock(frame.body), remote.Parted):
            raise ProtocolError("it asked for a seat, and has one")
        self._parted = True

    # From the others

    def _from_launcher(self) -> None:
        """The worker is there again, on another connection, which may be lost before all is said: then it comes again."""
        message, descriptors = self._launcher.receive(LEASE_S)
        if isinstance(message, remote.Refused):  # the run ended, for this reason
            self._session.send(FrameKind.SESSION, encode(message))
            raise ChannelClosedError("the launcher")
        wire = opened(self._job, descriptors[0])
        if wire is None:
            return
        try:
            knock = first_words(wire)
            if not isinstance(knock, remote.Resume):
                raise ProtocolError("it has a ticket, and does not resume")
            wire.send(FrameKind.SESSION, encode(remote.Resumed(self._session.received)))
        except (ConnectionLostError, ProtocolError):
            wire.close()
            return
        self._until_s = 0.0
        self._session.resume(wire, knock.received)
        self._launcher.send(remote.Away(False))

    def _from_server(self) -> None:
        message, descriptors = self._server.receive(LEASE_S)
        if isinstance(message, messages.Welcome):
            self._map(message, descriptors)
        self._order.told(message)
        self._session.send(FrameKind.CHANNEL, encode(message))

    def _map(self, welcome: messages.Welcome, descriptors: Sequence[int]) -> None:
        ring, slots, board = descriptors
        nbytes = self._payloads.layout.nbytes
        self._ring = Ring(_parts(ring, nbytes, welcome.buffers))
        if self._job.config.strategy.via.at_server:
            os.close(board)
            self._slot = _parts(slots, nbytes, self._seats)[self._worker]
        else:
            os.close(slots)
            self._board = Board.attach(board, self._seats)

    def _from_answer(self) -> None:
        data = os.read(self._answer, ANSWER_LAYOUT.size)
        if len(data) < ANSWER_LAYOUT.size:
            raise ChannelClosedError("the server")
        self._shown_at, body = ANSWER_LAYOUT.unpack(data)
        answer = decode_answer(body)
        self._order.told(answer)
        payload: list[memoryview] = []
        if isinstance(answer, messages.Beginning | messages.GoOn):
            packed = isinstance(answer, messages.GoOn) and self._payloads.answers is not None
            shown = self._ring.packed(self._shown_at) if packed else self._ring.buffers[self._shown_at]
            payload = cut(shown.read, self._payloads.spans(answer))
        self._session.send(FrameKind.ANSWER, body, payload)


def _parts(descriptor: int, nbytes: int, count: int) -> list[memoryview]:
    """The block behind a descriptor, cut into `count` arenas' bytes."""
    block = SharedBlock(descriptor, nbytes * count)
    whole = block.memory.numpy().data
    block.close()
    return [whole[index * nbytes : (index + 1) * nbytes] for index in range(count)]


def opened(job: Job, descriptor: int) -> Wire | None:
    """The connection behind a descriptor, once whoever is at its other end has proved itself; None if that failed."""
    assert job.listening is not None, "a deputy's worker comes through the door"
    try:
        return accept(socket.socket(fileno=descriptor), job.listening.token, job.listening.credentials)
    except (OSError, ProofError):
        return None


def first_words(wire: Wire) -> remote.FromNewcomer | None:
    """What a connection begins with, if that came in time."""
    frame = wire.receive(HANDSHAKE_S)
    return decode_knock(frame.body) if frame is not None else None


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of a deputy. `descriptors`: launcher, connection. Whatever ends it is its worker's death, and ends nobody else."""
    torch.set_num_threads(1)
    launcher: Channel[remote.ToDeputy] = Channel.attach(descriptors[0], remote.ToDeputy, "the launcher")
    wire = opened(job, descriptors[1])
    if wire is None:
        return
    try:
        _serve(job, launcher, wire)
    except (ChannelClosedError, BrokenPipeError, ConnectionLostError):
        pass  # the server, the launcher or the worker is gone
    except ProtocolError as error:
        launcher.send(remote.Refused("PlesioError", f"{wire.peer}: {error}"))


def _serve(job: Job, launcher: Channel[remote.ToDeputy], wire: Wire) -> None:
    """Have the launcher give a seat to whoever is at the other end, and be its deputy."""
    knock = first_words(wire)
    if isinstance(knock, remote.Resume):
        why = "its seat was given up: nobody came back to it within the lease, or the head is another"
        wire.send(FrameKind.SESSION, encode(remote.Refused("PlesioError", why)))
    if not isinstance(knock, remote.Knock):
        return
    launcher.send(knock)
    reply, line = launcher.receive(SEAT_S, "a seat")
    if not isinstance(reply, remote.Seat):
        wire.send(FrameKind.SESSION, encode(reply))
        return
    wire.send(FrameKind.SESSION, encode(reply.seated))
    session = Session(wire, knock.who)
    try:
        Deputy(job, reply.seated.worker, launcher, line, session).run()
    except ProtocolError as error:
        with suppress(ConnectionLostError):
            session.send(FrameKind.SESSION, encode(remote.Refused("PlesioError", f"the head hung up: {error}")))
        raise
