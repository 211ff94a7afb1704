"""The standbys' process of a head: says whether this head leads, and has standbys follow it.

    launcher --who came through the door--> this process --state, log--> standbys
    server   --log, in memory------------->              <-----Has------
             <--until when it leads, ------              --Beat, ...---> all who vote
                what standbys have

What they say is parsed here. Each standby has a thread, and one that is slow holds up nobody: if it falls behind by more than the
log holds, it begins anew.
"""

from __future__ import annotations

import hmac
import importlib.metadata
import secrets
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from plesio.errors import PlesioError
from plesio.launch.job import Job
from plesio.launch.local.seats import terms_of
from plesio.launch.standby import others
from plesio.launch.standby.contending import Contending
from plesio.launch.standby.followers import Followers
from plesio.launch.standby.voting import dials
from plesio.observe.summary import Incident
from plesio.protocol import remote
from plesio.protocol.coding import ProtocolError, cut, decoder_of, encode
from plesio.protocol.launcher import Arrived, Ended, StandingBy, ToHeads, Trouble
from plesio.protocol.replication import (
    Challenge,
    File,
    Followed,
    FromStandby,
    Has,
    Over,
    Refused,
    StandsBy,
    StateWanted,
    StateWritten,
)
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.connect import accept
from plesio.transport.limits import BEAT_S, HANDSHAKE_S, LEASE_S
from plesio.transport.replication_log import FellBehindError, ReplicationLog
from plesio.transport.secure import VOTES, ProofError, proof_of_standby
from plesio.transport.wire import ConnectionLostError, FrameKind, Wire

TICK_S = 0.1
FENCED_S = 6.0
"""A head that was fenced for so long, and not elected again, ends. If nobody else leads by now, a human has to say who is to."""
GLANCE_S = 0.02
"""How soon a thread looks at the log whose bell another has heard."""
SEES_OUT_S = 2.5
"""How long standbys have to hear that the run is over."""
STATE_S = 600.0
"""How long a standby may take to make a memory of the state that it was sent."""
decode: Callable[[bytes], StandsBy | Has] = decoder_of(FromStandby)


class RunEnded(Exception):
    """In order: standbys are told."""


