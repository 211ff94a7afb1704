"""The process that serves those who only read a run. The server knows it alone, and is asked at most so often.

    reader --> door --a connection that proved itself--> this process, a thread a reader
                                                         (the shelf: a copy of one version)

What readers say is parsed here, and a reader that is slow, hangs or says what it may not holds up nobody but its own thread.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from itertools import count

import torch

from plesio.errors import ConfigurationError
from plesio.launch.job import Job
from plesio.observe.summary import Evaluation
from plesio.protocol import reading
from plesio.protocol.coding import ProtocolError
from plesio.protocol.launcher import Arrived, Evaluated, FromDoor, Stop, TurnedAway
from plesio.reading.line import FarLine, Line, LineLostError, NearLine
from plesio.reading.service import FOLLOWS_S, Known, Service
from plesio.reading.shelf import Sealed, Shelf
from plesio.system.memory import SharedBlock
from plesio.tables.store import load_kernels
from plesio.tensors.arena import Layout
from plesio.transport.board import Board
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly, readable
from plesio.transport.connect import accept
from plesio.transport.limits import LEASE_S
from plesio.transport.secure import ProofError

log = logging.getLogger("plesio")
READERS_MAX = 256
"""How many there may be at a time."""
PAUSE_S = 0.005
"""At most so often the server is asked for a version."""
TELL_S = 1.0
LINGER_S, LINGER_MAX_S = 1.0, FOLLOWS_S
"""How long readers that are there have to take the last version and its rows; the most, if one that just asked has not."""
SEND_TIMEOUT = struct.pack("@ll", int(LEASE_S), 0)
"""For how long a reader of this host may take nothing before it is hung up on, as one of another host is."""


class Readers:
    """The readers of one run."""

    def __init__(
        self, job: Job, launcher: Channel[Stop], server: Channel[reading.VersionGiven], door: Channel[FromDoor]
    ) -> None:
        assert job.reading is not None, "otherwise there is no such process"
        self._job, self._place = job, job.reading
        self._launcher, self._server, self._door = launcher, server, door
        self._bell = os.eventfd(0)
        self.shelf = Shelf(lambda: os.eventfd_write(self._bell, 1))
        self._opened: reading.Opened | None = None
        self._begun = threading.Event()
        self._known: dict[int, Known] = {}
        self._lock = threading.Lock()  # of the launcher's channel
        self._asked_s = self._told_s = 0.0
        self._waits = False  # whether the server was asked

    # The one thread that talks to the server

    def run(self) -> None:
        """Until the launcher hangs up."""
        poller = select.poll()
        hear = {self._server.fileno(): self._from_server, self._door.fileno(): self._from_door, self._bell: self._wakes}
        for descriptor in (self._launcher.fileno(), *hear):
            poller.register(descriptor, select.POLLIN)
        self._ask()
        while True:
            for descriptor, _ in poller.poll(1000 * self._patience_s()):
                if descriptor == self._launcher.fileno():
                    self._see_out()
                    return
                try:
                    hear[descriptor]()
                except ChannelClosedError:
                    poller.unregister(descriptor)
                    if descriptor == self._server.fileno():
                        self.shelf.close()
            if self.shelf.wanted and not self._waits and time.monotonic() - self._asked_s >= PAUSE_S:
                self._ask()
            self._tell()

    def _see_out(self) -> None:
        """The launcher has gone. If the run is over, those who are there may take its last version, and rows."""
        with suppress(ChannelClosedError):
            while readable(self._server.fileno(), 0.0):
                self._from_server()
        self.shelf.close()
        if self.shelf.lost:
            return
        began_s = time.monotonic()
        while self._known and (waited_s := time.monotonic() - began_s) < LINGER_MAX_S:
            if waited_s > LINGER_S and not any(one.follows for one in list(self._known.values())):
                return
            time.sleep(PAUSE_S)

    def _patience_s(self) -> float:
        return PAUSE_S if self.shelf.wanted and not self._waits else TELL_S

    def _wakes(self) -> None:
        os.eventfd_read(self._bell)

    def _ask(self) -> None:
        self._waits, self._asked_s = True, time.monotonic()
        with suppress(ChannelClosedError):
            self._server.send(reading.VersionRequest(self.shelf.since))

    def _from_server(self) -> None:
        told, descriptors = self._server.receive(reading.WITHIN_MAX_S)
        self._waits = False
        if told.model is not None:
            self._begin(told, descriptors)
            descriptors = descriptors[2:]
        assert self._opened is not None, "it comes first"
        weights = Sealed(told.lies.of(self._ring.memory, self.layout).bytes)
        self.shelf.put(told, weights, descriptors)
        self._begun.set()

    def _begin(self, told: reading.VersionGiven, descriptors: list[int]) -> None:
        """The first version says what the model is like."""
        assert told.model is not None, "it has it"
        strategy, seats = self._job.config.strategy, self._job.config.seats
        self.layout = Layout(told.model.specs)
        if told.tables:
            load_kernels()  # now, and not while somebody waits
        self._ring = SharedBlock(descriptors[0], told.lies.nbytes)
        self.board = Board.attach(descriptors[1], seats)
        torn = not strategy.via.at_server
        self._opened = reading.Opened(strategy.name, told.model, told.tables, torn, b"", secrets.token_bytes(16))

    def _tell(self) -> None:
        if time.monotonic() - self._told_s >= TELL_S and self._launcher.has_room:
            self._told_s = time.monotonic()
            with self._lock, suppress(ChannelClosedError):
                self._launcher.send(self._there())

    def _there(self) -> reading.ReadersNow:
        now_s, newest = time.monotonic(), self.newest
        return reading.ReadersNow(tuple(one.now(now_s, newest) for one in list(self._known.values())))

    @property
    def newest(self) -> int:
        """The run's newest version."""
        return self.board.version if self._opened is not None else -1

    # Who comes

    def _from_door(self) -> None:
        message, descriptors = self._door.receive(reading.WITHIN_MAX_S)
        match message:
            case TurnedAway(address, why):
                log.info("%s wanted to read, and was turned away: %s", address, why)
            case Arrived() if len(self._known) >= READERS_MAX:
                close_quietly(*descriptors)
            case Arrived():
                known = Known(message.address, heard_s=time.monotonic())
                self._known[id(known)] = known
                serve = threading.Thread(target=self._serve, args=(message, descriptors[0], known), daemon=True)
                serve.start()

    def _serve(self, arrived: Arrived, descriptor: int, known: Known) -> None:
        try:
            with self._line(arrived, descriptor) as line:
                Service(self, line, known).run()
        except (LineLostError, ProtocolError, ProofError, OSError) as error:
            log.debug("%s reads no longer: %s", known.name, error)
        finally:
            del self._known[id(known)]

    def _line(self, arrived: Arrived, descriptor: int) -> Line[reading.FromReader]:
        connection = socket.socket(fileno=descriptor)
        if arrived.local:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
            return NearLine(connection.detach(), reading.FromReader, arrived.address)
        return FarLine(accept(connection, self._place.token, self._place.credentials), reading.FromReader)

    def begun(self, line: Line[reading.FromReader]) -> reading.Opened:
        """What a run is like that has begun. Raises ConfigurationError if it does not, or nobody can read it; LineLostError if
        nobody waits for it on the `line`."""
        end_s = time.monotonic() + self._job.config.timeout_s
        while not self._begun.wait(TELL_S):
            if readable(line.fileno(), 0.0):  # there is nothing to say
                raise LineLostError("it hung up before the run began")
            if time.monotonic() >= end_s:
                raise ConfigurationError("the run did not begin to train")
        assert self._opened is not None, "it is told first"
        if tables := self._opened.model.tables:
            raise ConfigurationError(
                f"the rows of {next(iter(tables))} are stepped where workers have them, and cannot be read; take ps.Table"
            )
        return self._opened

    def name(self, known: Known, wanted: str) -> None:
        """Call a reader that, or, if another is called so, something like that: names tell their figures apart."""
        wanted = "".join(filter(str.isprintable, wanted))
        with self._lock:
            taken = {one.name for one in list(self._known.values()) if one is not known}
            names = (f"{wanted} ({number})" if number > 1 else wanted for number in count(1))
            known.name = next(one for one in names if one not in taken)

    def evaluated(self, measured: reading.Measured) -> None:
        """Somebody judged a version elsewhere, or is about to: then there are no metrics yet. The run's end waits for those."""
        evaluation = Evaluation(measured.time_s, measured.version, measured.samples, measured.metrics)
        with self._lock, suppress(ChannelClosedError):
            if measured.metrics:
                self._launcher.send(Evaluated(evaluation, final=False, raised=""))
            self._launcher.send(self._there())

    @property
    def worker_token(self) -> str:
        """That of those who may say what the run's metrics are."""
        return self._place.workers_token


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the process. `descriptors`: the launcher, the server, the door."""
    torch.set_num_threads(1)
    launcher: Channel[Stop] = Channel.attach(descriptors[0], Stop, "the launcher")
    server: Channel[reading.VersionGiven] = Channel.attach(descriptors[1], reading.VersionGiven, "the server")
    door: Channel[FromDoor] = Channel.attach(descriptors[2], FromDoor, "the readers' door")
    Readers(job, launcher, server, door).run()
