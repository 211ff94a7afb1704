"""Who may talk to whom between hosts: a token that both sides prove to know, and TLS 1.3 with a certificate on each side.

    worker                                      door
           <-- 32 random bytes (nonce)
           --> ticket (16 bytes), HMAC(token, label, nonce, ticket)
           <-- 1: go on; 0: a wrong token             then the connection goes to a proxy
           ... TLS's handshake, unless this is plain text ...
           --> "plesio channel 1", 32 random bytes   proxy
           <-- 32 random bytes, HMAC(token, label, both certificates, both nonces)
           --> HMAC(token, another label, the same)

The token itself is never sent, nor logged. Until the last line nothing is parsed. The certificates are in the second proof:
one that passes on what it hears, between two connections of its own, proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from plesio.errors import ConfigurationError
from plesio.transport.certificates import CA, CERTIFICATE, KEY, expiry
from plesio.transport.limits import CONNECT_S, HANDSHAKE_S, PARTING_S

NONCE_BYTES, TICKET_BYTES, MAC_BYTES = 32, 16, 32
PROOF_BYTES = TICKET_BYTES + MAC_BYTES
VOTES, STANDBY = b"plesio votes 001", b"plesio standby 1"
"""Tickets of those who are no workers: of who votes on who is head, and of a standby that takes the log."""
WRONG, RIGHT = b"\0", b"\1"
"""What the door answers to a proof."""
GREETING = b"plesio channel 1"
TLS_RECORD, TLS_ALERT = b"\x16\x03", b"\x15\x03"
"""What a TLS conversation begins with, and what its errors do."""
REFUSED_IN_TLS = TLS_ALERT + b"\x03\0\x02\x02\x46"
"""A whole one, for a side that speaks plain text: OpenSSL sends it nothing."""
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"}
PLAIN = "this side plain text: give both certificates (certs=), or neither (insecure=True)"
RENEW = "plesio certs DIR --host NAME ... makes certificates for all hosts of a run, and makes them anew"
TOKENS = "the worker's token (token=, PLESIO_TOKEN, ~/.plesio/token) is not the head's"


class ProofError(ConfigurationError):
    """Two sides do not accept each other: another token, certificate, or no TLS at one of them.

    >>> try:
    ...     with ps.join("async_sgd", address="127.0.0.1:1", token=32 * "a", rejoin_s=0.1) as worker:
    ...         train(worker)
    ... except ps.ProofError as error:
    ...     print("another token, or other certificates:", error)
    ... except ps.ServerLostError as error:
    ...     print(error)
    no server: tried to reach the head at 127.0.0.1:1 for 0.1 s ([Errno 111] Connection refused); ...
    """


def unix_address(token: str, port: int) -> str:
    """Where the run that listens on `port` is found by workers of its own host."""
    return f"\0plesio-{hashlib.sha256(token.encode()).hexdigest()[:16]}-{port}"


# The token


def mac(token: str, nonce: bytes, ticket: bytes) -> bytes:
    """What proves to the door that one knows the token."""
    return hmac.digest(token.encode(), b"plesio door 1" + nonce + ticket, "sha256")


def token_of_standbys(workers: str) -> str:
    """What a standby proves that it knows: PLESIO_STANDBY_TOKEN, else what follows from the token of workers."""
    return os.environ.get("PLESIO_STANDBY_TOKEN") or hmac.digest(workers.encode(), b"plesio standby 1", "sha256").hex()


def proof_of_standby(workers: str, nonce: bytes) -> bytes:
    """That it knows that."""
    return hmac.digest(token_of_standbys(workers).encode(), b"plesio stands by 1" + nonce, "sha256")


def prove(connection: socket.socket, token: str, ticket: bytes) -> None:
    """Get past the door.

    Raises:
        ProofError: the token is wrong.
        OSError: the connection is lost, or it is nobody's turn for too long.
    """
    end_s = time.monotonic() + CONNECT_S
    nonce = _exactly(connection, NONCE_BYTES, end_s)
    connection.sendall(ticket + mac(token, nonce, ticket))
    if _exactly(connection, 1, end_s) != RIGHT:
        raise ProofError(f"the head refuses this worker: {TOKENS}")


def _agree(channel: socket.socket, token: str, server_side: bool, certificates: bytes, end_s: float) -> None:
    """Both sides prove that they know the token, over this very channel."""
    if server_side:
        greeting = _exactly(channel, len(GREETING) + NONCE_BYTES, end_s)
        if not greeting.startswith(GREETING):
            channel.sendall(GREETING)  # to one that awaits TLS: it sees that this is none
            raise ProofError(
                f"it {'speaks TLS' if greeting.startswith(TLS_RECORD) else 'is no worker of plesio'}, {PLAIN}"
            )
        nonces = greeting[len(GREETING) :] + secrets.token_bytes(NONCE_BYTES)
    else:
        nonce = secrets.token_bytes(NONCE_BYTES)
        channel.sendall(GREETING + nonce)
        nonces = nonce + _exactly(channel, NONCE_BYTES, end_s)
    proofs = [
        hmac.digest(token.encode(), b"plesio channel 1 " + side + certificates + nonces, "sha256")
        for side in (b"server", b"client")
    ]
    if server_side:
        channel.sendall(nonces[NONCE_BYTES:] + proofs[0])
    if not hmac.compare_digest(_exactly(channel, MAC_BYTES, end_s), proofs[server_side]):
        raise ProofError(f"it proves nothing: {TOKENS}, or somebody in between passes on what both say")
    if not server_side:
        channel.sendall(proofs[1])


def _exactly(connection: socket.socket, size: int, end_s: float) -> bytes:
    """The next `size` bytes, and no more: what follows is for another process to read."""
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, end_s - time.monotonic()))
        got = connection.recv(size - len(data))
        if not got:
            if data.startswith(TLS_ALERT):
                raise ProofError(f"it speaks TLS, {PLAIN}")
            raise ConnectionResetError("it closed the connection before both sides had proved themselves")
        data += got
    return data


# TLS


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to talk to other hosts: by TLS, with what is in `folder`; or (None) in the clear, because the user said so."""

    folder: Path | None


