"""What the processes of network.py's contestants do.

Rank 0 is the server, the ranks from 1 on are its workers. A worker repeats its step and counts until it is told to stop; the
clock is network.py's, so that nobody measures himself.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import rpc
from xxhash import xxh3_64

import rivals
from exchange import exchanger, strategy

if TYPE_CHECKING:
    import plesio as ps

START_S = 60.0  # until a server says where it listens
HOST = "127.0.0.1"
PIECE_BYTES = 1 << 20
# Without these, tensors go through shared memory, or are read out of the other process (the channel called cma). Of the two
# channels that are left, mpt_uv does a third of the steps/s at 1e4, and as many from 1e6 on.
ONLY_TCP = {"_transports": ["uv"], "_channels": ["basic"]}


@dataclass(frozen=True)
class Setup:
    """What all processes of one contestant know. They meet in `folder`."""

    folder: Path
    params: int
    workers: int

    def counts(self) -> Counts:
        return Counts(self.folder / "counts", self.workers)

    def tell(self, name: str, text: str) -> None:
        """Leave a word in the folder; nobody reads half of it."""
        half = self.folder / f"{name}.half"
        half.write_text(text)
        half.rename(self.folder / name)

    def told(self, name: str, pattern: str) -> str:
        """What the file called `name` holds where the pattern has its group, once it is there."""
        deadline_s = time.monotonic() + START_S
        path = self.folder / name
        while time.monotonic() < deadline_s:
            found = re.search(pattern, path.read_text()) if path.exists() else None
            if found:
                return found[1]
            time.sleep(0.01)
        raise rivals.RivalError(f"nothing like {pattern!r} in {path} after {START_S:.0f} s")


class Counts:
    """Memory of all processes: whether to stop, and by worker how many steps it took and when the last one ended."""

    def __init__(self, path: Path, workers: int) -> None:
        length = 1 + 2 * workers
        if not path.exists():
            np.zeros(length, np.int64).tofile(path)
        self._cells = np.memmap(path, np.int64, "r+", shape=(length,))

    def stop(self) -> None:
        self._cells[0] = 1

    def repeat(self, step: Callable[[], object], worker: int) -> None:
        """Take steps as worker 0, 1, ... until all are stopped."""
        cells, at = self._cells, 1 + 2 * worker
        while not cells[0]:
            step()
            cells[at + 1] = time.monotonic_ns()
            cells[at] += 1

    def read(self) -> tuple[list[int], list[float]]:
        """By worker: steps, and the seconds at which the last one ended."""
        cells = self._cells.copy()
        return cells[1::2].tolist(), (1e-9 * cells[2::2]).tolist()


# --- bare sockets: the same bytes, and nothing done with them -----------------------------------------------------------


def raw(rank: int, setup: Setup) -> None:
    """4P bytes up, 4P down."""
    _sockets(rank, setup, secure=False)


def raw_ssl(rank: int, setup: Setup) -> None:
    """The same in mutual TLS 1.3."""
    _sockets(rank, setup, secure=True)


def _sockets(rank: int, setup: Setup, secure: bool) -> None:
    if rank == 0:
        _serve(setup, secure)
    else:
        _exchange(rank, setup, secure, lambda connection, data: connection.sendall(data), _receive)


def _exchange(
    rank: int,
    setup: Setup,
    secure: bool,
    send: Callable[[socket.socket, memoryview], None],
    receive: Callable[[socket.socket, memoryview], None],
) -> None:
    """A worker of bare sockets."""
    connection = socket.create_connection((HOST, int(setup.told("port", r"(\d+)"))))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if secure:
        connection = _tls(setup.folder, ssl.PROTOCOL_TLS_CLIENT).wrap_socket(connection)
    gradient, parameters = (memoryview(np.ones(setup.params, np.float32)).cast("B") for _ in range(2))

    def step() -> None:
        send(connection, gradient)
        receive(connection, parameters)

    setup.counts().repeat(step, rank - 1)


def _serve(setup: Setup, secure: bool) -> None:
    """A thread a worker: while one is in the system, the other may be, too."""
    parameters = memoryview(np.ones(setup.params, np.float32)).cast("B")
    context = certify(setup.folder) if secure else None
    with socket.create_server((HOST, 0)) as listener:
        setup.tell("port", str(listener.getsockname()[1]))
        for _ in range(setup.workers):
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, context, parameters)).start()


def _answer(connection: socket.socket, context: ssl.SSLContext | None, parameters: memoryview) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    slot = memoryview(np.ones(len(parameters), np.uint8))
    while True:
        _receive(connection, slot)
        connection.sendall(parameters)


def _receive(connection: socket.socket, into: memoryview) -> None:
    filled = 0
    while filled < len(into):
        count = connection.recv_into(into[filled:])
        if count == 0:
            raise ConnectionResetError("the other side has closed")
        filled += count


# --- the limit: what any such exchange does, by bare means --------------------------------------------------------------


def limit(rank: int, setup: Setup) -> None:
    """The raw bytes, each hashed at both ends; a process for each connection, and one that folds, which take turns by pipes."""
    _least(rank, setup, secure=False)


def limit_ssl(rank: int, setup: Setup) -> None:
    """The same in mutual TLS 1.3, which hashes by itself."""
    _least(rank, setup, secure=True)


def _least(rank: int, setup: Setup, secure: bool) -> None:
    if rank == 0:
        _fold_for_all(setup, certify(setup.folder) if secure else None)
    else:
        _exchange(rank, setup, secure, _send_hashed, _receive_hashed)


def _fold_for_all(setup: Setup, context: ssl.SSLContext | None) -> None:
    """A version is made of each gradient by one pass of SGD, in one of three buffers in turn."""
    shared = [mmap.mmap(-1, 4 * setup.params) for _ in range(setup.workers + 3)]
    tensors = [torch.frombuffer(one, dtype=torch.float32) for one in shared]
    slots, ring = tensors[: setup.workers], tensors[setup.workers :]
    poller, answers = select.poll(), {}
    with socket.create_server((HOST, 0)) as listener:
        setup.tell("port", str(listener.getsockname()[1]))
        for worker in range(setup.workers):
            connection, _ = listener.accept()
            came, goes = os.pipe(), os.pipe()
            if os.fork() == 0:
                for _, other in answers.values():  # or nobody would see the end of this process
                    os.close(other)
                os.close(goes[1])
                _relay(connection, context, goes[0], came[1], shared[worker], shared[setup.workers :])
            poller.register(came[0], select.POLLIN)
            answers[came[0]] = worker, goes[1]
    current = 0
    while True:
        for descriptor, _ in poller.poll():
            os.read(descriptor, 1)
            worker, answer = answers[descriptor]
            torch.sub(ring[current], slots[worker], alpha=rivals.LR, out=ring[(current + 1) % 3])
            current = (current + 1) % 3
            os.write(answer, bytes([current]))


def _relay(
    connection: socket.socket,
    context: ssl.SSLContext | None,
    turn: int,
    done: int,
    slot: mmap.mmap,
    ring: list[mmap.mmap],
) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    mine, versions = memoryview(slot), [memoryview(one) for one in ring]
    with suppress(OSError, ValueError):  # the others have ended
        while True:
            _receive_hashed(connection, mine)
            os.write(done, b"!")
            (current,) = os.read(turn, 1)
            _send_hashed(connection, versions[current])
    os._exit(0)


def _send_hashed(connection: socket.socket, view: memoryview) -> None:
    if isinstance(connection, ssl.SSLSocket):
        connection.sendall(view)
        return
    hashed = xxh3_64()
    for piece in _pieces(view):
        hashed.update(piece)
        connection.sendall(piece)
    connection.sendall(hashed.digest())


def _receive_hashed(connection: socket.socket, into: memoryview) -> None:
    if isinstance(connection, ssl.SSLSocket):
        _receive(connection, into)
        return
    hashed, told = xxh3_64(), bytearray(8)
    for piece in _pieces(into):
        _receive(connection, piece)
        hashed.update(piece)
    _receive(connection, memoryview(told))
    assert told == hashed.digest()


def _pieces(view: memoryview) -> list[memoryview]:
    return [view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES)]


def certify(folder: Path) -> ssl.SSLContext:
    """Make the one certificate that both sides show and trust; the server's context."""
    command = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    )
    files = ("-keyout", folder / "key.pem", "-out", folder / "certificate.pem", "-subj", "/CN=benchmark")
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=START_S)
    return _tls(folder, ssl.PROTOCOL_TLS_SERVER)


