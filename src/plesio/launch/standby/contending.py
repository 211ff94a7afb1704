"""A process that may lead, among others: the head's or a standby's part in who is head.

    one thread        what is to be said, now and then         --> each voter's line
    a thread a voter  what it answers                          --> `Contender`, under one lock
    `Voting`          what others that may lead say            --> the same

It publishes until when this process may fold and answer, whenever that changes, by `time.monotonic`, which all processes of this
host share. The log is somebody else's business: he says which standbys have all of it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from plesio.core.contender import Contender, Message, Reply
from plesio.core.headship import Head
from plesio.launch.standby.voter_line import VoterLine
from plesio.launch.standby.voting import Voting, new_name
from plesio.protocol.coding import ProtocolError, encode
from plesio.protocol.headship import FromVoter, Place, Places, Votes
from plesio.transport.wire import ConnectionLostError, Wire

log = logging.getLogger("plesio")
BEAT_S = 0.25
"""How often it says what it has to say: six times within the time that a head counts on a promise."""
LOOK_S = 0.05
"""How often a standby looks whether its head is lost, and, if so, asks."""


def _ignore(_: object) -> None: ...


class Contending:
    """One such process. All of it may be called by any thread.

    Args:
        leads: it is the head of a run that begins, or that goes on though nobody else could be elected (`awaits` nobody); else
            a standby. `after`: the last term that it knows of.
        publish: called with the time until which it may fold and answer if it hears nothing more: `inf` while no standby was
            ever named, `-inf` where it is no head. A lock is held meanwhile: it has to return at once, and call nothing here.
        elected: called with the term whenever this process becomes head, in one of the threads here: it has to return soon.
        dial: makes a connection with a place (`plesio.launch.standby.voting.dials`).

    Attributes:
        name: a random number, that no other process has.
    """

    def __init__(
        self,
        leads: bool,
        *,
        dial: Callable[[Place], Wire],
        publish: Callable[[float], object] = _ignore,
        elected: Callable[[int], object] = _ignore,
        after: int = 0,
    ) -> None:
        self.name = new_name()
        # Workers of a run that goes on may have heard of terms that nobody here knows. Those do not grow as fast as time does.
        term = max(after + 1, int(1000 * time.time()))
        self._led = Head(self.name, term, {self.name}) if leads else None
        self._contender = Contender(self.name, time.monotonic(), self._led)
        self._publish, self._elected = publish, elected
        self._lock = threading.Lock()
        self._lines: set[VoterLine] = set()
        self._electable: frozenset[int] = frozenset()
        self._places: dict[int, Place] = {}
        self._soon, self._closed = threading.Event(), False
        self._voting = Voting(self.name, (), dial, _ignore, self._told)
        threading.Thread(target=self._run, name="who leads", daemon=True).start()

    # What others read and set

    @property
    def term(self) -> int:
        """Of the head that it is; 0: it is none."""
        with self._lock:
            return self._contender.term

    @property
    def leads_until_s(self) -> float:
        """What was published last, or is about to be."""
        with self._lock:
            return self._contender.leads_until_s

    @property
    def awaits(self) -> frozenset[int]:
        """The standbys that an answer waits for under `acknowledge="standby"`, by name; `ANYBODY` among them: for nobody who is
        known, but for a moment, or while this is no head."""
        with self._lock:
            return self._contender.awaits

    def set_electable(self, names: Iterable[int]) -> None:
        """These standbys, and no others, have all that was answered: from the next beat on they may be elected."""
        with self._lock:
            self._electable = frozenset(names)
        self._soon.set()

    def set_places(self, places: Mapping[int, Place]) -> None:
        """By name, where this and each other is that may lead. All voters are told."""
        with self._lock:
            self._places = dict(places)
            for line in self._lines:
                line.say("places", encode(Places(self.name, self._places)))
        self._voting.learn(place for name, place in places.items() if name != self.name)

    def begins(self, term: int) -> bool:
        """The log here is that of this head from now on. Say so before that of another is given up. False: a later head is
        known, whose log this standby is to have."""
        with self._lock:
            return self._contender.begins(term, time.monotonic())

    def forgets(self) -> bool:
        """There is no log here from now on: this standby may not be elected, whatever beats say. False: it is by now."""
        with self._lock:
            return self._contender.forgets()

    # Voters

    def add(self, wire: Wire) -> None:
        """A voter connected, and proved itself."""
        threading.Thread(target=self._serve, args=(VoterLine(wire),), name="a voter", daemon=True).start()

    def _serve(self, line: VoterLine) -> None:
        try:
            voter = line.voter()
            with self._lock:
                line.say("places", encode(Places(self.name, self._places)))
                self._lines.add(line)
            line.run(lambda reply: self._hear(voter, reply))
        except (ConnectionLostError, ProtocolError) as error:
            log.debug("a voter is gone: %s", error)
        finally:
            with self._lock:
                self._lines.discard(line)
            line.close()

    def _hear(self, voter: int, reply: FromVoter) -> None:
        if isinstance(reply, Votes):
            raise ProtocolError(f"voter {voter} said twice who it is")
        with self._lock:
            changing = self._contender.changing
            self._contender.hear(voter, reply, time.monotonic())
            self._publish(self._contender.leads_until_s)
            if changing and not self._contender.changing:
                self._soon.set()  # many may be about to end, one change after another
        self._tell_if_elected()

    def _told(self, message: Message, now_s: float) -> Reply | None:
        """Another that may lead said this to the voter that is here."""
        with self._lock:
            reply = self._contender.told(message, now_s)
            self._publish(self._contender.leads_until_s)
        return reply

    # In time

    def _run(self) -> None:
        said_s = 0.0
        while not self._closed:
            self._soon.clear()
            with self._lock:
                now_s = time.monotonic()
                said = self._contender.tick(now_s, self._electable, random.random())
                leads = self._contender.head is not None
                self._publish(self._contender.leads_until_s)
                if said is not None or now_s - said_s >= BEAT_S:  # else a standby that has nothing to say
                    said_s = now_s
                    for line in self._lines:
                        line.say("message", encode(said) if said is not None else b"")
            self._tell_if_elected()
            self._soon.wait(BEAT_S if leads else LOOK_S)

    def _tell_if_elected(self) -> None:
        with self._lock:
            head = self._contender.head
            news, self._led = head is not None and head is not self._led, head
        if news and head is not None:
            self._soon.set()  # the first beat: voters follow, and answers may leave
            self._elected(head.term)

    def leave(self) -> None:
        """This process is about to end: whoever leads is to do without its vote."""
        self._voting.leave()

    def close(self) -> None:
        """Contend no more, and hang up on all."""
        self._closed = True
        self._soon.set()
        self._voting.close()
        with self._lock:
            for line in self._lines:
                line.cut()
