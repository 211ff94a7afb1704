"""Where a worker connects: with whoever is found, until it follows one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plesio.launch.remote import following
from plesio.launch.remote.addresses import Addresses
from plesio.launch.remote.following import Following
from plesio.launch.remote.head import HeadAddress
from plesio.protocol.headship import Place
from plesio.transport.wire import ConnectionLostError

A, B, C = ("a", 1), ("b", 2), ("c", 3)


class Line:
    def __init__(self, place: Place) -> None:
        self.place, self.cuts, self.closed = place, 0, False

    def cut(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        self.closed = True


class Hosts:
    """`up`: where somebody is; `meanwhile`: happens when somebody connects."""

    def __init__(self, *up: Place) -> None:
        self.up, self.tried = set(up), list[Place]()
        self.meanwhile: Callable[[], None] = lambda: None
        self.last = Line(A)

    def connect(self, host: str, port: int, *_: object) -> Any:
        self.tried.append((host, port))
        self.meanwhile()
        if (host, port) not in self.up:
            raise ConnectionRefusedError(host)
        self.last = Line((host, port))
        return self.last


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts(A, B, C)
    monkeypatch.setattr(following, "connect", made.connect)
    return made


def worker_of(*known: Place) -> Following:
    return Following(lambda: HeadAddress(*A, "a token"), Addresses(known) if known else None, None)


def test_a_worker_that_follows_nobody_tries_all_it_was_told_of(hosts: Hosts) -> None:
    hosts.up = {B}
    one: Any = worker_of(A, B).dial(b"")
    assert (one.place, hosts.tried) == (B, [A, B])


@pytest.mark.parametrize("known", [(), (A, B)])
def test_a_worker_that_follows_one_leaves_the_other_and_does_not_go_back(
    hosts: Hosts, known: tuple[Place, ...]
) -> None:
    worker = worker_of(*known)
    first: Any = worker.dial(b"")
    worker.follow(A)
    assert (first.place, first.cuts) == (A, 0)
    worker.follow(C)
    assert first.cuts == 1
    hosts.up = {A, B}
    hosts.tried.clear()
    with pytest.raises(ConnectionRefusedError):
        worker.dial(b"")
    assert hosts.tried == [C]
    hosts.up.add(C)
    one: Any = worker.dial(b"")
    assert one.place == C
    worker.follow(A)
    assert one.cuts == 1


def test_a_connection_that_comes_about_when_another_is_followed_is_given_up(hosts: Hosts) -> None:
    worker = worker_of(A, B)
    hosts.meanwhile = lambda: worker.follow(B)
    with pytest.raises(ConnectionLostError, match="another head"):
        worker.dial(b"")
    assert hosts.last.closed
    one: Any = worker.dial(b"")
    assert one.place == B