def _tls(folder: Path, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    context.load_verify_locations(folder / "certificate.pem")
    return context


# --- torch's own ------------------------------------------------------------------------------------------------------


def torch_rpc(rank: int, setup: Setup) -> None:
    """The parameter server of rivals.py, over TCP alone."""
    if rank == 0:
        rivals.RpcOwner.build(setup.params)
    rpc.init_rpc(
        "server" if rank == 0 else f"worker{rank}",
        rank=rank,
        world_size=setup.workers + 1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=_rendezvous(setup), **ONLY_TCP),
    )
    if rank:
        gradient = torch.full((setup.params,), rivals.SCALE)
        step = lambda: rpc.rpc_sync("server", rivals.push_and_pull, args=(gradient,))  # noqa: E731
        setup.counts().repeat(step, rank - 1)
    rpc.shutdown()


def ddp(rank: int, setup: Setup) -> None:
    """DDP on gloo, which uses TCP on one host too. It has no server: the ranks begin at 1."""
    dist.init_process_group("gloo", init_method=_rendezvous(setup), rank=rank - 1, world_size=setup.workers)
    model = torch.nn.parallel.DistributedDataParallel(rivals.FlatModel(setup.params))
    optimizer = torch.optim.SGD(model.parameters(), lr=rivals.LR)
    setup.counts().repeat(rivals.training_step(model, optimizer), rank - 1)


