"""What a scheduler does with the commands of its template: it starts them, takes their machines away, and starts them again.

A *machine* is a folder, and what works in it is what runs on the machine, also in a session of its own. While machines are
still to be taken, `train` makes only a few steps for each. So no test depends on how fast anything is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.processes import gone_within

SAMPLES, BATCH, EPOCHS, STEPS_EACH = 640, 4, 3, 20
STEPS = EPOCHS * SAMPLES // BATCH
OF_SCHEDULERS = ("bash", "sbatch", "srun")
HEAD, STEPS_MADE, TAKEN = "head", "steps", "taken"
END_S = 60.0


def size(file: Path) -> int:
    """How often something happened: each time the file grew by a byte."""
    return file.stat().st_size if file.exists() else 0


def send(number: int, pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def train(worker: ps.Worker) -> None:
    """What the script of a template trains, on a machine whose neighbour folders are shared."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(SAMPLES, 8, generator=generator), torch.randint(4, (SAMPLES,), generator=generator)
    model = nn.Linear(8, 4)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
    here, everywhere, taken = Path(STEPS_MADE).absolute(), Path("..", STEPS_MADE), Path("..", TAKEN)
    own = 0
    for _ in range(EPOCHS):
        for some, of in loader:
            while own and size(everywhere) > STEPS_EACH * (size(taken) + 1):
                time.sleep(0.01)
            optimizer.zero_grad()
            cross_entropy(model(some), of).backward()
            optimizer.step()
            own += 1
            here.write_text(str(os.getpid()))
            with everywhere.open("ab") as file:
                file.write(b".")


@dataclass
class Machine:
    """`again`: whether the scheduler starts the command anew after this status; `tells_all`: whether it sends SIGTERM to all
    that works there, or to the first process only."""

    folder: Path
    command: list[str]
    environment: dict[str, str]
    again: Callable[[int], bool]
    tells_all: bool

    def start(self) -> None:
        self._began_ns = time.time_ns()
        with (self.folder / "log").open("ab") as log:
            self._first = subprocess.Popen(self.command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    @property
    def done(self) -> Path:
        """This file is there once the command has ended with 0."""
        return self.folder.with_name(f"{self.folder.name}-is-done")

    def has_trained(self) -> bool:
        """Since it was started; a head has when anybody has."""
        steps = (self.folder.parent if self.folder.name == HEAD else self.folder) / STEPS_MADE
        return steps.exists() and steps.stat().st_mtime_ns > self._began_ns

    def keep(self) -> None:
        """Start the command again if it has ended and was not done."""
        status = self._first.poll()
        if status is None or self.done.exists():
            return
        if status == 0:
            assert gone_within(set(self._works()), END_S), "something was left behind"
            self.done.touch()
        else:
            assert self.again(status), f"{self.folder.name} ended with {status}"
            self.clear()
            self.start()

    def take(self, how: str) -> None:
        if how == "told":
            send(signal.SIGTERM, self._programs() if self.tells_all else {self._first.pid})
            self._first.wait(END_S)
        elif how == "lost":
            self.clear()
            self.start()
        else:  # only the worker that made the last step
            while not (made_by := (self.folder / STEPS_MADE).read_text()):  # it is being written anew
                time.sleep(0.01)
            send(signal.SIGKILL, {int(made_by)})

    def clear(self) -> None:
        """Kill all that works there."""
        while pids := set(self._works()):
            send(signal.SIGKILL, pids)
            assert gone_within(pids, END_S)
        self._first.wait(END_S)

    def _works(self) -> dict[int, str]:
        """The processes that work there, and their names."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self.folder:
                    found[int(process.name)] = (process / "comm").read_text().strip()
        return found

    def _programs(self) -> set[int]:
        """Without stand-ins (support.programs), which hand signals on."""
        return {pid for pid, name in self._works().items() if not name.isdigit() and name not in OF_SCHEDULERS}


def supervise(machines: list[Machine], takings: list[tuple[str, str]], ended_by_head: bool) -> None:
    """Start all machines, take one whenever some steps were made, and start them again, until all are done, or the head is."""
    shared, named = machines[0].folder.parent, {one.folder.name: one for one in machines}
    taken = shared / TAKEN

    def is_due(machine: Machine) -> bool:
        enough = size(shared / STEPS_MADE) >= STEPS_EACH * (size(taken) + 1)
        kept = any(Path(where).match("checkpoints/version-*") for where, _, _ in os.walk(shared))
        return enough and kept and machine.has_trained()

    try:
        for one in machines:
            one.start()
        awaited = [named[HEAD]] if ended_by_head else machines
        while not all(one.done.exists() for one in awaited):
            for one in machines:
                one.keep()
            if takings and is_due(named[takings[0][0]]):
                name, how = takings.pop(0)
                with taken.open("ab", buffering=0) as file:
                    file.write(b".")  # before: who is told may be waiting for it
                    named[name].take(how)
                    file.write(b"" if takings else bytes(STEPS))
            time.sleep(0.02)
        for one in machines:
            if not one.done.exists():
                one.take("told")
    finally:
        for one in machines:
            one.clear()
