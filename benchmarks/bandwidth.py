"""Two workers behind links of 100 Mbit/s and 40 ms there and back: how much of the time they train.

    python benchmarks/bandwidth.py --json bandwidth.json

The character model of examples/charlm.py, widened to 1e7 parameters. A step takes 90 ms: what is left of that a worker sleeps, as
while an accelerator computes, and the cores are free for the exchange. Workers join over TCP, each through a relay of its own
that lets through as many bytes a second, each way, and holds them for 20 ms. The ideal is their own steps without any
exchange: in the same processes before they join and after, or between two exchanges, whatever is less. The simulator is told
these steps and links, and should foretell the same. It packs in no time: what it foretells is also the most that such links
allow.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import plesio as ps
from _report import Row, parser, progress, report, row
from plesio.cluster import Cluster
from plesio.cluster.description import Group, Link
from plesio.cluster.steps import Constant
from plesio.strategy import recipes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import charlm

RATE, LATENCY_S, WIDTH, WORKERS, STEP_S = 12.5e6, 0.02, 24_000, 2, 0.09
PACKED = {"every": 50, "codec": "int4"}
# Recipe, settings, steps a worker. With overlap there are so many that the last exchange ends within.
STRATEGIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "sync_sgd": ("sync_sgd", {}, 5),
    "local_sgd(50)": ("local_sgd", {"every": 50, "overlap": False}, 150),
    "local_sgd(50), 4-bit": ("local_sgd", {**PACKED, "overlap": False}, 200),
    "local_sgd(50), 4-bit, overlap": ("local_sgd", {**PACKED, "overlap": True}, 215),
}


class Relay:
    """A slow link to `port`, of `rate` bytes a second: one thread each way."""

    def __init__(self, port: int, rate: float, latency_s: float) -> None:
        self._rate, self._latency_s = rate, latency_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = port
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the head is not there yet, and the worker tries again
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(one, other, self._rate, self._latency_s), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, rate: float, latency_s: float) -> None:
    """At `rate`, and `latency_s` later; reading waits where a queue as long as the link is full."""
    waiting: deque[tuple[float, bytes]] = deque()
    room, over = threading.Semaphore(16), threading.Event()

    def deliver() -> None:
        while not (over.is_set() and not waiting):
            if not waiting:
                time.sleep(0.001)
                continue
            due_s, data = waiting.popleft()
            time.sleep(max(0.0, due_s - time.monotonic()))
            room.release()
            try:
                target.sendall(data)
            except OSError:
                return
        target.close()

    threading.Thread(target=deliver, daemon=True).start()
    free_s = 0.0
    while data := _received(source):
        room.acquire()
        free_s = max(free_s, time.monotonic()) + len(data) / rate
        waiting.append((free_s + latency_s, data))
        time.sleep(max(0.0, free_s - time.monotonic()))
    over.set()


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor, draw: torch.Generator) -> None:
    inputs, following = charlm.windows(text, torch.randint(len(text) - charlm.CONTEXT, (charlm.BATCH,), generator=draw))
    optimizer.zero_grad()
    cross_entropy(model(inputs), following).backward()
    optimizer.step()


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Generator]:
    torch.manual_seed(0)
    model = charlm.build(WIDTH)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), charlm.text(held_out=False), torch.Generator()


def timed(steps: int, *given: Any) -> list[float]:
    """How long each step takes."""
    found = []
    for _ in range(steps):
        began_s = time.perf_counter()
        step(*given)
        time.sleep(max(0.0, began_s + STEP_S - time.perf_counter()))
        found.append(time.perf_counter() - began_s)
    return found


def work(address: str, steps: int) -> None:
    """One worker, in a process of its own: how long its steps take alone, and in the run."""
    torch.set_num_threads(1)
    model, optimizer, *data = parts()
    alone = timed(10, model, optimizer, *data)
    with ps.join(address=f"tcp://{address}", insecure=True) as worker:
        model, optimizer, *data = parts()
        model, optimizer = worker.prepare(model, optimizer)
        began_s = time.perf_counter()
        within = [timed(1, model, optimizer, *data)[0] for _ in worker.steps(steps * WORKERS)]
        took_s = time.perf_counter() - began_s
    alone += timed(10, *parts())
    alone_s = min(
        statistics.median(alone), statistics.median(within)
    )  # most steps within have no exchange, but in sync_sgd
    print(json.dumps({"alone_s": alone_s, "took_s": took_s}), flush=True)


def measured(name: str, steps: int, settings: dict[str, Any]) -> tuple[float, float]:
    """The share of the time that is training, and how long a step takes."""
    return through_relays(name, steps, settings, __file__, RATE, LATENCY_S)[:2]


def through_relays(
    name: str, steps: int, settings: dict[str, Any], script: str, rate: float, latency_s: float, *more: str
) -> tuple[float, float, float]:
    """That of workers, `script --work ADDRESS STEPS` and `more`, each through a relay; and the bytes of an exchange."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        environment = {**os.environ, "PLESIO_TOKEN": secrets.token_hex(16)}
        told = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        serve = ["serve", "--listen", f"127.0.0.1:{port}", "--workers", str(WORKERS), "--strategy", name, *told]
        head = subprocess.Popen(
            [sys.executable, "-m", "plesio", *serve], env=environment, cwd=folder, stdout=subprocess.DEVNULL
        )
        relays = [Relay(port, rate, latency_s) for _ in range(WORKERS)]
        arguments = [[sys.executable, script, "--work", f"127.0.0.1:{one.port}", str(steps), *more] for one in relays]
        workers = [
            subprocess.Popen(one, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) for one in arguments
        ]
        figures = [json.loads(one.communicate(timeout=400)[0].splitlines()[-1]) for one in workers]
        head.wait(60)
        (summary,) = Path(folder).glob("runs/*/summary.json")
        total = json.loads(summary.read_text())
    step_s = statistics.fmean(one["alone_s"] for one in figures)
    return steps * step_s / max(one["took_s"] for one in figures), step_s, total["bytes"] / total["folded"]


