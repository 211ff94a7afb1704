"""Four workers and a head on spot instances: every few seconds one of the five is taken away, until a target accuracy.

    python examples/spot_fleet.py           # about a minute on 2 cores; --quick is for tests

Each is a process of this host that is started again as a scheduler would, by the same command line. Every second one has
notice (SIGTERM): a worker sends what it did, the head writes a checkpoint. The others have none (SIGKILL). What that costs is
compared with a fleet that nobody disturbs.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from digits import TRAIN, evaluate

WORKERS, BATCH, EPOCHS = 4, 32, 1000
TARGET, QUICK_TARGET = 0.95, 0.8
EVERY_S, EVERY_STEPS = 4.0, 40
"""How often a machine is taken: on a slow host later, when those that were taken are back and train."""
STEP_S = 0.1
"""Stands for a step of a larger network."""
ON_DEMAND, SPOT = 1.0, 0.3
"""What an hour of a machine costs."""


def train(worker: ps.Worker, target: float, log: Path) -> None:
    """An ordinary loop. The file grows by a byte with each batch whose gradients were computed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(TRAIN, batch_size=BATCH, shuffle=True, drop_last=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    with log.open("ab", buffering=0) as made:
        for _ in range(EPOCHS):
            for images, labels in loader:
                time.sleep(STEP_S)
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()
                made.write(b".")
                optimizer.step()
                with torch.no_grad():
                    accuracy = evaluate(model)["accuracy"]
                if accuracy >= target:
                    worker.stop(f"accuracy {accuracy:.3f}")


@dataclass
class Machine:
    """A command that is started whenever it is not there, and how long it ran in all."""

    name: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    ran_s: float = 0.0
    began: float = 0.0
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        self.began = time.monotonic()

    def ended(self) -> bool:
        """Whether it has ended by now; its time is then counted."""
        if self.began and self.process.poll() is not None:
            self.ran_s += time.monotonic() - self.began
            self.began = 0.0
        return not self.began


@dataclass(frozen=True)
class Result:
    seconds: float
    machine_hours: float
    made: int
    counted: int
    taken: int


class Fleet:
    """A head and its workers, on a folder that outlives them."""

    def __init__(self, folder: Path, target: float) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        # tcp:// has a worker outlive its head, as on another host
        told = {"PLESIO_TOKEN": secrets.token_hex(32), "PLESIO_JOIN": f"tcp://{address}", "OMP_NUM_THREADS": "1"}
        serve = f"serve --strategy async_sgd --workers {WORKERS} --listen {address} --runs runs"
        kept = "--checkpoint-every-s 1 --resume newest"
        head = [sys.executable, "-m", "plesio", *serve.split(), *kept.split()]
        work = [sys.executable, str(Path(__file__).resolve()), "worker", str(target)]
        environment = {**os.environ, **told}
        self.head = Machine("head", head, environment, folder)
        self.machines = [self.head] + [
            Machine(f"worker-{rank}", [*work, str(rank)], environment, folder) for rank in range(WORKERS)
        ]

    def run(self, disturbed: bool) -> Result:
        """Start whoever is not there, and take one away now and then, until the head says that the run is over."""
        rng, taken, began, trained = random.Random(7), 0, time.monotonic(), 0
        turns: list[Machine] = []
        for machine in self.machines:
            machine.start()
        try:
            while not (self.head.ended() and self.head.process.returncode == 0):
                for machine in self.machines:
                    if machine.ended():
                        machine.start()
                due = time.monotonic() - began > EVERY_S * (taken + 1) and self._trained() >= trained + EVERY_STEPS
                if disturbed and due:
                    turns = turns or rng.sample(self.machines, len(self.machines))  # each has its turn
                    self._take(turns.pop(), notice=taken % 2 == 0)
                    taken, trained = taken + 1, self._trained()
                time.sleep(0.05)
            seconds = time.monotonic() - began
        finally:
            for machine in self.machines:
                machine.process.kill()
                machine.process.wait()
                machine.ended()
        return Result(
            seconds, sum(one.ran_s for one in self.machines) / 3600, self._trained() * BATCH, self._counted(), taken
        )

    def _take(self, machine: Machine, notice: bool) -> None:
        print(f"  {machine.name} is taken, {'with' if notice else 'without'} notice", flush=True)
        machine.process.send_signal(signal.SIGTERM if notice else signal.SIGKILL)

    def _trained(self) -> int:
        """Batches whose gradients somebody computed."""
        return sum(one.stat().st_size for one in self._folder.glob("made-*"))

    def _counted(self) -> int:
        """Samples that the finished run consists of, also before it was resumed: each batch makes a version."""
        newest = max((self._folder / "runs").glob("*/summary.json"), key=lambda one: one.stat().st_mtime)
        return int(json.loads(newest.read_text())["version"]) * BATCH


def measured(target: float, disturbed: bool) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="spot-fleet-"))
    what = "machines are taken away" if disturbed else "undisturbed"
    print(f"{what}; the files are in {folder}", flush=True)
    return Fleet(folder, target).run(disturbed)


def main() -> None:
    target = QUICK_TARGET if "--quick" in sys.argv else TARGET
    calm, spot = measured(target, False), measured(target, True)
    redone = spot.made - spot.counted
    print(f"{spot.taken} machines taken; accuracy {target} was reached both times")
    print(f"samples lost (made again): {redone} of {spot.made}, {redone / spot.made:.1%}")
    print(f"time: {spot.seconds:.1f} s, undisturbed {calm.seconds:.1f} s")
    for name, one in (("undisturbed", calm), ("disturbed", spot)):
        costs = f"${one.machine_hours * ON_DEMAND:.4f} on demand, ${one.machine_hours * SPOT:.4f} as spot instances"
        print(f"cost, {name}: {costs}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        with ps.join(rank=int(sys.argv[3])) as joined:
            train(joined, float(sys.argv[2]), Path(f"made-{sys.argv[3]}"))
    else:
        main()