def _rendezvous(setup: Setup) -> str:
    return f"file://{setup.folder}/rendezvous"


# --- plesio -----------------------------------------------------------------------------------------------------------


def local(rank: int, setup: Setup) -> None:
    """`ps.run`: its workers share memory with the server."""
    import plesio as ps

    os.chdir(setup.folder)  # where the run's folder is made
    ps.run(functools.partial(_train, setup=setup), strategy("async_sgd"), workers=setup.workers)


def _train(worker: ps.Worker, setup: Setup) -> None:
    setup.counts().repeat(exchanger(worker, setup.params), worker.rank)


def async_tcp(rank: int, setup: Setup) -> None:
    """Workers that join over TCP, in the clear."""
    _remote(rank, setup, ["async_sgd", "--set", "correct=plain"])


def sync_tcp(rank: int, setup: Setup) -> None:
    """The same under `sync_sgd`."""
    _remote(rank, setup, ["sync_sgd"])


def async_tls(rank: int, setup: Setup) -> None:
    """The same in TLS."""
    _remote(rank, setup, ["async_sgd", "--set", "correct=plain"], certs="certs/localhost")


def sync_tls(rank: int, setup: Setup) -> None:
    """Both."""
    _remote(rank, setup, ["sync_sgd"], certs="certs/localhost")


def _remote(rank: int, setup: Setup, strategy: list[str], certs: str | None = None) -> None:
    """The head, or one of its workers."""
    if rank == 0:
        head(setup, strategy, certs)
    else:
        with join(setup, certs) as worker:
            _train(worker, setup)


def head(setup: Setup, strategy: list[str], certs: str | None = None) -> None:
    """`plesio serve`."""
    from plesio.cli import app
    from plesio.transport.certificates import make_certificates

    _enter(setup)
    secured = [] if certs is None else ["--certs", certs]
    if secured:
        make_certificates(Path("certs"), ["localhost"])
    app(["serve", "--listen", f"{HOST}:0", "--workers", str(setup.workers), "--strategy", *strategy, *secured])


def join(setup: Setup, certs: str | None = None) -> AbstractContextManager[ps.Worker]:
    """Join over TCP: without tcp:// a worker on the server's host shares its memory."""
    import plesio as ps

    _enter(setup)
    address = setup.told("stdout-0", r"PLESIO_JOIN=(\S+)\s")
    return ps.join(address=f"tcp://{address}", certs=certs)


def _enter(setup: Setup) -> None:
    os.chdir(setup.folder)
    os.environ["PLESIO_TOKEN"] = setup.folder.name * 4  # long enough, and nobody else's
