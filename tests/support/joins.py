"""A script for torchrun and srun: it becomes a worker, trains, and dies where it is told to.

    joins.py FOLDER STRATEGY VICTIM DEATHS [JOINED]

`VICTIM`: the rank of the process that kills itself; `DEATHS`: when it does, once each: "before" training, "after" it began.
"agent" and "group": then it kills the agent that started it, or tells it to end.
`JOINED`: half way, training waits until so many processes have joined in all.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

SAMPLES, BATCH, EPOCHS = 640, 4, 3
FROM_VERSION, HALF = 20, 200


def main(folder: Path, strategy: str, victim: str, deaths: str, expected: str = "0") -> None:
    own = os.environ.get("RANK", os.environ.get("SLURM_PROCID", ""))

    def die(when: str) -> None:
        done = folder / f"died-{when}"
        if own == victim and when in deaths and not done.exists():
            done.touch()
            whom = os.getppid() if when in ("agent", "group") else os.getpid()
            os.kill(whom, signal.SIGTERM if when == "group" else signal.SIGKILL)

    with ps.join(strategy, runs=folder / "runs") as worker:
        told = [os.environ[name] for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in os.environ]
        assert worker.island.local_rank == int(told[0] if told else worker.rank)
        (folder / f"joined-{worker.rank}-{os.getpid()}").touch()
        die("before")
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(SAMPLES, 8, generator=generator), torch.randint(4, (SAMPLES,), generator=generator)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        for _ in range(EPOCHS):
            for some, of in loader:
                optimizer.zero_grad()
                cross_entropy(model(some), of).backward()
                time.sleep(0.005)
                optimizer.step()
                if worker.version > FROM_VERSION:
                    for when in ("after", "agent", "group"):
                        die(when)
                while worker.version > HALF and len(list(folder.glob("joined-*"))) < int(expected):
                    time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
