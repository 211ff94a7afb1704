"""Islands that joined over TCP against plain workers that did, on the loopback; and what the agreement of ranks takes.

    python benchmarks/islands.py                        # 2 islands of 2 ranks, 1e7 parameters, diloco(8)
    python benchmarks/islands.py --quick

The compute is nothing: gradients lie ready, so that local steps and the exchange alone are measured. In an island FSDP2 splits
the model, and each rank steps, sends and takes its part. Both kinds take turns. What a rank has beyond torch's own is its private
memory after some exchanges less that before prepare, over the model's size; bytes are those of its payloads, by exchange.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import secrets
import socket
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import plesio as ps
from _report import Row, interleave, parser, report, row, whole
from exchange import size
from plesio.config import RunConfig
from plesio.launch.job import Listening
from plesio.launch.local.listen import DoorSockets
from plesio.launch.start import start
from plesio.transport import secure
from plesio.transport.channel import channel_pair
from plesio.transport.collective import connected_store, rendezvous_store
from plesio.transport.host_group import HostGroup
from plesio.transport.island_group import IslandGroup
from plesio.transport.socket_wire import SocketWire

HOST = "127.0.0.1"
LAYERS, LOCAL_STEPS, WARM_ROUNDS = 10, 8, 2
WORKERS, RANKS = 2, 2
END_S = 60.0
AGREEMENTS = 1000
FORK = mp.get_context("fork")


def private_bytes() -> int:
    """Of this process's memory what no other shares."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def count_payloads() -> Callable[[], int]:
    """From now on; says how many bytes of payload this process sent and took, the larger of the two."""
    moved = [0, 0]
    send, take = SocketWire.send, SocketWire.read_payload

    def sending(wire: SocketWire, kind: Any, body: bytes, payload: Any = (), *rest: Any) -> None:
        moved[0] += sum(one.nbytes for one in payload)
        send(wire, kind, body, payload, *rest)

    def taking(wire: SocketWire, into: Any) -> None:
        moved[1] += sum(one.nbytes for one in into)
        take(wire, into)

    SocketWire.send, SocketWire.read_payload = sending, taking  # type: ignore[method-assign]
    return lambda: max(moved)


def train(worker: ps.Worker, params: int, rounds: int) -> tuple[float, float, float]:
    """Rounds a second, and shares of the model: what this process moved in a round, and what it has beyond torch's own."""
    side = max(2, round((params / LAYERS) ** 0.5) // 2 * 2)
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(LAYERS)))
    nbytes = 4 * LAYERS * side * side
    if worker.island.ranks > 1:
        fully_shard(model, mesh=worker.island.mesh)
    for one in model.parameters():
        one.grad = torch.full_like(one, 1e-9)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-9)
    optimizer.step()
    own = private_bytes()
    model, optimizer = worker.prepare(model, optimizer)
    for one in model.parameters():
        one.grad = torch.full_like(one, 1e-9) if one.grad is None else one.grad
    for turn in range(WARM_ROUNDS + rounds):
        if turn == WARM_ROUNDS:
            began_s, moved = time.perf_counter(), count_payloads()
        for _ in range(LOCAL_STEPS):
            optimizer.step()
    return rounds / (time.perf_counter() - began_s), moved() / rounds / nbytes, (private_bytes() - own) / nbytes