class Standbys:
    """Those of one head. `server`: tells how the run stands; `launcher`: who comes."""

    def __init__(self, job: Job, launcher: Channel[ToHeads], server: Channel[StateWritten]) -> None:
        assert job.listening is not None, "otherwise nobody may stand by"
        self._job, self._listening = job, job.listening
        self._launcher, self._server = launcher, server
        self._waits = job.config.acknowledge == "standby"
        self._log: ReplicationLog | None = None
        self._states: dict[str, SimpleQueue[StateWritten]] = {}  # by folder
        self._lock = threading.Lock()  # of the places
        self._over = threading.Event()
        self._serving: set[threading.Thread] = set()
        self._fenced_s = inf  # since when
        self._led_s = inf  # until when
        self._contending = Contending(
            True,
            publish=self._publish,
            dial=dials(self._listening.token, self._listening.credentials),
            after=self._listening.takes_over,
        )
        self._followers = Followers(self._contending, self._waits, self._tell_electable)
        self._places = {self._contending.name: self._listening.place}
        self._contending.set_places(self._places)

    def run(self) -> None:
        """Until the launcher hangs up."""
        poller = select.poll()
        hear = {self._launcher.fileno(): self._from_launcher, self._server.fileno(): self._from_server}
        for descriptor in hear:
            poller.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll(1000 * TICK_S):
                try:
                    hear[descriptor]()
                except ChannelClosedError:
                    poller.unregister(descriptor)
                    if descriptor == self._launcher.fileno():
                        self._see_out()
                        return
            self._look()

    def _from_launcher(self) -> None:
        said, descriptors = self._launcher.receive(LEASE_S)
        if isinstance(said, Ended):
            self._over.set()
            return
        serve = threading.Thread(target=self._meet, args=(said, descriptors[0]), daemon=True)
        self._serving.add(serve)
        serve.start()

    def _from_server(self) -> None:
        written, descriptors = self._server.receive(LEASE_S)
        if descriptors:
            self._log = self._followers.log = ReplicationLog.attach(descriptors)
        if (asked := self._states.get(written.folder)) is not None:  # else that standby is gone
            asked.put(written)

    def _see_out(self) -> None:
        """The run is over. If it ended in order, standbys are told; else they go on with it."""
        end_s = time.monotonic() + SEES_OUT_S
        for one in list(self._serving) if self._over.is_set() else ():
            one.join(max(0.0, end_s - time.monotonic()))
        self._contending.close()

    # Who leads

    def _publish(self, leads_s: float) -> None:
        """The server may decide until then; -inf: this is no head, for now at least."""
        self._fenced_s = inf if leads_s > -inf else min(self._fenced_s, time.monotonic())
        self._led_s = leads_s if leads_s > -inf else self._led_s
        if self._log is not None:
            self._log.leads_s = leads_s

    def _look(self) -> None:
        """What changes while nobody says anything."""
        self._followers.look()
        now_s, rejoin_s = time.monotonic(), self._listening.rejoin_s
        if now_s - self._fenced_s > FENCED_S:
            self._contending.leave()
            if self._fenced_s < inf:  # it was not elected again meanwhile
                self._ends("most of the run follows another head by now: this one was cut off from it for too long")
        elif now_s - self._led_s > max(rejoin_s, FENCED_S):
            self._ends(f"most of those who say who is head could not be reached for {rejoin_s:g} s")

    def _ends(self, why: str) -> None:
        """This head may not go on, and somebody has to be told so."""
        self._fenced_s = self._led_s = inf
        self._tell(why, fatal=f"{why}; this head ends")

    def _tell_electable(self, count: int) -> None:
        with suppress(ChannelClosedError):
            self._launcher.send(StandingBy(count))

    # A standby

    def _meet(self, arrived: Arrived, descriptor: int) -> None:
        try:
            wire = accept(socket.socket(fileno=descriptor), self._listening.token, self._listening.credentials)
            if arrived.ticket == VOTES:
                self._contending.add(wire)
            else:
                self._serve(wire, arrived.address)
        except (ConnectionLostError, ChannelClosedError, ProtocolError, ProofError, OSError):
            pass  # it comes back, if it is one
        finally:
            self._serving.discard(threading.current_thread())

    def _serve(self, wire: Wire, address: str) -> None:
        nonce = secrets.token_bytes(32)
        wire.send(FrameKind.CHANNEL, encode(Challenge(nonce)))
        frame = wire.receive(HANDSHAKE_S)
        stands = decode(frame.body) if frame is not None else None
        term = self._contending.term
        if not (isinstance(stands, StandsBy) and term):  # of a head that is fenced there is nothing to follow
            wire.close()
            return
        name = stands.name
        try:
            if not hmac.compare_digest(stands.proof, proof_of_standby(self._listening.token, nonce)):
                raise ProtocolError(
                    "the token of standbys (PLESIO_STANDBY_TOKEN, else that of workers) is another here"
                )
            self._followers.met(name, wire)
            self._admit(wire, stands)
            state = self._tell_state(wire, term, stands)
            self._tell(f"{cut(stands.who)} at {address} stands by")
            if stands.every:
                self._follow_versions(wire, term, stands, state.version)
            else:
                self._follow(wire, name, term, state.begins)
        except (PlesioError, OSError) as error:
            wire.send(FrameKind.CHANNEL, encode(Refused(str(error))))
            wire.part()
        except RunEnded:
            self._say_over(wire)
        except FellBehindError:
            self._tell(f"the standby {cut(stands.who)} fell behind by all that the log holds, and begins anew")
        except ConnectionLostError:
            if not self._over.is_set():
                self._tell(
                    f"the standby {cut(stands.who)} is lost: until one is back, the death of this host ends the run"
                )
        finally:
            self._followers.lost(name, wire)
            wire.close()

    def _admit(self, wire: Wire, stands: StandsBy) -> None:
        """Whether it may follow: once there is a place for it."""
        ours = importlib.metadata.version("plesio")
        if (stands.plesio, stands.protocol) != (ours, remote.PROTOCOL):
            raise ProtocolError(
                f"the head has plesio {ours}, and the standby {stands.plesio}: install the same on both hosts"
            )
        if stands.every and self._waits:
            raise ProtocolError(
                "answers wait for what standbys have (acknowledge='standby'): leave --every-versions out"
            )
        self._wait_for_place(wire, stands.name)

    def _wait_for_place(self, wire: Wire, name: int) -> None:
        """Until there are fewer standbys than the run takes. One that is lost may not be known to be yet."""
        takes, until_s = self._job.config.standby, time.monotonic() + 2 * LEASE_S
        while True:
            if self._followers.others(name) < takes:
                return
            if time.monotonic() > until_s:
                what = (
                    f"as many standbys as the run takes ({takes}) are there: start its head with --standby {takes + 1}"
                )
                raise ProtocolError(what)
            wire.send(FrameKind.BEAT, b"")
            time.sleep(TICK_S)

    def _tell(self, what: str, fatal: str = "") -> None:
        with suppress(ChannelClosedError):
            self._launcher.send(Trouble(Incident(0.0, None, what), fatal, "ServerLostError" if fatal else ""))

    def _tell_state(self, wire: Wire, term: int, stands: StandsBy, after: int = 0) -> StateWritten:
        """How the run stands, once there is version `after`. Whoever votes is told where the standby is."""
        with tempfile.TemporaryDirectory(prefix="plesio-standby-") as folder:
            state = self._state(wire, term, folder, after)
            if state.hello is None:
                raise ProtocolError(f"the head could not write how the run stands: {state.why_not}")
            if not stands.every:
                self._followers.sent(stands.name, state.begins)
            files = sorted(one for one in Path(folder).rglob("*") if one.is_file())
            contents = [(str(one.relative_to(folder)), one.read_bytes()) for one in files]
            if state.journal:
                with open(state.journal, "rb") as journal:
                    contents.append(("journal", journal.read(state.position)))
        with self._lock:
            self._places = self._places | {stands.name: stands.place}
        self._contending.set_places(self._places)
        if path := self._job.keeping.journal:
            others.note(Path(path).parent, {place for place in self._places.values() if place != self._listening.place})
        followed = Followed(
            term, terms_of(self._job), self._settings(), self._places, state.hello, state.begins, state.workers,
            state.read, state.optimizers, len(contents),
        )  # fmt: skip
        wire.send(FrameKind.CHANNEL, encode(followed))
        for path, data in contents:
            wire.send(FrameKind.CHANNEL, encode(File(path, len(data))), [memoryview(data)])
        return state

    def _state(self, wire: Wire, term: int, folder: str, after: int) -> StateWritten:
        """What the server wrote into this folder, once there is that version and nothing waits to be folded."""
        written, heard_s = SimpleQueue[StateWritten](), time.monotonic()
        self._states[folder] = written
        try:
            with suppress(ChannelClosedError):  # it has ended: why, the launcher says
                self._server.send(StateWanted(folder, after))
            while not self._over.is_set():
                with suppress(Empty):
                    return written.get(timeout=TICK_S)
                wire.send(FrameKind.BEAT, b"")
                while _speaks(wire):
                    wire.receive(LEASE_S)
                    heard_s = time.monotonic()
                self._check(term, heard_s)  # one that is gone is not waited for
            raise RunEnded
        finally:
            del self._states[folder]

    def _settings(self) -> dict[str, Any]:
        """Those that the head of the run goes by, and workers need not know."""
        config = self._job.config
        checkpoint = config.checkpoint
        return {
            "until": config.until.goals,
            "on_nonfinite": config.on_nonfinite,
            "threads": self._job.threads,
            "standby": config.standby,
            "acknowledge": config.acknowledge,
            "readers": config.readers,
            "rejoin_s": self._listening.rejoin_s,
            "checkpoint": [checkpoint.every_s, checkpoint.keep] if checkpoint is not None else None,
        }

    def _takes_over(self, wire: Wire, name: int, look: Callable[[], None] = lambda: None) -> None:
        """Wait until it has made a memory of the state, and says so; meanwhile `look`."""
        sent_s = time.monotonic()
        while not (self._hears(wire, name, GLANCE_S) or self._over.is_set()):
            look()
            if time.monotonic() - sent_s > STATE_S:
                raise ConnectionLostError(f"it did not take the state over within {STATE_S:g} s")

    def _hears(self, wire: Wire, name: int, within_s: float) -> bool:
        """Whether it says how much it has, and no mere beat."""
        frame = wire.receive(within_s)
        if frame is None or frame.kind is FrameKind.BEAT or not isinstance(has := decode(frame.body), Has):
            return False
        self._followers.heard(name, wire, has.up_to)
        return True

    def _check(self, term: int, heard_s: float = inf) -> None:
        """A head that was elected again is another, which standbys follow anew."""
        if time.monotonic() - heard_s > LEASE_S or self._contending.term != term:
            raise ConnectionLostError("it said nothing, or follows another head")

    def _say_over(self, wire: Wire) -> None:
        """It hangs up then: who hangs up with words unread takes the last ones back."""
        end_s = time.monotonic() + SEES_OUT_S
        with suppress(ConnectionLostError):
            wire.send(FrameKind.CHANNEL, encode(Over()))
            while time.monotonic() < end_s:
                wire.receive(GLANCE_S)

    def _follow_versions(self, wire: Wire, term: int, stands: StandsBy, version: int) -> None:
        """Have it take a version every so many, until the run is over."""
        while True:
            self._takes_over(wire, stands.name)
            version = self._tell_state(wire, term, stands, version + stands.every).version

    def _follow(self, wire: Wire, name: int, term: int, at: int) -> None:
        """Send what comes on the log, and hear how much of it is there, until the run is over."""
        log = self._log
        assert log is not None, "the server opened it"
        poller = select.poll()
        for descriptor in (log.bell, wire.fileno()):
            poller.register(descriptor, select.POLLIN)
        self._takes_over(wire, name, lambda: log.check(at))
        heard_s, told_s = time.monotonic(), 0.0
        while True:
            over = self._over.is_set()
            log.heard(log.bell)
            for entry in log.entries(at):
                wire.send(FrameKind.CHANNEL, entry.message, entry.payload)
                log.check(at)
                at = entry.end
                self._followers.sent(name, at)
                told_s = time.monotonic()
            if over:
                raise RunEnded
            while _speaks(wire):
                self._hears(wire, name, LEASE_S)
                heard_s = time.monotonic()
            self._check(term, heard_s)
            if time.monotonic() - told_s > BEAT_S:
                wire.send(FrameKind.BEAT, b"")
                told_s = time.monotonic()
            poller.poll(1000 * GLANCE_S)


def _speaks(wire: Wire) -> bool:
    return wire.has_input or wire.wait(0.0)


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the process. `descriptors`: the launcher, the server."""
    launcher: Channel[ToHeads] = Channel.attach(descriptors[0], ToHeads, "the launcher")
    server: Channel[StateWritten] = Channel.attach(descriptors[1], StateWritten, "the server")
    Standbys(job, launcher, server).run()
