"""Who is head, among threads of one process that are connected by the loopback: a head, a standby, and workers that vote."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from unittest.mock import Mock, patch

import pytest

from plesio.core.headship import LEASE_S, NONE, Ask, Beat, Promise, Vote
from plesio.launch.local.door import Door
from plesio.launch.standby import voting as voting_module
from plesio.launch.standby.contending import Contending
from plesio.launch.standby.voting import Voting, dials, new_name
from plesio.protocol.coding import encode
from plesio.protocol.headship import Place, Votes
from plesio.protocol.launcher import Arrived, FromDoor
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.connect import accept
from plesio.transport.limits import LEASE_S as LINE_S
from plesio.transport.secure import VOTES
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import FrameKind, Wire

PATIENCE_S = 60.0


class Net:
    """Between places, which are cut off one by one: lines to them, and from them, end, and none are made."""

    def __init__(self) -> None:
        self._lines: list[tuple[Place | None, Place, socket.socket]] = []
        self._cut: set[Place] = set()

    def dial(self, here: Place | None) -> Callable[[Place], Wire]:
        def dial(place: Place) -> Wire:
            if {here, place} & self._cut:
                raise ConnectionRefusedError("cut off")
            connection = socket.create_connection(place, timeout=1.0)
            self._lines.append((here, place, connection))
            return SocketWire(connection, f"{place}")

        return dial

    def cut(self, place: Place) -> None:
        self._cut.add(place)
        for here, there, connection in self._lines:
            if place in (here, there):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self._cut.clear()


class Leading:
    """A process that may lead: what it said."""

    def __init__(self, net: Net, leads: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: Place = self._listener.getsockname()[:2]
        self.until_s, self.terms = -math.inf, list[int]()
        self.contending = Contending(
            leads,
            publish=self._publish,
            elected=self.terms.append,
            dial=net.dial(self.place),
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def _publish(self, until_s: float) -> None:
        self.until_s = until_s

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
                self.contending.add(SocketWire(connection, "a voter"))

    @property
    def follows(self) -> int:
        """The term of the head that its voter promised, or voted for, last."""
        return self.contending._voting._term

    @property
    def leads(self) -> bool:
        return time.monotonic() <= self.until_s

    @property
    def has_promises(self) -> bool:
        return self.leads and self.until_s < math.inf

    def close(self) -> None:
        self.contending.close()
        self._listener.close()


class Worker:
    """It votes, and follows whom it voted for."""

    def __init__(self, net: Net, *places: Place) -> None:
        self.follows: list[Place] = []
        self.voting = Voting(new_name(), places, net.dial(None), self.follows.append)

    def follows_now(self, one: Leading) -> bool:
        return self.follows[-1:] == [one.place]


class Run:
    """`head` leads, and `standby` has its log; the workers know the head's place alone at first."""

    def __init__(self, ours: ExitStack, workers: int) -> None:
        self.net = Net()
        self.head = ours.enter_context(closing(Leading(self.net, leads=True)))
        self.standby = ours.enter_context(closing(Leading(self.net, leads=False)))
        self.both = (self.head, self.standby)
        self.workers = [Worker(self.net, self.head.place) for _ in range(workers)]
        for one in self.workers:
            ours.callback(one.voting.close)
        for leading in self.both:
            leading.contending.set_places({each.contending.name: each.place for each in self.both})
        until(lambda: self.standby.follows == self.head.contending.term)
        assert self.standby.contending.begins(self.head.contending.term)
        assert self.head.until_s == math.inf, "it is alone"
        self.head.contending.set_electable({self.standby.contending.name})
        until(lambda: self.head.has_promises and all(one.follows_now(self.head) for one in self.workers))

    def voters(self) -> frozenset[int]:
        return self.head.contending._contender.voter.last.voters

    def until_all_vote(self) -> None:
        """All but the head, if they are even in number with it."""
        voters = 2 + len(self.workers)
        until(lambda: len(self.voters()) == voters - (voters % 2 == 0))
        for _ in range(2):  # that is known
            told = self.head.contending._contender.voter.last.number
            until(lambda: self.head.contending._contender.voter.last.number > told + 2)  # noqa: B023


@contextmanager
def a_run(workers: int) -> Iterator[Run]:
    with ExitStack() as ours:
        run = Run(ours, workers)
        run.until_all_vote()
        yield run


