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
from plesio.transport.replication_log import ALL, FellBehindError, ReplicationLog
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


class Standbys:
    """Those of one head. `server`: tells how the run stands; `launcher`: who comes."""

    def __init__(self, job: Job, launcher: Channel[ToHeads], server: Channel[StateWritten]) -> None:
        assert job.listening is not None, "otherwise nobody may stand by"
        self._job, self._listening = job, job.listening
        self._launcher, self._server = launcher, server
        self._waits = job.config.acknowledge == "standby"
        self._log: ReplicationLog | None = None
        self._states: dict[str, SimpleQueue[StateWritten]] = {}  # by folder
        self._lock = threading.Lock()  # of what follows
        self._has: dict[int, int] = {}  # by standby: up to where
        self._sent: dict[int, int] = {}  # by standby: up to where
        self._wires: dict[int, Wire] = {}  # by standby
        self._awaited: dict[int, int] = {}  # those that answers wait for: what each needs to have to be elected
        self._electable: set[int] = set()
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
            self._log = ReplicationLog.attach(descriptors)
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
        with self._lock:
            self._say_who_has()
        now_s, rejoin_s = time.monotonic(), self._listening.rejoin_s
        if now_s - self._fenced_s > FENCED_S:
            self._ends("most of the run follows another head by now: this one was cut off from it for too long")
        elif now_s - self._led_s > max(rejoin_s, FENCED_S):
            self._ends(f"most of those who say who is head could not be reached for {rejoin_s:g} s")

    def _ends(self, why: str) -> None:
        """This head may not go on, and somebody has to be told so."""
        self._fenced_s = self._led_s = inf
        self._tell(why, fatal=f"{why}; this head ends")

    def _say_who_has(self) -> None:
        """Up to where all have the log that an answer waits for."""
        if self._log is None:
            return
        awaited = self._awaited.keys() | self._contending.awaits if self._waits else ()
        has = min((self._has.get(name, 0) for name in awaited), default=ALL)
        if has != self._log.has:
            self._log.has = has
            self._log.rings_back()

    def _say_electable(self) -> None:
        self._contending.set_electable(self._electable)
        with suppress(ChannelClosedError):
            self._launcher.send(StandingBy(len(self._electable)))

    def _heard(self, name: int, wire: Wire, up_to: int) -> None:
        """A standby has so much. It may be elected once it has all that was answered before answers waited for it."""
        assert self._log is not None, "it has some of it"
        with self._lock:
            if self._wires.get(name) is not wire:  # it has another by now
                return
            self._has[name] = up_to
            if name not in self._awaited:
                self._awaited[name] = 0
                self._say_who_has()
                self._awaited[name] = self._log.written if self._waits else 0
            if name not in self._electable and up_to >= self._awaited[name]:
                self._electable.add(name)
                self._say_electable()
            self._say_who_has()

    def _note_sent(self, name: int, at: int) -> None:
        """A standby was sent the log up to there: what is before may be overwritten."""
        assert self._log is not None, "the server opened it"
        with self._lock:
            self._sent[name] = at
            self._log.sent = min(self._sent.values())

    def _met(self, name: int, wire: Wire) -> None:
        """Its line before may not be known to be lost: this one takes its place."""
        with self._lock:
            before, self._wires[name] = self._wires.get(name), wire
            self._forget(name)
        if before is not None:
            before.cut()

    def _lost(self, name: int, wire: Wire) -> None:
        with self._lock:
            if self._wires.get(name) is wire:
                del self._wires[name]
                self._forget(name)

    def _forget(self, name: int) -> None:
        """It has nothing of the log, for now at least."""
        self._sent.pop(name, None)
        if self._log is not None:
            self._log.sent = min(self._sent.values(), default=ALL)
        self._awaited.pop(name, None)
        self._electable.discard(name)
        self._say_electable()

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
            self._met(name, wire)
            begins = self._tell_state(wire, term, stands)
            self._tell(f"{cut(stands.who)} at {address} stands by")
            self._follow(wire, name, term, begins)
        except (PlesioError, OSError) as error:
            wire.send(FrameKind.CHANNEL, encode(Refused(str(error))))
            wire.part()
        except FellBehindError:
            self._tell(f"the standby {cut(stands.who)} fell behind by all that the log holds, and begins anew")
        except ConnectionLostError:
            if not self._over.is_set():
                self._tell(
                    f"the standby {cut(stands.who)} is lost: until one is back, the death of this host ends the run"
                )
        finally:
            self._lost(name, wire)
            wire.close()

    def _tell(self, what: str, fatal: str = "") -> None:
        with suppress(ChannelClosedError):
            self._launcher.send(Trouble(Incident(0.0, None, what), fatal, "ServerLostError" if fatal else ""))

    def _tell_state(self, wire: Wire, term: int, stands: StandsBy) -> int:
        """How the run stands; from where on the log is to follow. Whoever votes is told where the standby is."""
        ours = importlib.metadata.version("plesio")
        if (stands.plesio, stands.protocol) != (ours, remote.PROTOCOL):
            raise ProtocolError(
                f"the head has plesio {ours}, and the standby {stands.plesio}: install the same on both hosts"
            )
        self._wait_for_place(wire, stands.name)
        with tempfile.TemporaryDirectory(prefix="plesio-standby-") as folder:
            state = self._state(wire, folder)
            if state.hello is None:
                raise ProtocolError(f"the head could not write how the run stands: {state.why_not}")
            self._note_sent(stands.name, state.begins)
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
        return state.begins

    def _wait_for_place(self, wire: Wire, name: int) -> None:
        """Until there are fewer standbys than the run takes. One that is lost may not be known to be yet."""
        takes, until_s = self._job.config.standby, time.monotonic() + 2 * LEASE_S
        while True:
            with self._lock:
                if len(self._awaited.keys() - {name}) < takes:
                    return
            if time.monotonic() > until_s:
                what = (
                    f"as many standbys as the run takes ({takes}) are there: start its head with --standby {takes + 1}"
                )
                raise ProtocolError(what)
            wire.send(FrameKind.BEAT, b"")
            time.sleep(TICK_S)

    def _state(self, wire: Wire, folder: str) -> StateWritten:
        """What the server wrote into this folder, once training has begun and nothing waits to be folded."""
        written = self._states[folder] = SimpleQueue[StateWritten]()
        try:
            self._server.send(StateWanted(folder))
            while True:
                with suppress(Empty):
                    return written.get(timeout=BEAT_S)
                wire.send(FrameKind.BEAT, b"")  # one that is gone is not waited for
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

    def _follow(self, wire: Wire, name: int, term: int, at: int) -> None:
        """Send what comes on the log, and hear how much of it is there, until the run is over. A head that was elected again is
        another, which standbys follow anew."""
        log = self._log
        assert log is not None, "the server opened it"
        poller = select.poll()
        for descriptor in (log.bell, wire.fileno()):
            poller.register(descriptor, select.POLLIN)
        sent_s = time.monotonic()
        while not (wire.wait(GLANCE_S) or self._over.is_set()):  # it makes a memory of the state
            log.check(at)
            if time.monotonic() - sent_s > STATE_S:
                raise ConnectionLostError(f"it did not take the state over within {STATE_S:g} s")
        heard_s, told_s = time.monotonic(), 0.0
        while True:
            over = self._over.is_set()
            log.heard(log.bell)
            for entry in log.entries(at):
                wire.send(FrameKind.CHANNEL, entry.message, entry.payload)
                log.check(at)
                at = entry.end
                self._note_sent(name, at)
                told_s = time.monotonic()
            if over:
                wire.send(FrameKind.CHANNEL, encode(Over()))
                end_s = time.monotonic() + SEES_OUT_S
                with suppress(
                    ConnectionLostError
                ):  # it hangs up; who hangs up with words unread takes the last ones back
                    while time.monotonic() < end_s:
                        wire.receive(GLANCE_S)
                return
            while wire.wait(0.0) or wire.has_input:
                if (frame := wire.receive(LEASE_S)) is not None and isinstance(has := decode(frame.body), Has):
                    self._heard(name, wire, has.up_to)
                heard_s = time.monotonic()
            if time.monotonic() - heard_s > LEASE_S or self._contending.term != term:
                raise ConnectionLostError("it said nothing, or follows another head")
            if time.monotonic() - told_s > BEAT_S:
                wire.send(FrameKind.BEAT, b"")
                told_s = time.monotonic()
            poller.poll(1000 * GLANCE_S)


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the process. `descriptors`: the launcher, the server."""
    launcher: Channel[ToHeads] = Channel.attach(descriptors[0], ToHeads, "the launcher")
    server: Channel[StateWritten] = Channel.attach(descriptors[1], StateWritten, "the server")
    Standbys(job, launcher, server).run()
