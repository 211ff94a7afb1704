"""Secure sums: what they cost beside plain ones, and how right they are.

Eight sites over TCP, a million parameters. The training is a step of SGD with a gradient that is there, so that the cost is that
of the exchange.

    python benchmarks/_federated_secure.py --json secure.json
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import struct
import warnings
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plesio as ps
from _report import Row, parser, progress, report, row
from plesio.config import RunConfig
from plesio.launch.job import Listening
from plesio.launch.local.listen import DoorSockets
from plesio.launch.start import start
from plesio.secure_sums.head import Phase, SecureHead
from plesio.secure_sums.numbers import to_numbers, to_words
from plesio.secure_sums.site import Identities, Site
from plesio.secure_sums.words import Masked
from plesio.transport import secure

FORK = multiprocessing.get_context("fork")
HOST, END_S, SITES, PARAMS, WARM = "127.0.0.1", 120.0, 8, 1_000_000, 2
SECURE = ps.SecureSums(threshold=5, clip=1.0)
UNIT = SECURE.clip * 2.0**-16
COUNTS = struct.Struct("@QQ")  # of Linux's `tcp_info`: bytes that were acknowledged, and received
COUNTS_AT = 120


def descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from descendants(child)


def cpu_s(pid: int) -> float:
    """What this process and all below it have worked so far."""
    ticks = 0
    for one in (pid, *descendants(pid)):
        user, system = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def tcp_bytes() -> int:
    """What went over this process's connections, both ways."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET:
                    told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += sum(COUNTS.unpack_from(told, COUNTS_AT))
        except OSError:  # it is no socket, or none of TCP
            continue
    return total


def site(told: Connection, address: str, token: str, rounds: int, number: int) -> None:
    """A process: the bytes a round, and at the first site the CPU seconds of all processes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    everybody = os.getppid()
    with ps.join(address=f"tcp://{address}", token=token) as worker:
        model = torch.nn.Linear(1000, PARAMS // 1000, bias=False)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.weight.grad = torch.full_like(model.weight, 0.1)
        while worker.version < WARM + rounds:
            if worker.version == WARM:
                before_s, before = cpu_s(everybody) if number == 0 else 0.0, tcp_bytes()
            optimizer.step()
            worker.contribute(samples=10 + number)
        spent_s = cpu_s(everybody) - before_s if number == 0 else 0.0
        told.send((spent_s / rounds, (tcp_bytes() - before) / rounds))


def measured(strategy: ps.Strategy, rounds: int) -> tuple[float, float]:
    """A round: CPU milliseconds of all processes, and bytes of a site."""
    token = secrets.token_hex()
    plain = secure.credentials(None, host=HOST)
    door = DoorSockets.open(Listening(host=HOST, port=0, token=token, credentials=plain, rejoin_s=END_S))
    pipes = [FORK.Pipe() for _ in range(SITES)]
    where = f"{HOST}:{door.listening.port}", token, rounds
    processes = [FORK.Process(target=site, args=(theirs, *where, at)) for at, (_, theirs) in enumerate(pipes)]
    for process in processes:
        process.start()
    try:
        start(RunConfig(strategy=strategy, workers=SITES), None, None, door=door)
        figures = [ours.recv() for ours, _ in pipes if ours.poll(END_S)]
        return 1000 * figures[0][0], sum(nbytes for _, nbytes in figures) / SITES
    finally:
        for process in processes:
            process.join(END_S)
            process.kill()


def summed(missing: Phase, drop: int = 2) -> float | str:
    """Some of eight sites are gone before they speak in a phase: how far the mean is from the right one, in 2^-16 of `clip`; or
    why there is none."""
    told: Mapping[int, Any] = {}
    rng, head, total = np.random.default_rng(0), SecureHead(SECURE), np.zeros(PARAMS, np.uint32)
    sites = {at: Site(at, 10 + at, SECURE, Identities(os.urandom), os.urandom) for at in range(SITES)}
    moved = {at: rng.normal(scale=0.2, size=PARAMS).astype(np.float32) for at in sites}
    came = set(sites)
    for phase in Phase:
        if phase is missing:
            for at in range(drop):
                sites.pop(at)
        for at, one in sites.items():
            if phase is Phase.KEYS:
                head.hear(at, one.keys)
            elif phase is Phase.SHARES:
                head.hear(at, one.shares(told[at]))
            elif phase is Phase.SUM:
                one.take(told[at])
                numbers = moved[at].copy()
                to_words(numbers, SECURE.clip, one.weight)
                one.mask(numbers)
                total += numbers.view(np.uint32)
                head.hear(at, Masked())
            else:
                head.hear(at, one.open(told[at]))
        if phase is Phase.SUM:
            came = set(sites)
        if phase is not Phase.OPEN:
            told = head.close()
            if head.why:
                return head.why
    share, mean = head.share, np.empty(PARAMS, np.float32)
    if why := head.unmask(total):
        return why
    to_numbers(total, SECURE.clip, share, mean)
    samples = sum(10 + at for at in came)
    right = sum((10 + at) / samples * moved[at].clip(-SECURE.clip, SECURE.clip).astype(float) for at in came)
    return float(np.abs(mean - right).max()) / UNIT


def rows(runs: int, rounds: int = 20) -> list[Row]:
    """What issue 40 asks of secure sums."""
    found: list[Row] = []
    for phase in Phase:
        error = summed(phase)
        assert isinstance(error, float), error
        what = f"secure sum, 2 of 8 sites gone before {phase.name.lower()}: error, in 2^-16 of clip"
        found.append(Row(what, error, "", None, None, None, "<= 1", error <= 1, 1))
        assert isinstance(summed(phase, drop=4), str), "below the threshold there is no sum"
    hidden, seen = [], []
    for _ in range(runs):
        hidden.append(measured(ps.fedavg(secure=SECURE), rounds))
        seen.append(measured(ps.fedavg(), rounds))
        progress.print(f"secure, plain: CPU ms, bytes of a site {hidden[-1]} {seen[-1]}")
    for place, what, unit, bar in (0, "CPU of all", "ms", "<= 5"), (1, "bytes of a site", "B", "<= 3"):
        ours, theirs = ([one[place] for one in each] for each in (hidden, seen))
        name = f"secure round, 8 sites, 1e6 parameters: {what}"
        found.append(row(name, ours, unit, against="plain", against_values=theirs, target=bar))
    return found


if __name__ == "__main__":
    arguments = parser("Secure sums beside plain ones.", runs=3).parse_args()
    quick = arguments.quick
    report("Secure sums", rows(1 if quick else arguments.runs, 5 if quick else 20), arguments.json)
