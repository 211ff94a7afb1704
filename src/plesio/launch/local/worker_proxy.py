"""The proxy of a worker of another host.

To the server and the launcher it is that worker: it holds the worker's line, maps the run's memory, and its end is the
worker's death. What the worker contributes is received straight into its slot. What the worker goes on from is sent straight
from the ring. So no tensor is copied in this process, and a stranger's bytes are parsed apart from the server's. A worker that
says what it may not (`plesio.launch.local.worker_routes`) is hung up on: to the others that is a death.

    worker  --frames-->  proxy  --pipes, channels-->  server, launcher
                        (slot, ring)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from plesio.launch.job import Job
from plesio.launch.local.islands import Ties
from plesio.launch.local.proxy import Launcher, Proxy
from plesio.launch.local.worker_routes import FROM_WORKER, TO_WORKER, WorkerDialogue
from plesio.memory.taking_over import carried_of, loaded
from plesio.protocol import worker as messages
from plesio.protocol.coding import encode
from plesio.protocol.payloads import cut
from plesio.transport.channel import HEAD, Channel, ChannelClosedError
from plesio.transport.doorbell import PLACE, AnswerReader, decode_answer
from plesio.transport.held import Held
from plesio.transport.limits import LEASE_S
from plesio.transport.session import Session
from plesio.transport.wire import Frame, FrameKind


class WorkerProxy(Proxy[WorkerDialogue]):
    """Of a worker; `line`: its ends of channel, push and answer, and of ties to the proxies of its other processes."""

    def __init__(self, job: Job, worker: int, launcher: Launcher, line: Sequence[int], session: Session) -> None:
        dialogue = WorkerDialogue(job.config.strategy)
        super().__init__(job, f"worker {worker}", launcher, session, FROM_WORKER, dialogue)
        self._worker = worker
        self._server: Channel[messages.ToWorker] = Channel.attach(line[0], messages.ToWorker, "the server")
        self._push, self._answers = line[1], AnswerReader(line[2])
        self._ties = Ties(0, line[3:])
        self._held: Held | None = None
        self._listen(self._server.fileno(), self._from_server)
        self._listen(line[2], self._from_answer)
        self._to |= {FrameKind.CHANNEL: self._to_server, FrameKind.DOORBELL: self._to_doorbell}

    # From the worker

    def _to_server(self, frame: Frame, message: Any) -> None:
        match message:
            case messages.Hello():
                trusted = self._job.listening is not None and self._job.listening.trusts
                self._ties.hand(message := message.from_afar(self._worker, trusted))
                message = replace(message, part=())
            case messages.Ready():
                self._ties.hand(message)
        self._server.send(message)

    def _pass_on(self, frame: Frame, message: Any, noted: messages.ToWorker | None) -> None:
        """`noted`: what it is answered at once."""
        if noted is None:
            super()._pass_on(frame, message, noted)
        else:
            self._tell(noted)

    def _to_doorbell(self, frame: Frame, message: object) -> None:
        os.write(self._push, HEAD.pack(len(frame.body)) + frame.body)

    # From the others

    def _tell(self, message: messages.ToWorker | messages.Answer, body: bytes = b"") -> None:
        """Tell the worker, if that may come now."""
        if TO_WORKER[type(message)].when(self._dialogue, message):
            kind, payload = TO_WORKER.told(self._dialogue, message)
            self._session.send(kind, body or encode(message), payload)

    def _from_server(self) -> None:
        if (heard := self._server.hear(LEASE_S)) is None:
            return
        message, descriptors = heard
        self._dialogue.heard(message)
        if isinstance(message, messages.Welcome | messages.Refused):
            self._ties.hand(message, descriptors)
        if isinstance(message, messages.Welcome):
            self._held = self._dialogue.mapped(message, [*descriptors], self._job.config.seats, self._worker)
            if (bell := self._dialogue.bell) is not None:
                self._listen(bell, self._from_bell)
        self._tell(message)

    def _from_bell(self) -> None:
        for served in self._dialogue.rung():
            self._tell(served)

    def _from_answer(self) -> None:
        if (read := self._answers.read()) is None:
            return
        self._dialogue.shown, body = read
        if not body:
            raise ChannelClosedError("the server")
        answer, dialogue = decode_answer(body), self._dialogue
        if self._held is not None and dialogue.begins(answer):
            self._send_state(self._held)
        self._tell(answer, PLACE.pack(dialogue.shown) + body)

    def _send_state(self, held: Held) -> None:
        """What the worker's optimizer goes on with, if that is left for it."""
        if state := held.get(self._worker, self._dialogue.steps):
            payloads = self._dialogue.payloads
            carried, arenas = carried_of(loaded(state)["optimizer"], payloads.layout)
            whole = [one for arena in arenas for one in cut(arena.memory.numpy().data, payloads.everything)]
            self._session.send(FrameKind.CHANNEL, encode(messages.StateGiven(carried)), whole)
