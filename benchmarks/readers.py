"""What readers cost a run, and what it costs to read: beside the same run without them, and torch's own `load_state_dict`.

    python benchmarks/readers.py --json FILE [--quick]

Two runs of four workers are alive at once: 1e6 parameters, `async_sgd`. They take turns of a second, so that both meet the same
mood of the machine. One has no readers. The other has eight, and each takes ten versions a second while it is their turn. In a
third kind of turn the first run trains beside eight processes that copy as much from memory of their own. No reader costs less.
"""

from __future__ import annotations

import mmap
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

import plesio as ps
from _report import Row, parser, report, row

WORKERS, READERS, EVERY_S = 4, 8, 0.1
TURN_S, NOBODY, OVER = 1.0, -1, -2


class Words:
    """Numbers that all processes see: whose turn it is, and how many steps each run has made."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.at = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")


def model_of(parameters: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(1000, parameters // 1000, bias=False)


def train(worker: ps.Worker, path: Path, me: int, parameters: int) -> None:
    """Steps while it is its turn; worker 0 counts them for all."""
    words, inputs = Words(path), torch.randn(16, 1000)
    model = model_of(parameters)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9))
    while (turn := words.at[0]) != OVER:
        if turn % 2 != me or turn < 0:
            time.sleep(0.0005)
            continue
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        words.at[8 + 8 * me + worker.rank] += 1


def copy(path: Path, me: int, parameters: int, address: str) -> None:
    """As `read`, from memory of its own."""
    torch.set_num_threads(1)
    words, model = Words(path), model_of(parameters)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    while words.at[0] != OVER:
        if words.at[0] == me:
            model.load_state_dict(state)
        time.sleep(EVERY_S)


def read(path: Path, me: int, parameters: int, address: str) -> None:
    """One that serves: the newest version every tenth of a second, into its model."""
    torch.set_num_threads(1)
    words, model = Words(path), model_of(parameters)
    with ps.read(address) as reader:
        while words.at[0] != OVER:
            if words.at[0] == me:
                reader.load(model)
                words.at[32] += 1
            time.sleep(EVERY_S)


def without_and_with(turns: int, parameters: int) -> tuple[dict[int, list[float]], float]:
    """Steps a second in each turn: without readers, with, and beside copies; and versions a second that were taken."""
    folder = Path(tempfile.mkdtemp(prefix="readers-"))
    path, address = folder / "words", f"127.0.0.1:{free_port()}"
    path.write_bytes(bytes(4096))
    words = Words(path)
    words.at[0] = NOBODY
    parts = [("run", 0, ""), ("run", 1, address), *(("read", 1, address), ("copy", 2, "")) * READERS]
    runs = [
        subprocess.Popen([sys.executable, __file__, *map(str, (what, path, me, parameters, given))])
        for what, me, given in parts
    ]
    for me in (0, 1):  # until both train, and all read
        words.at[0] = me
        while sum(words.at[8 + 8 * me : 12 + 8 * me]) < 50 or (me and words.at[32] < 2 * READERS):
            time.sleep(0.05)
    speeds: dict[int, list[float]] = {0: [], 1: [], 2: []}
    taken, taking_s = 0, 0.0
    for kind in [*(0, 1, 2, 2, 1, 0)] * turns:
        words.at[0], me = kind, kind % 2
        time.sleep(0.05)
        before, read_before, began_s = sum(words.at[8 + 8 * me : 12 + 8 * me]), words.at[32], time.perf_counter()
        time.sleep(TURN_S)
        took_s = time.perf_counter() - began_s
        speeds[kind].append((sum(words.at[8 + 8 * me : 12 + 8 * me]) - before) / took_s)
        taken, taking_s = taken + words.at[32] - read_before, taking_s + took_s * me
    words.at[0] = OVER
    for one in runs:
        one.wait(60)
    return speeds, taken / taking_s


def run(path: Path, me: int, parameters: int, address: str) -> None:
    step = partial(train, path=path, me=me, parameters=parameters)
    ps.run(step, "async_sgd", workers=WORKERS, readers=address or None, progress=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def steady(worker: ps.Worker, parameters: int, until: float) -> None:
    """A version every 20 ms."""
    inputs = torch.randn(4, 1000)
    model = model_of(parameters)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    while time.time() < until:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)


def beside_a_run(seconds: float, parameters: int, look: Callable[[str], None]) -> None:
    """Have `look` read a run that makes a version every 20 ms."""
    address = f"127.0.0.1:{free_port()}"
    looks = threading.Thread(target=look, args=(address,))
    looks.start()
    step = partial(steady, parameters=parameters, until=time.time() + seconds)
    ps.run(
        step,
        "async_sgd",
        workers=1,
        readers=address,
        progress=False,
    )
    looks.join()


def loads(seconds: float, parameters: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a reader's `load` of a version that it has mapped, and of `load_state_dict` of a copy in memory."""
    ours, torchs = [], []

    def look(address: str) -> None:
        torch.set_num_threads(1)
        with ps.read(address) as reader:
            model = model_of(parameters)
            while reader.wait() and not reader.ended:
                state = {name: one.clone() for name, one in reader.state_dict().items()}
                both = (ours, reader._into, model), (torchs, model.load_state_dict, state)
                for into, load, of in (
                    both if len(ours) % 2 else both[::-1]
                ):  # the first finds the model out of the cache
                    began_s = time.perf_counter()
                    load(of)
                    into.append(1000 * (time.perf_counter() - began_s))

    beside_a_run(seconds, parameters, look)
    return ours, torchs


