"""Two hosts talk when both prove to know the token and both have a certificate of the run's authority; else both are told why."""

from __future__ import annotations

import re
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.errors import ConfigurationError
from plesio.launch.job import Listening
from plesio.transport import connect as connecting
from plesio.transport import secure
from plesio.transport.certificates import CA, CA_KEY, CERTIFICATE, KEY, expiry, make_certificates
from plesio.transport.connect import accept, is_here
from plesio.transport.secure import Credentials, ProofError, credentials, secured
from plesio.transport.socket_wire import HEAD, SocketWire
from plesio.transport.wire import Frame, FrameKind
from support.programs import PYTHON

TOKEN = "0123456789abcdef of the tests"
IN_THE_CLEAR = Credentials(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority: of two hosts, and of one whose certificate has expired."""
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["head", "worker,10.9.8.7"])
    make_certificates(folder, ["spy,head"])
    make_certificates(folder, ["old"], days=0)
    make_certificates(folder / "foreign", ["worker"])
    return folder


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = socket.create_connection(listener.getsockname())
        return worker, listener.accept()[0]


def meet(
    head: Credentials | None, worker: Callable[[socket.socket], socket.socket], token: str = TOKEN
) -> tuple[SocketWire | BaseException, socket.socket | BaseException]:
    """What each side gets."""
    near, far = tcp_pair()
    got: list[SocketWire | BaseException] = []

    def proxy() -> None:
        try:
            got.append(accept(far, token, head))
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=proxy)
    thread.start()
    try:
        mine: socket.socket | BaseException = worker(near)
    except BaseException as error:
        near.close()
        mine = error
    thread.join()
    return got[0], mine


def as_worker(
    given: Credentials | None, host: str = "head", token: str = TOKEN
) -> Callable[[socket.socket], socket.socket]:
    return lambda near: secured(near, token, given, server_side=False, host=host)


@pytest.mark.parametrize("tls", [True, False])
def test_two_that_know_each_other_talk(folder: Path, tls: bool) -> None:
    head = Credentials(folder / "head") if tls else IN_THE_CLEAR
    worker = Credentials(folder / "worker") if tls else None
    there, mine = meet(head, as_worker(worker))
    assert isinstance(there, SocketWire)
    assert isinstance(mine, socket.socket)
    assert isinstance(mine, ssl.SSLSocket) == tls
    assert not isinstance(mine, ssl.SSLSocket) or mine.version() == "TLSv1.3"
    here = SocketWire(mine, "the head")
    payload, place = bytes(range(256)) * 4000, bytearray(256 * 4000)
    for left, right in ((here, there), (there, here)):
        sender = threading.Thread(target=left.send, args=(FrameKind.CHANNEL, b"m" * 5000, [memoryview(payload)]))
        sender.start()
        assert right.receive(5.0) == Frame(FrameKind.CHANNEL, b"m" * 5000, len(payload))
        right.read_payload([memoryview(place)])
        sender.join()
        assert place == payload
        assert not right.has_input
        assert right.receive(0.0) is None
    here.send(FrameKind.BEAT, b"")
    here.send(FrameKind.BEAT, b"")
    assert there.wait(5.0)
    assert [there.receive(1.0), there.receive(1.0)] == [Frame(FrameKind.BEAT, b"", 0)] * 2
    here.close()
    there.close()


def test_several_frames_in_one_tls_record_are_all_heard(folder: Path) -> None:
    """What TLS has deciphered no poll shows: has_input does."""
    there, mine = meet(Credentials(folder / "head"), as_worker(Credentials(folder / "worker")))
    assert isinstance(there, SocketWire)
    assert isinstance(mine, ssl.SSLSocket)
    mine.sendall((HEAD.pack(FrameKind.DOORBELL, 0, 0, 30, 0, 0) + bytes(8) + b"m" * 30) * 200)
    assert there.wait(5.0)
    heard = 0
    while heard == 0 or there.has_input:
        assert there.receive(0.0) == Frame(FrameKind.DOORBELL, b"m" * 30, 0)
        heard += 1
    assert heard == 200
    there.close()
    mine.close()


def met(
    folder: Path, head: str, worker: str, host: str = "head", token: str = TOKEN
) -> tuple[SocketWire | BaseException, socket.socket | BaseException]:
    """Two that meet, by the names of their certificates: "" is plain text."""
    mine = as_worker(Credentials(folder / worker) if worker else None, host, token)
    return meet(Credentials(folder / head) if head else IN_THE_CLEAR, mine)


FOREIGN = "self-signed|unable to get|signature|unknown ca|decrypt error"
CERTS = ".*plesio certs DIR --host NAME"
TOKENS = r"it proves nothing: the worker's token \(token=, PLESIO_TOKEN, ~/.plesio/token\) is not the head's"
PLAIN, TLS = "it speaks plain text, this side TLS: give both certificates", "it speaks TLS, this side plain text"


@pytest.mark.parametrize(
    ("given", "there", "mine"),
    [
        ({"head": "head", "worker": "foreign/worker"}, f"({FOREIGN}){CERTS}", f"({FOREIGN}){CERTS}"),
        ({"head": "head", "worker": "old"}, f"expired{CERTS}", f"expired{CERTS}"),
        ({"head": "old", "worker": "worker", "host": "old"}, f"expired{CERTS}", f"expired{CERTS}"),
        ({"head": "worker", "worker": "head", "host": "elsewhere"}, "", "certificate is not valid for 'elsewhere'"),
        ({"head": "head", "worker": ""}, PLAIN, TLS),
        ({"head": "", "worker": "worker"}, TLS, PLAIN),
        ({"head": "head", "worker": "worker", "token": TOKEN[1:]}, "", TOKENS),
        ({"head": "", "worker": "", "token": TOKEN[1:]}, "", TOKENS),
    ],
)
def test_who_does_not_belong_together_is_told_why(folder: Path, given: dict[str, str], there: str, mine: str) -> None:
    for error, words in zip(met(folder, **given), (there, mine), strict=True):
        assert isinstance(error, (ProofError, OSError) if "token" in given else ProofError), error
        assert re.search(words, str(error), re.DOTALL), error


def test_a_worker_without_a_certificate_is_refused(folder: Path) -> None:
    def without(near: socket.socket) -> socket.socket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / CA)
        with context.wrap_socket(near, server_hostname="head") as channel:
            channel.recv(1)
            return channel

    there, mine = meet(Credentials(folder / "head"), without)
    assert isinstance(there, ProofError)
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in str(there)
    assert isinstance(mine, ssl.SSLError)
    assert "CERTIFICATE_REQUIRED" in str(mine)


def test_the_head_is_known_by_any_name_of_its_certificate(folder: Path) -> None:
    for end in met(folder, "worker", "head", host="10.9.8.7"):
        assert isinstance(end, SocketWire | socket.socket), end
        end.close()


def test_one_in_between_proves_nothing(folder: Path) -> None:
    """It has a certificate of the run, for the head's name too, but not the token, and passes on what both sides say."""
    worker, outside = tcp_pair()
    inside, head = tcp_pair()
    results: dict[str, BaseException | None] = {}

    def side(name: str, connection: socket.socket, given: Credentials, server_side: bool) -> None:
        try:
            secured(connection, TOKEN, given, server_side, "" if server_side else "head").close()
            results[name] = None
        except (ProofError, OSError) as error:
            results[name] = error

    sides = [
        threading.Thread(target=side, args=("worker", worker, Credentials(folder / "worker"), False)),
        threading.Thread(target=side, args=("head", head, Credentials(folder / "head"), True)),
    ]
    for thread in sides:
        thread.start()
    to_worker = secure._context(folder / "spy", True).wrap_socket(outside, server_side=True)
    to_head = secure._context(folder / "spy", False).wrap_socket(inside, server_hostname="head")
    to_head.sendall(to_worker.recv(48))
    to_worker.sendall(to_head.recv(64))
    assert to_worker.recv(32) == b""
    to_head.close()
    to_worker.close()
    for thread in sides:
        thread.join()
    assert isinstance(results["worker"], ProofError)
    assert "somebody in between passes on what both say" in str(results["worker"])
    assert results["head"] is not None


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, bytes(100), b"\x16\x03\x01\xff\xff" + bytes(200)])
@pytest.mark.parametrize("tls", [True, False])
def test_strangers_bytes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, tls: bool) -> None:
    monkeypatch.setattr(secure, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(secure, "PARTING_S", 0.1)

    def stranger(near: socket.socket) -> socket.socket:
        near.sendall(data)
        return near

    there, mine = meet(Credentials(folder / "head") if tls else None, stranger)
    assert isinstance(there, (ProofError, OSError))
    assert isinstance(mine, socket.socket)
    mine.close()


# Choosing


def test_no_certificates_are_needed_on_the_loopback_only() -> None:
    assert credentials(None, host="127.0.0.1") is None
    assert credentials(None, insecure=True, host="0.0.0.0") == Credentials(None)
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0 is not the loopback.*certs=DIR.*insecure=True"):
        credentials(None, host="0.0.0.0")
    with pytest.raises(ConfigurationError, match="is not the loopback"):
        connecting.connect("10.1.2.3", 7070, TOKEN, None, bytes(16))
    with pytest.raises(ConfigurationError, match="choose one, TLS or plain text"):
        credentials("certs", insecure=True)


def test_the_folder_of_this_host_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials(folder / "head") == Credentials(folder / "head")
    monkeypatch.setattr(socket, "gethostname", lambda: "worker")
    assert credentials(str(folder)) == Credentials(folder / "worker")
    monkeypatch.setattr(socket, "gethostname", lambda: "node9")
    with pytest.raises(ConfigurationError, match=r"holds no certificate.pem, key.pem: .*\(this host is node9\)"):
        credentials(folder)
    with pytest.raises(ConfigurationError, match=r"old/certificate.pem expired on 20\d\d-\d\d-\d\d: plesio certs DIR"):
        credentials(folder / "old")


def test_a_file_that_is_no_certificate_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in (CA, CERTIFICATE, KEY):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"certificate.pem is no certificate in PEM form"):
        credentials(tmp_path)


