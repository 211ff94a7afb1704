"""How a process votes: it has a line to each place where somebody leads or may lead, and answers whatever comes there.

    this process --Votes--> the head          it beats, and this process promises
                 --Votes--> a standby         it says that it is there, and asks for votes once the head is lost
                 ...        nobody yet        tried again once a second

A thread a line; none of them holds up the end of the process. What comes malformed ends the line, which is then made anew.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from plesio.core.contender import Message, Reply
from plesio.core.headship import Beat, Leaves, Promise, Vote, Voter
from plesio.errors import PlesioError
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.headship import Place, Places, ToVoter, Votes
from plesio.transport.connect import connect
from plesio.transport.secure import VOTES, Credentials
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, Wire

log = logging.getLogger("plesio")
RETRY_S = 1.0
"""How long it waits until it tries a place again; and how long it waits for a connection there."""
QUIET_S = 1.5
"""A line on which nothing came for so long is made anew: whoever may lead says something four times a second."""
LEAVE_S = 2.0
"""How long a process that ends goes on voting, at most."""
decode: Callable[[bytes], ToVoter] = decoder_of(ToVoter)


def new_name() -> int:
    """A name for a process, that no other has: 62 random bits."""
    return secrets.randbits(62)


def dials(token: str, credentials: Credentials | None) -> Callable[[Place], Wire]:
    """How to connect, as a voter, with whoever may lead at a place."""
    return lambda place: connect(*place, token, credentials, VOTES, RETRY_S)


class Voting:
    """The votes of one process.

    Args:
        name: its own.
        told: what it answers: a `Voter`'s, or a `Contender`'s.
        places: where somebody may lead, as far as it knows; it is told of others.
        dial: makes a connection with one.
        follows: called with the place of each head of a new term that it promises, or standby that it votes for. It has to
            return at once.
    """

    def __init__(
        self,
        name: int,
        places: Iterable[Place],
        dial: Callable[[Place], Wire],
        follows: Callable[[Place], None],
        told: Callable[[Message, float], Reply | None] | None = None,
    ) -> None:
        self.name = name
        self._told = told or Voter().told
        self._dial, self._follows = dial, follows
        self._lock = threading.Lock()
        self._known: set[Place] = set()
        self._lines: dict[int, Place] = {}  # by name of who may lead: where the line to it goes
        self._term, self._to = 0, ("", 0)  # that it follows, and where that is
        self._leaving, self._without = False, 0  # beats that do without it, since it leaves
        self._left, self._closed = threading.Event(), threading.Event()
        self.learn(places)

    def learn(self, places: Iterable[Place]) -> None:
        """Somebody may lead there, too."""
        with self._lock:
            new = set(places) - self._known
            self._known |= new
        for place in new:
            threading.Thread(target=self._keep, args=(place,), name=f"votes at {place[0]}", daemon=True).start()

    def leave(self) -> None:
        """Vote no more, once who leads does without: of those who vote, many may end at once. `LEAVE_S` at most."""
        with self._lock:
            self._leaving = True
            if not self._lines:
                self._left.set()
        try:
            self._left.wait(LEAVE_S)
        finally:  # Ctrl-C, too
            self.close()

    def close(self) -> None:
        """Vote no more. Lines end within a moment."""
        self._closed.set()

    def _keep(self, place: Place) -> None:
        """In a thread of its own: keep the line to this place, unless who is there has another one, or is this process."""
        while not self._closed.is_set():
            try:
                with closing(self._dial(place)) as wire:
                    if not self._talk(wire, place):
                        return
            except (OSError, ValueError, ConnectionLostError, PlesioError) as error:  # one may know a wrong address
                log.debug("no votes at %s:%d: %s", *place, error)
            self._closed.wait(RETRY_S)

    def _talk(self, wire: Wire, place: Place) -> bool:
        """Until the line is lost; whether it is to be made anew."""
        wire.send(FrameKind.SESSION, encode(Votes(self.name)))
        if not isinstance(first := _said(wire, wire.receive(QUIET_S)), Places):
            return True
        if first.name == self.name:
            return False
        with self._lock:
            if self._lines.setdefault(first.name, place) != place:  # one with two addresses
                self._known.discard(place)
                return False
        try:
            self.learn(first.places.values())
            while not self._closed.is_set() and (frame := wire.receive(QUIET_S)) is not None:
                reply = self._answer(place, _said(wire, frame))
                wire.send(*((FrameKind.SESSION, encode(reply)) if reply is not None else (FrameKind.BEAT, b"")))
                if self._leaving:
                    wire.send(FrameKind.SESSION, encode(Leaves()))
            return True
        finally:
            with self._lock:
                del self._lines[first.name]
                if self._leaving and not self._lines:
                    self._left.set()

    def _answer(self, place: Place, said: ToVoter | None) -> Reply | None:
        if isinstance(said, Places):
            self.learn(said.places.values())
        if said is None or isinstance(said, Places):
            return None
        with self._lock:
            reply = self._told(said, time.monotonic())
            if isinstance(reply, Promise | Vote):
                self._goes_to(place, reply)
            if self._leaving and isinstance(said, Beat):
                self._look_whether_it_left(said)
        return reply

    def _look_whether_it_left(self, beat: Beat) -> None:
        """The second beat without it comes when most have the first, as a rule."""
        self._without = 0 if self.name in beat.voters else self._without + 1
        if self._without > 1:
            self._left.set()

    def _goes_to(self, place: Place, reply: Promise | Vote) -> None:
        """Follow it, if that is new. A beat comes from the one head of its term, and the vote of that term may be another's."""
        newest = reply.term > self._term or (reply.term == self._term and isinstance(reply, Promise))
        if newest and (reply.term, place) != (self._term, self._to):
            self._term, self._to = reply.term, place
            self._follows(place)


def _said(wire: Wire, frame: Frame | None) -> ToVoter | None:
    """The message in a frame, if there is one."""
    if frame is None or frame.kind is FrameKind.BEAT:
        return None
    if frame.kind is not FrameKind.SESSION:
        wire.refuse(f"a frame of kind {frame.kind.name} to a voter")
    return decode(frame.body)