def bytes_taken(codec: str | None, seconds: float, parameters: int) -> float:
    """Bytes a version over TCP."""
    from plesio.transport import socket_wire

    each = []

    def look(address: str) -> None:
        taken = socket_wire.SocketWire.read_payload

        def counted(wire: socket_wire.SocketWire, into: list[memoryview]) -> None:
            each.append(sum(one.nbytes for one in into))
            taken(wire, into)

        socket_wire.SocketWire.read_payload = counted  # type: ignore[method-assign,assignment]
        with ps.read(f"tcp://{address}", codec=codec) as reader:
            while reader.wait() and not reader.ended:
                pass
        socket_wire.SocketWire.read_payload = taken  # type: ignore[method-assign]

    beside_a_run(seconds, parameters, look)
    return statistics.median(each)


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], runs=20).parse_args()
    turns, seconds = (2, 2.0) if arguments.quick else (arguments.runs, 6.0)
    parameters = 10_000 if arguments.quick else 1_000_000
    speeds, taken = without_and_with(turns, parameters)
    without = {"against": "without readers", "against_values": speeds[0], "target": ">= 0.97"}
    rows: list[Row] = [
        row(f"steps/s beside {READERS} readers of {taken / READERS:.1f} versions/s", speeds[1], "steps/s", **without),
        row(f"steps/s beside {READERS} that copy as much", speeds[2], "steps/s", **without),
    ]
    ours, torchs = loads(seconds, parameters)
    rows.append(row("load", ours, "ms", against="torch's load_state_dict", against_values=torchs, target="<= 1.0"))
    whole, packed = (bytes_taken(codec, seconds, parameters) for codec in (None, "int8"))
    rows.append(
        row(
            "int8 differences over TCP",
            [packed],
            "bytes",
            against="all weights",
            against_values=[whole],
            target="<= 0.26",
        )
    )
    report("readers of a run", rows, arguments.json)


if __name__ == "__main__":
    if (part := {"run": run, "read": read, "copy": copy}.get(sys.argv[1] if len(sys.argv) > 1 else "")) is not None:
        of = sys.argv[2:]
        part(Path(of[0]), int(of[1]), int(of[2]), of[3])
    else:
        main()