def test_this_host_is_known_by_its_addresses() -> None:
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.7")  # of documentation: nobody's
    assert not is_here("no-such-host.invalid")


def test_the_token_is_in_no_representation() -> None:
    listening = Listening(host="head", port=7070, token=TOKEN, credentials=None, rejoin_s=60.0)
    assert TOKEN not in repr(listening)


# Making


def test_keys_are_for_their_owner_alone(folder: Path) -> None:
    for key in (folder / CA_KEY, folder / "head" / KEY, folder / "worker" / KEY):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not (folder / "head" / CA_KEY).exists()
    assert stat.S_IMODE((folder / "head").stat().st_mode) == 0o700


def test_hosts_are_added_and_certificates_renewed(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["head"], days=0)
    authority = (tmp_path / CA).read_bytes()
    assert expiry(tmp_path / "head" / CERTIFICATE) <= time.time()
    assert make_certificates(tmp_path, ["head", "late"]) == [tmp_path / "head", tmp_path / "late"]
    assert (tmp_path / CA).read_bytes() == authority == (tmp_path / "late" / CA).read_bytes()
    assert 364 < (expiry(tmp_path / "head" / CERTIFICATE) - time.time()) / 86_400 < 366
    there, mine = meet(Credentials(tmp_path / "head"), as_worker(Credentials(tmp_path / "late")))
    for end in (there, mine):
        assert isinstance(end, SocketWire | socket.socket), end
        end.close()


@pytest.mark.parametrize("name", ["", "../elsewhere", ".", "a,", "/etc", "knöten"])
def test_what_is_no_host_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no host: a name or an address was wanted"):
        make_certificates(tmp_path / "certs", [name])
    assert not (tmp_path / "certs").exists()


@pytest.mark.thorough
def test_the_command_says_what_to_do_with_them(tmp_path: Path) -> None:
    command = [*PYTHON, "-m", "plesio", "certs", str(tmp_path / "certs"), "--host", "node1", "--host", "node2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/certs/node2: copy it to node2, and pass certs='{tmp_path}/certs/node2' there" in done.stdout
    assert "ca-key.pem makes certificates: keep it to yourself" in done.stdout
    refused = subprocess.run([*command, "--host", "a/b"], capture_output=True, text=True, timeout=280)
    assert refused.returncode == 2
    assert refused.stderr == "plesio: 'a/b' is no host: a name or an address was wanted, such as node1 or 10.0.0.1\n"