def until(so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < end_s, "it does not become so"
        time.sleep(0.005)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_standby_is_elected_when_the_head_is_cut_off_and_the_head_is_fenced_when_it_is_back(workers: int) -> None:
    with a_run(workers) as run:
        began_s = time.monotonic()
        run.net.cut(run.head.place)
        until(lambda: run.standby.leads)
        assert not run.head.leads
        assert LEASE_S / 2 < time.monotonic() - began_s < 2 * LEASE_S
        assert run.standby.terms == [run.head.contending.term + 1]
        until(lambda: all(one.follows_now(run.standby) for one in run.workers))
        run.net.heal()
        until(lambda: run.head.until_s == -math.inf)
        until(lambda: run.head.follows == run.standby.contending.term)
        assert run.standby.leads
        assert run.head.terms == []


def test_a_worker_dies_and_the_head_leads_on_with_the_standby() -> None:
    with a_run(workers=1) as run:
        run.workers[0].voting.close()
        until(lambda: len(run.voters()) == 1)
        until(lambda: run.head.has_promises)
        assert run.standby.terms == []


@pytest.mark.parametrize("workers", [4, 12])
def test_most_workers_end_at_once_and_the_head_leads_on(workers: int) -> None:
    with a_run(workers) as run, ThreadPoolExecutor(workers) as pool:
        *enders, last = run.workers
        [*pool.map(lambda one: one.voting.leave(), enders)]
        until(lambda: run.voters() <= {last.voting.name, run.standby.contending.name, run.head.contending.name})
        until(lambda: run.head.has_promises)
        assert last.follows_now(run.head)
        assert run.standby.terms == []


def test_one_that_ends_waits_for_nobody_when_nobody_is_left() -> None:
    voting = Voting(new_name(), (), lambda _: pytest.fail("it knows nobody"), print)
    with patch.object(voting_module, "LEAVE_S", PATIENCE_S):
        voting.leave()


def test_one_that_is_interrupted_as_it_leaves_votes_no_more() -> None:
    voting = Voting(new_name(), (), lambda _: pytest.fail("it knows nobody"), print)
    voting._left = Mock(**{"wait.side_effect": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        voting.leave()
    assert voting._closed.is_set()


def test_a_standby_is_lost_and_the_head_waits_for_it_until_most_know() -> None:
    with a_run(workers=2) as run:
        lost = run.standby.contending.name
        assert run.head.contending.awaits == {lost}
        run.net.cut(run.standby.place)
        run.head.contending.set_electable(())
        until(lambda: run.head.contending.awaits == set())
        assert run.head.leads
        until(lambda: run.head.has_promises)
        assert all(one.follows_now(run.head) for one in run.workers)


def test_a_voter_that_reads_nothing_holds_up_nobody() -> None:
    with a_run(workers=2) as run, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect(run.head.place)
        SocketWire(deaf, "the head").send(FrameKind.SESSION, encode(Votes(new_name())))
        until(lambda: len(run.head.contending._lines) == 4)
        while len(run.head.contending._lines) == 4:  # it is hung up on, LINE_S after it took the last byte
            run.head.contending.set_electable({run.standby.contending.name})
            assert run.head.leads
            time.sleep(0.005)
        assert run.head.has_promises
        assert run.standby.terms == []
        assert LINE_S < PATIENCE_S


def test_a_worker_whose_vote_came_to_nothing_follows_the_head_that_others_elected_in_that_term() -> None:
    head, standby, follows = ("head", 1), ("standby", 2), list[Place]()
    beat = Beat(2, 1, 9, frozenset({7}), frozenset({9}))
    says = {Ask: Vote(2, NONE), Beat: Promise(2, 1)}
    with closing(
        Voting(7, (), lambda _: pytest.fail("it knows nobody"), follows.append, lambda said, _: says[type(said)])
    ) as one:
        one._answer(standby, Ask(2, 8, frozenset({1}), NONE))
        for _ in range(2):
            one._answer(head, beat)
        one._answer(standby, Ask(2, 8, frozenset({1}), NONE))
    assert follows == [standby, head]


def test_a_voter_proves_itself_at_the_door() -> None:
    token, ours, theirs = 32 * "t", *channel_pair()
    net = Net()
    with closing(Leading(net, leads=True)) as head, socket.create_server(("127.0.0.1", 0)) as knocked_at:
        door: Channel[FromDoor] = Channel(ours, FromDoor, "the door")
        inside = threading.Thread(target=Door(Channel(theirs, FromDoor, "the head"), [knocked_at], token).run)
        inside.start()
        place, follows = knocked_at.getsockname()[:2], list[Place]()
        with closing(Voting(new_name(), [place], dials(token, None), follows.append)):
            arrived, (descriptor,) = door.receive(PATIENCE_S)
            assert isinstance(arrived, Arrived)
            assert arrived.ticket == VOTES
            head.contending.add(accept(socket.socket(fileno=descriptor), token, None))
            until(lambda: follows == [place])
        door.close()
        inside.join()
        theirs.close()


@pytest.mark.parametrize("said", [b"\xc1", b"", encode(["Beat", 1])])
def test_who_says_what_is_no_message_is_hung_up_on(said: bytes) -> None:
    with a_run(workers=1) as run, socket.create_connection(run.head.place) as stranger:
        wire = SocketWire(stranger, "the head")
        wire.send(FrameKind.SESSION, said)
        stranger.settimeout(PATIENCE_S)
        assert stranger.recv(1) == b""
        assert run.head.leads


def test_one_with_two_addresses_has_one_line() -> None:
    with a_run(workers=1) as run:
        other = ("localhost", run.head.place[1])
        run.workers[0].voting.learn([other])
        places = {one.contending.name: one.place for one in run.both}
        until(lambda: other not in run.workers[0].voting._known)
        assert run.workers[0].voting._lines == places
        assert run.workers[0].follows == [run.head.place]
