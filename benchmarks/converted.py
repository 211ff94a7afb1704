"""What schedulers, groups and the rest of a real script cost an exchange.

    python benchmarks/converted.py --json converted.json

`examples/converted` on two workers: as it stands, against the same loop with the smallest exchange, where `prepare` gets the
model, the optimizer and the loader alone, and the script steps its scheduler by itself. The bar: within 5%.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import plesio as ps
from _report import Row, interleave, parser, report, row

SCRIPTS = Path(__file__).parents[1] / "examples" / "converted"
EPOCHS = {"char_lm": 80, "resnet": 80}


class Measured:
    """The worker, whose `prepare` leaves schedulers to the script, if the exchange is to be the `smallest`."""

    rank = 1
    """So that nobody saves: how often a script does depends on its losses."""

    def __init__(self, worker: ps.Worker, smallest: bool) -> None:
        self._worker = worker
        self._smallest = smallest

    def prepare(self, model: Any, optimizer: Any, loader: Any, scheduler: Any) -> tuple[Any, ...]:
        """As the worker's."""
        if not self._smallest:
            return self._worker.prepare(model, optimizer, loader, scheduler)
        return *self._worker.prepare(model, optimizer, loader), scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


def train(worker: ps.Worker, name: str, epochs: int, smallest: bool) -> None:
    """The script's own function, for so many epochs, in an empty folder."""
    sys.path.insert(0, str(SCRIPTS))
    script: Any = importlib.import_module(name)
    script.EPOCHS = epochs
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        script.train(Measured(worker, smallest))


def step_ms(name: str, strategy: str, epochs: int, smallest: bool) -> float:
    """How long a worker's step takes."""
    loop = partial(train, name=name, epochs=epochs, smallest=smallest)
    run = ps.run(loop, strategy, workers=2, progress=False)
    return 2000.0 * run.summary.wall_s / run.steps


def main() -> None:
    """Both scripts, asynchronously and in lock step."""
    arguments = parser("A converted script's step against one with the smallest exchange.", runs=5).parse_args()
    rows: list[Row] = []
    for name, epochs in EPOCHS.items():
        for strategy in ("async_sgd", "sync_sgd"):
            part = partial(step_ms, name, strategy, 2 if arguments.quick else epochs)
            tasks = {"as converted": partial(part, smallest=False), "smallest": partial(part, smallest=True)}
            values = interleave(tasks, 1 if arguments.quick else arguments.runs, f"{name} {strategy}")
            against = {"against": "smallest exchange", "against_values": values["smallest"], "target": "<= 1.05"}
            rows.append(row(f"{name}, {strategy}, a step", values["as converted"], "ms", **against))
    report("Converted scripts", rows, arguments.json)


if __name__ == "__main__":
    main()
