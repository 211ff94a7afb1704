"""How a worker reaches its run: past the door, to a proxy; or to the head itself, if that is on the same host."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from plesio.transport import secure
from plesio.transport.limits import CONNECT_S
from plesio.transport.secure import Credentials, ProofError
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import Wire

PEER = struct.Struct("3i")
"""What the kernel tells of the process at the other end of a Unix socket: its number, user and group."""


def connect(
    host: str,
    port: int,
    token: str,
    credentials: Credentials | None,
    ticket: bytes,
    timeout_s: float = CONNECT_S,
) -> Wire:
    """A connection with a proxy; both sides have proved themselves.

    Args:
        ticket: what a worker that lost its connection was given when it got its seat; zeros for a newcomer.

    Raises:
        ProofError: they do not accept each other; trying again does not help.
        OSError: nobody is there, or the connection is lost.
    """
    peer = f"the head at {host}:{port}"
    if credentials is None:
        secure.credentials(None, host=host)  # plain text, where nobody said so, stays on this host
    connection = socket.create_connection((host, port), timeout=timeout_s)
    try:
        secure.prove(connection, token, ticket)
        return SocketWire(secure.secured(connection, token, credentials, server_side=False, host=host), peer)
    except ProofError as error:
        connection.close()
        raise ProofError(f"{peer}: {error}") from None
    except BaseException:
        connection.close()
        raise


def accept(connection: socket.socket, token: str, credentials: Credentials | None) -> Wire:
    """The proxy's side of `connect`, for a connection that the door let in.

    Raises:
        ProofError, OSError: as there.
    """
    host, port, *_ = connection.getpeername()
    return SocketWire(secure.secured(connection, token, credentials, server_side=True), f"{host}:{port}")


def connect_here(host: str, port: int, token: str) -> socket.socket | None:
    """A connection with the head, if it is on this host.

    Raises:
        ProofError: somebody else has taken its place.
        OSError: the connection is lost.
    """
    if not is_here(host):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(secure.unix_address(token, port))
        except OSError:  # it is in another container, or not there
            connection.close()
            return None
        if user_of(connection) not in (os.getuid(), 0):
            raise ProofError(f"a process of user {user_of(connection)} listens in place of the run on {host}:{port}")
        secure.prove(connection, token, bytes(secure.TICKET_BYTES))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def is_here(host: str) -> bool:
    """Whether `host` is this host: only to an address of its own can a socket be bound."""
    with suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind(address)
            return True
    return False


def user_of(connection: socket.socket) -> int:
    """The user whose process is at the other end of a Unix socket."""
    user: int = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1]
    return user
