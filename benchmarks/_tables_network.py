"""Rows over TCP: one worker pulls them from the server and pushes gradients, against torch's RPC with nothing but TCP.

The server's CPU seconds are those of all processes on its side, proxy and door among them, for 1e9 bytes of rows: of each
distinct id of a step the key, the values and the gradient, once. `plesio serve` keeps a journal, with the checksum of all
rows that stepped; torch's server keeps nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
from torch.distributed import rpc
from torch.optim import SGD

import plesio as ps
from _network import ONLY_TCP
from _report import Row, interleave, row
from _tables_runs import BATCHES, DIM, EXAMPLES, FIELDS, NAMES, STEPS, WARM, Rows, Server, batches, over_rpc
from plesio.tables.spec import TableSpec
from plesio.tables.store import Store


class Measured(NamedTuple):
    """Steps a second; the server's CPU seconds for 1e9 bytes of rows."""

    steps_per_s: float
    cpu_s_per_gb: float


class CountingServer(Server):
    """Whose CPU time may be asked for."""

    def cpu_s(self) -> float:
        return time.process_time()


def measured(step: Callable[[int], object], server_cpu_s: Callable[[], float]) -> Measured:
    distinct = [len(one.unique()) for one in batches()]
    gb = sum(distinct[number % BATCHES] for number in range(STEPS)) * (8 + 2 * 4 * DIM) / 1e9
    for number in range(WARM):
        step(number)
    began_s, cpu_s = time.perf_counter(), server_cpu_s()
    for number in range(STEPS):
        step(number)
    return Measured(STEPS / (time.perf_counter() - began_s), (server_cpu_s() - cpu_s) / gb)


def cpu_s_of(process: int) -> float:
    """CPU seconds of a process and of those that it, or they, started."""
    user, system = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    children = [
        one for task in Path(f"/proc/{process}/task").iterdir() for one in (task / "children").read_text().split()
    ]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") + sum(cpu_s_of(int(one)) for one in children)


def joins(_: int, port: int, head: int, found: Any) -> None:
    torch.set_num_threads(1)
    with ps.join(address=f"tcp://127.0.0.1:{port}") as worker:
        net = Rows()
        model, optimizer = worker.prepare(net, SGD(net.top.parameters(), lr=0.1))
        data, gradient = batches(), torch.full((EXAMPLES, FIELDS, DIM), 1e-3)

        def step(number: int) -> None:
            worker.count(EXAMPLES)
            model(data[number % BATCHES]).backward(gradient)
            optimizer.step()

        found.put(measured(step, partial(cpu_s_of, head)))


def table_alone() -> Measured:
    """What nothing but the table takes of it: its pulls and folds, with no network, no server and no journal."""
    store, gradients = Store(TableSpec("ids", DIM)), np.full((EXAMPLES * FIELDS, DIM), 1e-3, np.float32)
    keys, touched = [one.unique().numpy() for one in batches()], np.ones(len(gradients), np.uint8)

    def step(number: int) -> None:
        some = keys[number % BATCHES]
        places = store.pull(some, np.empty((len(some), DIM), np.float32))
        store.fold(some, places, gradients[: len(some)], touched[: len(some)], store.clock + 1, store.clock)

    return measured(step, time.process_time)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def ours() -> Measured:
    os.environ["PLESIO_TOKEN"] = secrets.token_hex(16)
    port = free_port()
    serve = ["serve", "--listen", f"127.0.0.1:{port}", "--workers", "1", "--strategy", "async_sgd"]
    with tempfile.TemporaryDirectory() as folder:
        head = subprocess.Popen([sys.executable, "-m", "plesio", *serve], cwd=folder, stdout=subprocess.DEVNULL)
        found = mp.get_context("spawn").SimpleQueue()
        mp.spawn(joins, (port, head.pid, found), nprocs=1)
        head.wait(60)
    return found.get()


def by_rpc(rank: int, port: int, found: Any) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **ONLY_TCP)
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        server = rpc.remote(NAMES[0], CountingServer)
        found.put(measured(over_rpc(server), lambda: server.rpc_sync().cpu_s()))
    rpc.shutdown()


def theirs() -> Measured:
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(by_rpc, (free_port(), found), nprocs=2)
    return found.get()


def network(quick: bool, runs: int) -> list[Row]:
    """Steps a second and the server's CPU time, over TCP."""
    cpu: dict[str, list[float]] = {"ours": [], "rpc": [], "table": []}

    def rate(name: str, task: Callable[[], Measured]) -> float:
        one = task()
        cpu[name].append(one.cpu_s_per_gb)
        return one.steps_per_s

    tasks = {"ours": ours, "rpc": theirs, "table": table_alone}
    found = interleave({name: partial(rate, name, task) for name, task in tasks.items()}, 1 if quick else runs)
    rival = "torch RPC, TCP"
    return [
        row(
            f"pull + push of {EXAMPLES:,} x {FIELDS} ids, TCP", found["ours"], "steps/s",
            against=rival, against_values=found["rpc"], target=">= 1.5",
        ),
        row(
            "the same: processes of the server", cpu["ours"], "CPU s/GB",
            against=rival, against_values=cpu["rpc"], target="<= 0.2",
        ),
        row("the table's pulls and folds alone", cpu["table"], "CPU s/GB", against=rival, against_values=cpu["rpc"]),
    ]  # fmt: skip