def foretold(name: str, steps: int, settings: dict[str, Any], step_s: float) -> float:
    """The same share, simulated."""
    cluster = Cluster((Group(WORKERS, Constant(step_s), Link(LATENCY_S, RATE)),))

    def train(worker: ps.Worker) -> None:
        model, optimizer, *data = parts()
        model, optimizer = worker.prepare(model, optimizer)
        for _ in worker.steps(steps * WORKERS):
            step(model, optimizer, *data)

    run = ps.run(train, recipes.recipe(name, **settings), workers=WORKERS, engine=ps.Simulated(cluster))
    return steps * step_s / run.summary.wall_s


def main() -> None:
    """Each strategy, real and simulated."""
    given = parser("Training over a slow link.", runs=3)
    given.add_argument("--work", nargs=2, metavar=("ADDRESS", "STEPS"), help=argparse.SUPPRESS)
    arguments = given.parse_args()
    if arguments.work:
        work(arguments.work[0], int(arguments.work[1]))
        return
    rows: list[Row] = []
    for title, (name, settings, steps) in STRATEGIES.items():
        steps, runs = (50 if "every" in settings else 1, 1) if arguments.quick else (steps, arguments.runs)
        real, simulated = [], []
        for _ in range(runs):
            share, step_s = measured(name, steps, settings)
            real.append(share)
            simulated.append(foretold(name, steps, settings, step_s))
            progress.print(f"{title}: {share:.3f}, foretold {simulated[-1]:.3f}; a step {1000 * step_s:.0f} ms")
        target = ">= 0.97" if settings.get("overlap") else None
        rows.append(row(f"{title}: share of the ideal", real, "", target=target))
        rows.append(row(f"{title}: foretold", simulated, "", against="measured", against_values=real))
    report("Two workers over links of 100 Mbit/s and 40 ms", rows, arguments.json)


if __name__ == "__main__":
    main()
