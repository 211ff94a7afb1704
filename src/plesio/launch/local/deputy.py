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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import torch

from plesio.launch.job import Job
from plesio.launch.local.deputy_rows import DeputyRows
from plesio.launch.local.islands import Ties
from plesio.launch.local.mate import MateDeputy, parts
from plesio.launch.local.order import Order, Pull, Said
from plesio.launch.local.stand_in import StandIn, first_words, opened
from plesio.launch.local.table_deputy import TableDeputy
from plesio.memory.taking_over import carried_of, loaded
from plesio.protocol import remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.launcher import Failed, Finished
from plesio.protocol.payloads import WORDS, Payloads, cut, payloads_of, words_in
from plesio.tensors.arena import Arena
from plesio.tensors.rows import in_range
from plesio.transport.channel import HEAD, Channel, ChannelClosedError
from plesio.transport.doorbell import PLACE, AnswerReader, decode_answer
from plesio.transport.held import Held
from plesio.transport.limits import LEASE_S, SEAT_S
from plesio.transport.ring import Ring
from plesio.transport.row_slots import RowSlots
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, Frame, Wire
from plesio.transport.wire import Kind as FrameKind

decode_to_server: Callable[[bytes], messages.ToServer] = decoder_of(messages.ToServer)
decode_to_launcher: Callable[[bytes], remote.ToLauncher] = decoder_of(remote.ToLauncher)
decode_from_worker: Callable[[bytes], messages.FromWorker] = decoder_of(messages.FromWorker)


