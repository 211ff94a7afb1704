"""The door lets in who proves to know the token; whoever else comes is gone within a second and costs nothing."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from plesio.launch.local.door import Door
from plesio.protocol.launcher import Arrived, FromDoor, TurnedAway
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.connect import connect_here
from plesio.transport.limits import PROOF_S, UNPROVEN_MAX
from plesio.transport.secure import ProofError, mac, prove, unix_address

TOKEN = "0123456789abcdef of the tests"
TICKET = bytes(range(16))


class Visited:
    """A door in a process of its own, and the launcher's end of its channel."""

    def __init__(self) -> None:
        far = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = far.getsockname()[1]
        near = socket.socket(socket.AF_UNIX)
        near.bind(unix_address(TOKEN, self.port))
        near.listen()
        mine, theirs = channel_pair()
        self.pid = os.fork()
        if not self.pid:
            mine.close()
            code = 1
            with suppress(BaseException):
                Door(Channel(theirs, FromDoor, "the launcher"), (far, near), TOKEN).run()
                code = 0
            os._exit(code)
        for one in (far, near, theirs):
            one.close()
        self.launcher: Channel[FromDoor] = Channel(mine, FromDoor, "the door")

    def visit(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10.0)

    def let_in(self) -> tuple[Arrived, socket.socket]:
        arrival, descriptors = self.launcher.receive(10.0)
        assert isinstance(arrival, Arrived)
        return arrival, socket.socket(fileno=descriptors[0])

    def turned_away(self) -> TurnedAway:
        message, _ = self.launcher.receive(10.0)
        assert isinstance(message, TurnedAway)
        return message

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_kib(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize() // 1024


@pytest.fixture
def door() -> Iterator[Visited]:
    door = Visited()
    yield door
    door.launcher.close()
    with suppress(ProcessLookupError):
        os.kill(door.pid, signal.SIGKILL)
        os.waitpid(door.pid, 0)


def answer(connection: socket.socket, token: str = TOKEN, more: bytes = b"") -> None:
    connection.sendall(TICKET + mac(token, connection.recv(32), TICKET) + more)


def test_who_knows_the_token_is_let_in(door: Visited) -> None:
    with door.visit() as worker:
        prove(worker, TOKEN, TICKET)
        arrival, connection = door.let_in()
        assert arrival == Arrived("127.0.0.1", TICKET, local=False)
        with connection:
            worker.sendall(b"hello")
            assert connection.recv(10) == b"hello"
            connection.sendall(b"welcome")
            assert worker.recv(10) == b"welcome"


def test_what_follows_the_proof_is_left_unread(door: Visited) -> None:
    with door.visit() as worker:
        answer(worker, more=b"TLS begins here")
        with door.let_in()[1] as connection:
            assert connection.recv(100) == b"TLS begins here"


def test_a_worker_of_this_host_is_let_in_as_that(door: Visited) -> None:
    worker = connect_here("127.0.0.1", door.port, TOKEN)
    assert worker is not None
    with worker:
        arrival, connection = door.let_in()
        assert arrival == Arrived(f"user {os.getuid()} of this host", bytes(16), local=True)
        with connection:
            worker.sendall(b"hello")
            assert connection.recv(10) == b"hello"


def test_a_run_on_another_host_is_not_looked_for_here(door: Visited) -> None:
    """With the same token and port as one that is here."""
    assert connect_here("192.0.2.7", door.port, TOKEN) is None
    assert connect_here("127.0.0.1", door.port, TOKEN + "!") is None


def test_a_slow_proof_counts(door: Visited) -> None:
    with door.visit() as worker:
        for byte in TICKET + mac(TOKEN, worker.recv(32), TICKET):
            worker.sendall(bytes([byte]))
            time.sleep(0.005)
        arrival, connection = door.let_in()
        assert arrival.ticket == TICKET
        connection.close()


def test_a_wrong_token_is_refused_at_once_and_told_once(door: Visited) -> None:
    for _ in range(3):
        with (
            door.visit() as worker,
            pytest.raises(ProofError, match=r"refuses this worker: .*PLESIO_TOKEN.* is not the head's"),
        ):
            prove(worker, TOKEN + "!", TICKET)
    assert door.turned_away() == TurnedAway("127.0.0.1", "its token is not the run's")
    with door.visit() as worker:
        prove(worker, TOKEN, TICKET)
        door.let_in()[1].close()  # the next message: the others were not told


def test_an_answer_to_another_challenge_is_refused(door: Visited) -> None:
    """What was overheard is of no use, nor is a proof with another ticket."""
    with door.visit() as overheard, door.visit() as worker:
        nonce = overheard.recv(32)
        worker.recv(32)
        worker.sendall(TICKET + mac(TOKEN, nonce, TICKET))
        assert worker.recv(1) == b"\0"
        overheard.sendall(bytes(16) + mac(TOKEN, nonce, TICKET))
        assert overheard.recv(1) == b"\0"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "data", [b"", b"x", b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n" * 3, secrets.token_bytes(5000)]
)
def test_a_port_scan_is_over_within_a_second(door: Visited, data: bytes) -> None:
    began_s = time.monotonic()
    with door.visit() as scanner:
        scanner.sendall(data)
        with suppress(ConnectionResetError):
            while scanner.recv(100):
                pass
        assert time.monotonic() - began_s < PROOF_S + 0.5
    assert door.turned_away().address == "127.0.0.1"


def test_one_that_goes_at_once_costs_nothing(door: Visited) -> None:
    before = door.open_files()
    for _ in range(200):
        door.visit().close()
    door.turned_away()
    with door.visit() as worker:
        prove(worker, TOKEN, TICKET)
        door.let_in()[1].close()
    time.sleep(0.1)
    assert door.open_files() <= before


def crowd(door: Visited, idle: int) -> float:
    """So many connect and say nothing; how long one that knows the token is kept waiting by them."""
    before = door.open_files()  # some are this process's
    with ExitStack() as all_of_them:
        silent = [all_of_them.enter_context(door.visit()) for _ in range(idle)]
        began_s = time.monotonic()
        with door.visit() as worker:
            prove(worker, TOKEN, TICKET)
        waited_s = time.monotonic() - began_s
        assert door.open_files() < before + UNPROVEN_MAX + 5
        for one in silent:  # all are refused
            with suppress(ConnectionResetError):
                while one.recv(32):
                    pass
    while True:
        message, descriptors = door.launcher.receive(1.0)
        if isinstance(message, Arrived):
            os.close(descriptors[0])
            return waited_s


@pytest.mark.thorough
def test_a_thousand_idle_connections_keep_nobody_out(door: Visited) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        crowd(door, 100)  # the first ones make a forked process's pages its own
        memory = door.memory_kib()
        assert crowd(door, 1000) < 8.0
        assert door.memory_kib() - memory < 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_door_ends_with_the_launcher(door: Visited) -> None:
    with door.visit():
        door.launcher.close()
        _, status = os.waitpid(door.pid, 0)
    assert status == 0


def test_who_waits_at_a_door_that_ends_is_hung_up_on() -> None:
    """Its process may live on: a standby's does, when it is elected and another door opens."""
    mine, theirs = channel_pair()
    with socket.create_server(("127.0.0.1", 0)) as listening, mine, theirs:
        door = Door(Channel(theirs, FromDoor, "the standby"), [listening], TOKEN)
        inside = threading.Thread(target=door.run)
        inside.start()
        with socket.create_connection(listening.getsockname(), timeout=10.0) as worker:
            assert len(worker.recv(32)) == 32
            mine.shutdown(socket.SHUT_RDWR)
            inside.join()
            assert worker.recv(1) == b""
