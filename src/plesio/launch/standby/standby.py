"""`plesio standby`: follow a head from another host, and go on in its place if it is lost.

    look for a head --> take its state --> follow its log --> elected --> write a checkpoint, and be a head that goes on from it
          ^                                    |
          +------ the line is lost ------------+    (what it has stays good until a head gives it another state)

Or, in place of the log, it takes the state again every so many versions.

Whatever ends the head's process ends the line. Whether the run has lost its head is for those who vote to say.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from math import inf
from pathlib import Path, PurePosixPath
from typing import TypeVar

import torch

from plesio.config import RunConfig
from plesio.config.checkpoint import Checkpoint
from plesio.config.until import Until
from plesio.errors import CheckpointError, ConfigurationError, ServerLostError
from plesio.launch.local.door import Door
from plesio.launch.local.forkserver import ForkServer
from plesio.launch.local.listen import DoorSockets
from plesio.launch.standby.contending import Contending
from plesio.launch.standby.shadow import Shadow
from plesio.launch.standby.voting import dials
from plesio.protocol import remote
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.headship import Place
from plesio.protocol.launcher import Arrived, FromDoor
from plesio.protocol.replication import (
    Came,
    Challenge,
    Did,
    File,
    Followed,
    FromHead,
    Has,
    Over,
    Refused,
    RowsCame,
    StandsBy,
)
from plesio.strategy import Strategy
from plesio.transport.channel import Channel, ChannelClosedError, channel_pair, close_quietly
from plesio.transport.connect import accept, connect
from plesio.transport.limits import BEAT_S, LEASE_S
from plesio.transport.replication_log import FRAME
from plesio.transport.secure import STANDBY, VOTES, ProofError, proof_of_standby
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, Wire

log = logging.getLogger("plesio")
CONNECT_S = 2.0
"""How long to try to connect with one that may be head: a host that is gone answers nothing."""
GLANCE_S = 0.02
"""How often it is looked whether this one was elected."""
RETRY_S = 0.25
"""How long it waits before it looks for a head again."""
JOURNAL = "journal"
FOREVER_S = 1e6
M = TypeVar("M")
decode: Callable[[bytes], object] = decoder_of(FromHead)


class RunOver(Exception):
    """The run ended, and its head said so."""


class Standby:
    """One that listens at `door`, and looks for its head at `places`. `runs`: where its copy of the run goes. It takes a version
    `every` so many, or (0) all that the head does."""

    def __init__(self, places: Sequence[Place], door: DoorSockets, runs: Path, every: int = 0) -> None:
        self._places, self._door, self._runs, self._every = list(places), door, runs, every
        try:
            runs.mkdir(parents=True, exist_ok=True)
            self._copy = Path(tempfile.mkdtemp(prefix="standby-", dir=runs))
        except OSError as error:
            raise _cannot_write(error) from error
        self._shadow: Shadow | None = None
        self._followed: Followed | None = None
        self._came = self._bytes = 0  # contributions or versions, and what came in all
        self._heard_s = 0.0
        self._keeps = False
        self._elected = threading.Event()
        listening = door.listening
        self._contending = Contending(
            False,
            elected=lambda term: self._elected.set(),
            dial=dials(listening.token, listening.credentials),
        )
        self._contending.set_places({self._contending.name: listening.place})

    def wait(self, within_s: float) -> tuple[RunConfig, DoorSockets] | None:
        """Follow until this one is head: what it goes on with, and where it listens. None: the run is over.

        Raises:
            ServerLostError: for `within_s` there is no head, and this one is not elected, or cannot lead. What it has is kept.
            ConfigurationError: the head refuses it, or what it sends cannot be written here.
            PlesioError: what comes of it here is not what the head has.
        """
        ForkServer.shared()  # it imports torch now, and not when somebody waits
        with ExitStack() as ending:
            ending.callback(self._clear)
            ending.callback(self._contending.close)
            try:
                with _OpenDoor(self._door, self._contending):
                    self._stand_by(within_s)
                promoted = self._promoted()
            except RunOver:
                what = "versions" if self._every else "contributions"
                log.info("followed %s %s in %s bytes", f"{self._came:,}", what, f"{self._bytes:,}")
                return None
            except OSError as error:
                raise _cannot_write(error) from error
            ending.pop_all()
            return promoted

    def _stand_by(self, within_s: float) -> None:
        """Until this one is head."""
        until_s, told = time.monotonic() + within_s, False
        while not self._leads():
            try:
                with closing(self._line()) as wire:
                    self._begin(wire)
                    until_s, told = inf, False
                    (self._follow_versions if self._every else self._follow)(wire)
            except (ConnectionLostError, ProtocolError) as error:
                until_s = min(until_s, time.monotonic() + within_s)
                if not told:
                    log.info("there is no head: %s", error)
                    told = True
                if time.monotonic() > until_s:
                    why = f"no head: tried to reach {self._at} for {within_s:g} s ({error})"
                    raise self._lost(f"{why}, and this standby was not elected") from None

    def _lost(self, why: str) -> ServerLostError:
        """Nobody goes on. What is here is written, for a human to resume."""
        if self._shadow is None:
            return ServerLostError(why)
        self._keeps = True
        folder, version = self._shadow.write(), self._shadow.version
        return ServerLostError(
            f"{why}; to go on from version {version}, which is here, begin a head with --resume {folder}"
        )

    def _clear(self) -> None:
        if not self._keeps:
            shutil.rmtree(self._copy, ignore_errors=True)

    @property
    def _at(self) -> str:
        return " and ".join(f"{host}:{port}" for host, port in self._places)

    def _leads(self) -> bool:
        """Whether it was elected, and most who vote know that nobody else may be. Between two looks for a head it waits a bit."""
        if not self._elected.wait(RETRY_S):
            return False
        within_s = self._door.listening.rejoin_s
        until_s = time.monotonic() + within_s
        while self._contending.awaits or self._contending.leads_until_s < time.monotonic():
            if self._contending.leads_until_s == -inf:  # another was, later
                self._elected.clear()
                return False
            if time.monotonic() > until_s:
                raise self._lost(
                    f"this standby was elected, and then most who vote could not be reached for {within_s:g} s"
                )
            time.sleep(GLANCE_S)
        return True

    # As a standby

    def _line(self) -> Wire:
        """A connection with a head."""
        listening, lost = self._door.listening, ConnectionLostError("no place is known")
        for place in self._places:
            try:
                return connect(*place, listening.token, listening.credentials, STANDBY, CONNECT_S)
            except (OSError, ConnectionLostError) as error:
                lost = ConnectionLostError(str(error))
        raise lost

    def _begin(self, wire: Wire) -> None:
        """Take over how the run stands."""
        nonce, version = self._hear(wire, Challenge).nonce, importlib.metadata.version("plesio")
        who, listening = f"{socket.gethostname()}:{os.getpid()}", self._door.listening
        name, proof = self._contending.name, proof_of_standby(listening.token, nonce)
        stands = StandsBy(who, version, remote.PROTOCOL, name, listening.place, proof, self._every)
        wire.send(FrameKind.CHANNEL, encode(stands))
        self._take(wire)
        log.info("standing by for %s, from version %d", wire.peer, self._shadow.version if self._shadow else 0)

    def _take(self, wire: Wire) -> None:
        """Take over how the run stands. Until all of that is here, what was here before is good."""
        followed = self._hear(wire, Followed, beats=True)
        folder = Path(tempfile.mkdtemp(dir=self._copy))
        with ExitStack() as failed:
            failed.callback(shutil.rmtree, folder, ignore_errors=True)
            for _ in range(followed.files):
                self._take_file(wire, folder)
            if not self._contending.forgets():
                raise ConnectionLostError("this one is elected")
            failed.pop_all()
        self._shadow = None
        for old in set(self._copy.iterdir()) - {folder}:
            shutil.rmtree(old)
        torch.set_num_threads(followed.settings["threads"])  # sums depend on that
        self._shadow = Shadow(followed, folder, folder / JOURNAL)
        self._followed = followed
        self._contending.set_places(followed.places)
        self._places = [place for name, place in followed.places.items() if name != self._contending.name]
        if not self._contending.begins(followed.term):
            raise ConnectionLostError("there is a later head by now")

    def _take_file(self, wire: Wire, folder: Path) -> None:
        file = self._hear(wire, File)
        name, data = PurePosixPath(file.name), bytearray(file.nbytes)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            raise ProtocolError(f"the head sent a file called {file.name!r}")
        wire.read_payload([memoryview(data)])
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        self._bytes += file.nbytes

    def _frame(self, wire: Wire) -> Frame | None:
        """What has come, if it is no beat. The head says something once a second."""
        frame, now_s = wire.receive(GLANCE_S), time.monotonic()
        if frame is not None:
            self._heard_s = now_s
        elif now_s - self._heard_s > LEASE_S:
            raise ConnectionLostError(f"{wire.peer} said nothing for {LEASE_S:g} s")
        return frame if frame is not None and frame.kind is not FrameKind.BEAT else None

    def _hear(self, wire: Wire, kind: type[M], beats: bool = False) -> M:
        """What is due next. `beats`: that may take long, and this one says meanwhile that it is there."""
        self._heard_s = told_s = time.monotonic()  # what was done before may have taken longer than a lease
        while (frame := self._frame(wire)) is None:
            if self._elected.is_set():
                raise ConnectionLostError("this one is elected")
            if beats and time.monotonic() - told_s > BEAT_S:
                wire.send(FrameKind.BEAT, b"")
                told_s = time.monotonic()
        message = decode(frame.body)
        if isinstance(message, Over):
            raise RunOver
        if isinstance(message, Refused):
            raise ConfigurationError(message.why)
        if not isinstance(message, kind):
            raise ProtocolError(f"the head said {type(message).__name__} where {kind.__name__} was due")
        return message

    def _follow_versions(self, wire: Wire) -> None:
        """Take a version every so many, until this one is head, or the line is lost."""
        while self._followed is not None and not self._elected.is_set():
            self._came += 1
            wire.send(FrameKind.CHANNEL, encode(Has(self._followed.begins)))
            self._take(wire)

    def _follow(self, wire: Wire) -> None:
        """Do what the head does, until this one is head, or the line is lost."""
        shadow, followed = self._shadow, self._followed
        assert shadow is not None and followed is not None, "it has begun"
        at, told_s, self._heard_s = followed.begins, 0.0, time.monotonic()
        while not self._elected.is_set():
            if time.monotonic() - told_s > BEAT_S:
                wire.send(FrameKind.CHANNEL, encode(Has(at)))
                told_s = time.monotonic()
            if (frame := self._frame(wire)) is None:
                continue
            message = decode(frame.body)
            at += FRAME.size + len(frame.body) + frame.payload_bytes
            self._bytes += len(frame.body) + frame.payload_bytes
            match message:
                case Came() | RowsCame():
                    wire.read_payload(shadow.place(message))
                    shadow.came(message)
                    self._came += isinstance(message, Came)
                case Did():
                    wire.send(FrameKind.CHANNEL, encode(Has(at)))  # first: a worker may wait for that
                    told_s = self._heard_s
                    shadow.did(message)
                case Over():
                    raise RunOver
                case _:
                    raise ProtocolError(f"the head said {type(message).__name__} out of turn")

    # As head

    def _readers(self, there: bool | str | None) -> bool | str | None:
        """Where the run is read from now on: at this host, by the same port."""
        return f"{self._door.listening.host}:{there.rpartition(':')[2]}" if isinstance(there, str) else there

    def _promoted(self) -> tuple[RunConfig, DoorSockets]:
        """Write what there is, and go on from it."""
        shadow, followed = self._shadow, self._followed
        assert shadow is not None and followed is not None, "nobody elects one that has nothing"
        log.info("elected: this is the head now, and goes on from version %d", shadow.version)
        self._keeps = True  # nobody else may have it, whatever happens to what is written now
        folder = shadow.write()
        term = self._contending.term
        self._contending.close()  # the head's process contends from now on
        terms, settings = followed.terms, followed.settings
        keeps = settings["checkpoint"]
        config = RunConfig(
            strategy=Strategy.from_data(terms.name, terms.strategy),
            workers=terms.workers,
            workers_max=terms.seats if terms.seats > terms.workers else None,
            seed=terms.seed,
            threads=settings["threads"],
            timeout_s=terms.timeout_s,
            data="leases" if terms.stealing else "shards",
            on_worker_error="continue" if terms.lenient else "raise",
            on_nonfinite=settings["on_nonfinite"],
            until=Until(**settings["until"]),
            standby=settings["standby"],
            acknowledge=settings["acknowledge"],
            readers=self._readers(settings["readers"]),
            checkpoint=Checkpoint(every_s=keeps[0], keep=keeps[1]) if keeps else None,
            resume=folder,
            runs=self._runs,
        )
        listening = replace(self._door.listening, rejoin_s=settings["rejoin_s"], takes_over=term)
        return config, DoorSockets(listening, self._door.sockets)


def _cannot_write(error: OSError) -> CheckpointError:
    return CheckpointError(f"this standby cannot go on: {error}; make room, or give another folder (--runs)")


class _OpenDoor:
    """Inside, those who vote are let in at the door, and nobody else; behind it, whoever comes waits for the next door."""

    def __init__(self, door: DoorSockets, contending: Contending) -> None:
        self._door, self._contending = door, contending

    def __enter__(self) -> None:
        self._ours, self._theirs = channel_pair()
        door = Door(Channel(self._theirs, FromDoor, "the standby"), self._door.sockets, self._door.listening.token)
        self._threads = [
            threading.Thread(target=door.run, name="plesio-door", daemon=True),
            threading.Thread(target=self._let_in, name="plesio-hall", daemon=True),
        ]
        for one in self._threads:
            one.start()

    def _let_in(self) -> None:
        channel: Channel[FromDoor] = Channel(self._ours, FromDoor, "the door")
        with suppress(ChannelClosedError):
            while True:
                said, descriptors = channel.receive(FOREVER_S)
                if isinstance(said, Arrived) and said.ticket == VOTES:
                    self._meet(descriptors[0])
                else:
                    close_quietly(*descriptors)

    def _meet(self, descriptor: int) -> None:
        listening = self._door.listening
        with suppress(OSError, ProofError):
            self._contending.add(accept(socket.socket(fileno=descriptor), listening.token, listening.credentials))

    def __exit__(self, *_: object) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)
        for one in self._threads:
            one.join()
        self._ours.close()
        self._theirs.close()
