"""Accelerate's loop as one of many workers.

    def train(worker):
        accelerator = plesio.integrations.accelerate.Accelerator(worker, gradient_accumulation_steps=2)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    ps.run(train, "async_sgd", workers=2)

`prepare` takes things in any order, as `worker.prepare` does; `backward`, `accumulate` and `clip_grad_norm_` are Accelerate's.
Worker 0 is the main process.
"""

from __future__ import annotations

from typing import Any

import accelerate

from plesio.worker.worker import Worker


class Accelerator(accelerate.Accelerator):
    """An accelerate.Accelerator whose `prepare` takes part in the run.

    Args:
        worker: what the training function is given.
        settings: Accelerate's.
    """

    def __init__(self, worker: Worker, **settings: Any) -> None:
        super().__init__(**{"cpu": True, **settings})
        self._worker = worker

    def prepare(self, *things: Any, **named: Any) -> Any:
        """Take part in the run; then what Accelerate does of models and optimizers (precision, accumulation)."""
        return super().prepare(*self._worker.prepare(*things), **named)

    @property
    def is_main_process(self) -> bool:
        return self._worker.rank == 0

    @property
    def process_index(self) -> int:
        return self._worker.rank