def joins(told: Connection, address: str, token: str, variables: dict[str, str], params: int, rounds: int) -> None:
    """A process: a worker, or with `variables` a rank of one."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(variables)
    with ps.join(address=f"tcp://{address}", token=token, island=bool(variables)) as worker:
        told.send(train(worker, params, rounds))


def free_port() -> int:
    with socket.create_server((HOST, 0)) as one:
        port: int = one.getsockname()[1]
        return port


def joined(ranks: int, params: int, rounds: int) -> list[tuple[float, float, float]]:
    """What each process of a run with two workers of so many ranks measured."""
    token = secrets.token_hex()
    plain = secure.credentials(None, host=HOST)
    door = DoorSockets.open(Listening(host=HOST, port=0, token=token, credentials=plain, rejoin_s=END_S))
    address = f"{HOST}:{door.listening.port}"
    lines, processes = [], []
    for _ in range(WORKERS):
        store = {"MASTER_ADDR": HOST, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            ours, theirs = FORK.Pipe()
            variables = {**store, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            processes.append(FORK.Process(target=joins, args=(theirs, address, token, variables, params, rounds)))
            lines.append(ours)
    for process in processes:
        process.start()
    try:
        start(RunConfig(strategy=ps.diloco(LOCAL_STEPS), workers=WORKERS), None, None, door=door)
        return [line.recv() for line in lines if line.poll(END_S)]
    finally:
        for process in processes:
            process.join(END_S)
            process.kill()


def agrees(told: Connection | None, port: int, end: socket.socket | None, rank: int, tensors: int) -> float:
    """Milliseconds of what the ranks of one island agree about in an exchange: by socket pairs, or without an `end` by gloo."""
    torch.set_num_threads(1)
    if end is not None:
        group: IslandGroup = HostGroup([end], rank, RANKS, END_S, "an island")
    else:
        store = connected_store(HOST, port, END_S)
        store.set_timeout(timedelta(seconds=END_S))
        group = IslandGroup(store, rank, RANKS, END_S, "an island")
    numbers, answer = [1.0] * (6 + tensors), b"x" * 64
    for turn in range(AGREEMENTS + 100):
        if turn == 100:
            began_s = time.perf_counter()
        group.total(numbers)
        group.told(lambda: answer)
    took_ms = 1000 * (time.perf_counter() - began_s) / AGREEMENTS
    if told is not None:
        told.send(took_ms)
    return took_ms


def agreement(on_one_host: bool, tensors: int = 100) -> float:
    store = rendezvous_store()
    ours, theirs = FORK.Pipe()
    ends = channel_pair() if on_one_host else (None, None)
    others = [
        FORK.Process(target=agrees, args=(theirs if not rank else None, store.port, end, rank, tensors))
        for rank, end in enumerate(ends)
    ]
    for other in others:
        other.start()
    took_ms: float = ours.recv()
    for other in others:
        other.join(END_S)
    return took_ms


def main(options: argparse.Namespace) -> list[Row]:
    params, rounds = (10_000, 3) if options.quick else (options.params, options.rounds)
    runs = 1 if options.quick else options.runs
    measured: dict[str, list[tuple[float, float, float]]] = {"islands": [], "workers": []}

    def speed(kind: str, ranks: int) -> float:
        found = joined(ranks, params, rounds)
        measured[kind] += found
        return sum(one for one, _, _ in found[::ranks])

    tasks = {"islands": partial(speed, "islands", RANKS), "workers": partial(speed, "workers", 1)}
    speeds = interleave(tasks, runs, f"P={size(params)}")
    moved, kept = ([max(one[place] for one in measured["islands"])] for place in (1, 2))
    what = f"{WORKERS} islands of {RANKS}, P={size(params)}, diloco({LOCAL_STEPS})"
    return [
        row(
            what,
            speeds["islands"],
            "rounds/s",
            against="plain workers",
            against_values=speeds["workers"],
            target=">= 0.9",
        ),
        row(f"{what}: a rank moves", moved, "of the model", target=f"<= {1.05 / RANKS}"),
        row(f"{what}: beyond torch's own", kept, "of the model", target=f"<= {1 / RANKS + 0.1}"),
        row(
            "what ranks of one host agree about in an exchange",
            [agreement(on_one_host=True) for _ in range(runs)],
            "ms",
            against="by gloo, as between hosts",
            against_values=[agreement(on_one_host=False) for _ in range(runs)],
            target="<= 0.5",
        ),
    ]


if __name__ == "__main__":
    arguments = parser(__doc__.partition("\n")[0])
    arguments.add_argument("--params", type=whole, default="1e7", metavar="P", help="parameters of the model")
    arguments.add_argument("--rounds", type=whole, default=20, metavar="N", help="measured rounds")
    given = arguments.parse_args()
    report("Islands over TCP", main(given), given.json)
