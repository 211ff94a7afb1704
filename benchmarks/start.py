"""What a run costs before it trains: CPU and wall of the import, a first run of ten steps, a second one, and eight in a row.

    python benchmarks/start.py --json FILE [--quick]

Each figure is of fresh processes, in turn with `import torch` alone and with the same ten steps in plain torch. CPU time counts
all processes of a run. The wall of a second run is measured inside one process, as in a notebook; eight runs are eight strategies
on one function, as `plesio compare` makes them. Bytecode and compiled kernels are in their caches.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import Row, interleave, parser, report, row

TORCH = "import torch"
PLESIO = "import torch, plesio as ps; ps.run"
PLAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""
RUN = """
import sys
import time

import torch

import plesio as ps


def train(worker):
    model = torch.nn.Linear(4, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in worker.steps(10):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        began_s = time.perf_counter()
        ps.run(train, name, workers=2)
        print(time.perf_counter() - began_s)
"""
EIGHT = (
    "sync_sgd", "async_sgd", "bounded_staleness", "buffered", "local_sgd", "post_local_sgd", "hogwild", "allreduce"
)  # fmt: skip


def cpu(*command: str) -> float:
    """CPU seconds of a process and of all that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def walls(*command: str) -> list[float]:
    """Seconds of the whole process, then what it printed."""
    began_s = time.perf_counter()
    done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True, env=_environment())
    return [time.perf_counter() - began_s, *map(float, done.stdout.split())]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "ten.py")
        script.write_text(RUN)
        run = str(script)
        runs = 1 if arguments.quick else arguments.runs
        many = EIGHT[:2] if arguments.quick else EIGHT
        cpu(run, "sync_sgd")  # fills the caches
        of_cpu = interleave(
            {
                "torch": lambda: cpu("-c", TORCH),
                "plesio": lambda: cpu("-c", PLESIO),
                "plain": lambda: cpu("-c", PLAIN),
                "sync_sgd": lambda: cpu(run, "sync_sgd"),
                "local_sgd": lambda: cpu(run, "local_sgd"),
            },
            runs,
            "CPU",
        )
        torch = of_cpu["torch"]
        beyond = {
            name: [one - base for one, base in zip(values, torch, strict=True)] for name, values in of_cpu.items()
        }
        plain_s, first, second, all_of_them = [], [], [], []
        for _ in range(runs):
            plain_s += walls("-c", PLAIN)
            first.append(walls(run, "sync_sgd")[0])
            second.append(walls(run, "sync_sgd", "sync_sgd")[2])
            all_of_them.append(sum(walls(run, *many)[1:]))
        imports = "CPU of `import torch`"
        return [
            row("CPU of `import torch`", torch, "s"),
            row("CPU of `import plesio`, ps.run, beyond torch", beyond["plesio"], "s", target="< 0.15"),
            row("CPU of ten plain steps, beyond", beyond["plain"], "s", against=imports, against_values=torch),
            row(
                "CPU of ten steps, sync_sgd, 2 workers, beyond", beyond["sync_sgd"], "s",
                against=imports, against_values=torch, target="<= 1.5",
            ),
            row(
                "CPU of ten steps, local_sgd, 2 workers, beyond", beyond["local_sgd"], "s",
                against=imports, against_values=torch,
            ),
            row("wall of ten steps, sync_sgd", first, "s", against="the same in plain torch", against_values=plain_s),
            row("wall of a second run", second, "s", target="<= 0.5"),
            row(f"wall of {len(many)} runs of as many strategies", all_of_them, "s"),
        ]  # fmt: skip


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    report("How a run begins", rows(arguments), arguments.json)


if __name__ == "__main__":
    main()