def credentials(certs: str | Path | None, insecure: bool = False, host: str = "127.0.0.1") -> Credentials | None:
    """What the user asked for; None is plain text on this host only.

    Args:
        certs: a folder that `plesio certs` made, for this host or for all of them.
        insecure: talk in the clear.
        host: where the head listens, or is.

    Raises:
        ConfigurationError: neither is given and `host` is not the loopback, or there is no valid certificate.
    """
    if certs and insecure:
        raise ConfigurationError(f"certs={str(certs)!r} and insecure=True: choose one, TLS or plain text")
    if certs:
        return Credentials(_folder(Path(certs)))
    if insecure:
        return Credentials(None)
    if not is_loopback(host):
        raise ConfigurationError(
            f"{host} is not the loopback, and there are no certificates: make some (plesio certs DIR --host NAME ...) and "
            "pass certs=DIR (--certs DIR), or talk in the clear by insecure=True (--insecure)"
        )
    return None


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this host hears what is said there.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::"), is_loopback("node7")
    (True, True, False, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _folder(given: Path) -> Path:
    """The folder of this host's certificate, which is valid today."""
    own = given / socket.gethostname()
    folder = (given if (given / CERTIFICATE).is_file() or not own.is_dir() else own).absolute()
    missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{folder} holds no {', '.join(missing)}: a host's folder was wanted, as plesio certs DIR --host NAME makes it "
            f"in DIR/NAME (this host is {socket.gethostname()})"
        )
    for name in (CERTIFICATE, CA):
        end_s = expiry(folder / name)
        if end_s < time.time():
            when = time.strftime("%Y-%m-%d", time.gmtime(end_s))
            raise ConfigurationError(f"{folder / name} expired on {when}: {RENEW}")
    return folder


def _context(folder: Path, server_side: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / CA)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    if server_side:
        context.num_tickets = 0  # nobody comes back to a TLS session
    return context


def secured(
    connection: socket.socket, token: str, given: Credentials | None, server_side: bool, host: str = ""
) -> socket.socket:
    """The connection, once both sides have proved themselves. It is closed where they do not.

    Args:
        given: TLS with these; plain text without a folder.
        host: the name by which a worker knows the head; its certificate has to be for that.

    Raises:
        ProofError: the other side is refused, or refuses this one.
        OSError: the connection is lost.
    """
    channel, certificates, end_s = connection, b"", time.monotonic() + HANDSHAKE_S
    connection.settimeout(HANDSHAKE_S)
    try:
        if given is not None and given.folder is not None:
            channel = tls = _context(given.folder, server_side).wrap_socket(
                connection, server_side=server_side, server_hostname=host or None, do_handshake_on_connect=False
            )
            tls.do_handshake()
            own = ssl.PEM_cert_to_DER_cert((given.folder / CERTIFICATE).read_text())
            theirs = tls.getpeercert(binary_form=True) or b""
            both = (own, theirs) if server_side else (theirs, own)
            certificates = b"".join(hashlib.sha256(one).digest() for one in both)
        _agree(channel, token, server_side, certificates, end_s)
    except BaseException as error:
        if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
            with suppress(OSError):
                socket.socket.sendall(channel, REFUSED_IN_TLS)
        part(channel)
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            raise ProofError(_explained(error)) from None
        raise
    return channel


def _explained(error: ssl.SSLError) -> str:
    """What the other side did wrong, or thinks this one did, and what to do."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted here: {error.verify_message}; {RENEW}"
    if reason in NO_TLS:
        return "it speaks plain text, this side TLS: give both certificates (certs=), or neither (insecure=True)"
    if "ALERT" in reason:
        words = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"it does not accept this side's certificate: {words}; {RENEW}"
    return f"TLS failed: {reason}; {RENEW}"


def part(channel: socket.socket) -> None:
    """Hang up, after the other side has had a chance to read why."""
    end_s = time.monotonic() + PARTING_S
    with suppress(OSError):
        socket.socket.shutdown(channel, socket.SHUT_WR)
        while (left_s := end_s - time.monotonic()) > 0:
            channel.settimeout(left_s)
            if not socket.socket.recv(channel, 65536):
                break
    channel.close()
