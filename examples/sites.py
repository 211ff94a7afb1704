"""Four clinics train one network. Each keeps its images and a last layer of its own. The head learns only sums of what they send.

    python examples/sites.py        # all of it on this machine: a head, and four sites, of which two are killed

On machines of their own, where head.org is the head's name:

    export PLESIO_TOKEN=$(openssl rand -hex 32)                               # the same for all
    plesio certs certs --host head.org --host north --host east ...            # each host gets its own folder of certs/
    plesio serve --strategy "fedavg(clients_min=3, secure=3:0.5)" --workers 4 --listen head.org:7070 --certs certs/head.org
    PLESIO_JOIN=head.org:7070 PLESIO_CERTS=certs/north python sites.py north   # and so at east, south and west

A site is a folder with its images; `python sites.py --write` makes the four. A site that is killed is missing from the versions
made meanwhile. Started again, it goes on from the current version, with its own last layer.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps

SITES = ("north", "east", "south", "west")
ROUNDS, EPOCHS, BATCH, IMAGES = 30, 5, 10, 30
STRATEGY = "fedavg(clients_min=3, secure=3:0.5)"
"""Three sites or more make a version: the sum of two tells each of them what the other one sent. In a round no parameter may move
by more than 0.5."""
PAUSE_S = 0.1
"""Stands for a round of a larger network."""


def write(folder: Path) -> None:
    """Each site has images of its own, and numbers the ten digits in its own way."""
    images, labels = load_digits(return_X_y=True)
    for number, site in enumerate(SITES):
        own = (labels + 3 * number) % 10
        here = slice(number * IMAGES, (number + 1) * IMAGES)
        (folder / site).mkdir()
        np.savez(folder / site / "images.npz", x=images[here], y=own[here], test_x=images[1000:], test_y=own[1000:])


def build() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, last=nn.Linear(32, 10)))


class Site:
    """What lies in the folder of a site, and its training."""

    def __init__(self, folder: Path) -> None:
        self.name, self._last = folder.name, folder / "last.pt"
        with np.load(folder / "images.npz") as read:
            self._x, self._test_x = (torch.tensor(read[name], dtype=torch.float32) / 16 for name in ("x", "test_x"))
            self._y, self._test_y = (torch.tensor(read[name]) for name in ("y", "test_y"))

    def take_part(self, worker: ps.Worker) -> None:
        model = build()
        if self._last.exists():
            model.last.load_state_dict(torch.load(self._last))
            self._say("goes on with its own last layer")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        model, optimizer = worker.prepare(model, optimizer, share="body")
        while worker.version < ROUNDS:
            self._train(model, optimizer)
            time.sleep(PAUSE_S)
            worker.contribute(samples=len(self._y))
            self._keep(model.last)
            if worker.version % 5 == 0:
                self._say(f"version {worker.version}, accuracy {self._accuracy(model):.0%}")
        self._say(f"together {self._accuracy(model):.0%}, alone {self._alone():.0%}")

    def _say(self, what: str) -> None:
        print(f"{self.name}: {what}", flush=True)

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(self._y)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(self._x[batch]), self._y[batch]).backward()
                optimizer.step()

    def _keep(self, last: nn.Module) -> None:
        """If the site is killed meanwhile, the file of the round before is still whole."""
        beside = self._last.with_suffix(".new")
        torch.save(last.state_dict(), beside)
        beside.replace(self._last)

    @torch.no_grad()
    def _accuracy(self, model: nn.Module) -> float:
        return float((model(self._test_x).argmax(1) == self._test_y).float().mean())

    def _alone(self) -> float:
        """What as many epochs without the others come to."""
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(ROUNDS):
            self._train(model, optimizer)
        return self._accuracy(model)


def all_here() -> None:
    """The commands at the top of this file, on one machine. West is killed and stays away: the others go on. Then south is
    killed: north and east wait until it is back."""
    folder = Path(tempfile.mkdtemp(prefix="sites-"))
    write(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    certs = "certs/127.0.0.1"
    told = {"PLESIO_TOKEN": secrets.token_hex(32), "PLESIO_JOIN": f"tcp://{address}", "PLESIO_CERTS": certs}
    popen = partial(subprocess.Popen, cwd=folder, env={**os.environ, **told}, text=True)
    plesio, script = [sys.executable, "-m", "plesio"], [sys.executable, __file__]
    subprocess.run([*plesio, "certs", "certs", "--host", "127.0.0.1"], cwd=folder, check=True)
    with ExitStack() as stack:

        def start(*command: str, **streams: int) -> subprocess.Popen[str]:
            process = stack.enter_context(popen(command, **streams))
            stack.callback(process.kill)  # does nothing once the process has ended
            return process

        head = start(*plesio, "serve", "--strategy", STRATEGY, "--workers", "4", "--listen", address, "--certs", certs)
        north, east, west = (start(*script, site) for site in ("north", "east", "west"))
        south = start(*script, "south", stdout=subprocess.PIPE)
        assert south.stdout is not None
        for line in south.stdout:
            print(line, end="", flush=True)
            if line.startswith("south: version 5,"):
                west.kill()
            elif line.startswith("south: version 10,"):
                south.kill()
        back = start(*script, "south")
        codes = [process.wait() for process in (north, east, back, head)]
    print(f"north, east, south and the head ended with {codes}; the files are in {folder}")
    sys.exit(max(map(abs, codes)))


def main() -> None:
    if len(sys.argv) == 1:
        all_here()
    elif sys.argv[1] == "--write":
        write(Path())
    else:
        site = Site(Path(sys.argv[1]))
        with ps.join(rank=SITES.index(site.name)) as worker:
            site.take_part(worker)


if __name__ == "__main__":
    main()