class Deputy(StandIn):
    """Stands in for `worker`, which is at the other end of `session`; `line`: its ends of channel, push and answer, and of
    ties to the deputies of its mates."""

    _payloads: Payloads  # once it said Hello

    def __init__(
        self, job: Job, worker: int, launcher: Channel[remote.ToDeputy], line: Sequence[int], session: Session
    ) -> None:
        super().__init__(job, f"worker {worker}", launcher, session)
        self._worker = worker
        self._seats = job.config.seats
        self._server: Channel[messages.ToWorker] = Channel.attach(line[0], messages.ToWorker, "the server")
        self._push, self._answers = line[1], AnswerReader(line[2])
        self._ties = Ties(0, line[3:])
        self._order = Order(job.config.strategy)
        self._ring = Ring[memoryview]([])
        self._slot = memoryview(b"")
        self._held: Held | None = None
        self._shown_at = 0
        self._listen(self._server.fileno(), self._from_server)
        self._listen(line[2], self._from_answer)
        self._hear |= {
            FrameKind.CHANNEL: self._to_server,
            FrameKind.DOORBELL: self._to_doorbell,
            FrameKind.LAUNCHER: self._to_launcher,
            FrameKind.PULL: self._pulled,
        }

    # From the worker

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
        elif isinstance(message, messages.RowsRequest) and self._order.rows is not None:
            self._order.rows.check_keys(message)
        self._order.note(message)

    def _check_sound(self, made: messages.Contribution) -> None:
        layout, packing = self._payloads.layout, self._payloads.packing
        if not in_range(layout, self._slot, made.rows):
            raise ProtocolError("it sent a row that a table does not have")
        if packing is not None and made.finite:
            slot = Arena(layout, torch.frombuffer(self._slot, dtype=torch.uint8))
            if not packing.is_sound(slot, made.beside.part):
                raise ProtocolError("it sent a packing that no codec makes")

    def _place(self, message: Said) -> Sequence[memoryview]:
        rows = self._order.rows
        match message:
            case messages.Contribution(number=number, beside=beside):
                tensors = cut(self._slot, self._payloads.spans(message))
                return [*tensors, *rows.gradients(number)] if rows is not None and beside.rows else tensors
            case messages.RowsRequest() if rows is not None:
                return rows.keys(message)
            case messages.Ready():
                whole = self._payloads.everything
                return [one for arena in self._ring.leading(self._order.copies) for one in cut(arena, whole)]
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
            self._payloads = payloads_of(message, self._job.config.strategy)
            self._ties.hand(message)
            message = msgspec.structs.replace(message, part=())
        if isinstance(message, messages.Ready):
            self._ties.hand(message)
        if isinstance(message, messages.RowsRequest) and not message.wanted:
            self._send_rows(ahead=True)
        else:
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

    # From the others

    def _from_server(self) -> None:
        if (heard := self._server.hear(LEASE_S)) is None:
            return
        message, descriptors = heard
        if isinstance(message, messages.Welcome | messages.Refused):
            self._ties.hand(message, descriptors)
        if isinstance(message, messages.Welcome):
            self._map(message, descriptors)
        self._order.told(message)
        if isinstance(message, messages.RowsServed):
            self._send_rows(message.ahead)
        else:
            self._session.send(FrameKind.CHANNEL, encode(message))

    def _from_servers(self, bell: int) -> None:
        os.eventfd_read(bell)
        assert self._order.rows is not None, "it asked for rows"
        for ahead in self._order.rows.just_served():
            self._order.rows.served(ahead)
            self._send_rows(ahead)

    def _send_rows(self, ahead: bool) -> None:
        """The worker, or the server, has done its part; if both have, the values are sent."""
        assert self._order.rows is not None, "it asked for rows"
        if (request := self._order.rows.due(ahead)) is not None:
            served = encode(messages.RowsServed(ahead))
            self._session.send(FrameKind.CHANNEL, served, self._order.rows.values(request))

    def _map(self, welcome: messages.Welcome, descriptors: Sequence[int]) -> None:
        ring, slots, board, *rest = descriptors
        nbytes = self._payloads.layout.nbytes
        if self._order.hello is not None and (tables := self._order.hello.tables):
            if welcome.servers > 1:
                bell = rest.pop()  # that several servers of rows ring
                self._listen(bell, partial(self._from_servers, bell))
            places = [RowSlots.attach(one, tables, self._seats + 1) for one in rest[-welcome.servers :]]
            self._order.rows = DeputyRows(places, self._worker)
        self._ring = Ring(parts(ring, nbytes, welcome.buffers))
        os.close(board)
        self._held = Held(rest[0]) if len(rest) > welcome.servers else None
        self._slot = parts(slots, nbytes, self._seats)[self._worker]

    def _from_answer(self) -> None:
        if (read := self._answers.read()) is None:
            return
        self._shown_at, body = read
        if not body:
            raise ChannelClosedError("the server")
        answer = decode_answer(body)
        self._order.told(answer)
        if self._held is not None and (isinstance(answer, messages.Beginning) or answer.phase != self._payloads.phase):
            self._send_state(self._held)
        packed = self._payloads.is_packed(answer)
        shown = self._ring.packed(self._shown_at) if packed else self._ring.buffers[self._shown_at]
        payload = cut(shown.read, self._payloads.spans(answer))
        if isinstance(answer, messages.GoOn) and answer.part == WORDS:
            payload = [words_in(self._slot, head=True)]
        if answer.phase != self._payloads.phase:
            self._payloads = self._payloads.turned_to(answer.phase)
        self._session.send(FrameKind.ANSWER, PLACE.pack(self._shown_at) + body, payload)

    def _send_state(self, held: Held) -> None:
        """What the worker's optimizer goes on with, if that is left for it."""
        if state := held.get(self._worker, self._order.steps):
            carried, arenas = carried_of(loaded(state)["optimizer"], self._payloads.layout)
            whole = [one for arena in arenas for one in cut(arena.memory.numpy().data, self._payloads.everything)]
            self._session.send(FrameKind.CHANNEL, encode(messages.StateGiven(carried)), whole)


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
    kind = TableDeputy if knock.holds_rows else MateDeputy if knock.captain else Deputy
    session = Session(wire, knock.who)
    wire.eager = kind.eager
    try:
        kind(job, reply.seated.worker, launcher, line, session).run()
    except ProtocolError as error:
        with suppress(ConnectionLostError):
            session.send(FrameKind.SESSION, encode(remote.Refused("PlesioError", f"the head hung up: {error}")))
        raise
