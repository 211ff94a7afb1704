"""Accelerate's loop as one of many workers.

    def train(worker):
        accelerator = plesio.integrations.accelerate.Accelerator(worker, gradient_accumulation_steps=2)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    ps.run(train, "async_sgd", workers=2)

`prepare` takes things in any order, as `worker.prepare` does; `backward`, `accumulate` and `clip_grad_norm_` are Accelerate's.
Worker 0 is the main process. In lock step, what asks all processes (`gather_for_metrics`, `reduce`, `check_trigger`) is
Accelerate's, and each worker evaluates on its part of the data; under other strategies such questions are refused.
"""

from __future__ import annotations

from typing import Any

import accelerate
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader

from plesio.errors import ConfigurationError
from plesio.integrations.part import Slice, check_lock_step
from plesio.worker.worker import Worker

CUTS = {
    "split_batches": "plesio gives each worker whole batches; leave it out, and give the loader batch_size // worker.workers",
    "dispatch_batches": "plesio shares the data out, and each worker reads its own part; leave it out",
}
"""What of `DataLoaderConfiguration` says how many workers share a batch: what to do instead."""


class Accelerator(accelerate.Accelerator):
    """An accelerate.Accelerator whose `prepare` takes part in the run.

    Args:
        worker: what the training function is given.
        settings: Accelerate's.

    Raises:
        ConfigurationError: Accelerate would distribute the training, or cut the batches, too; from what asks all processes: not
            in lock step.
    """

    def __init__(self, worker: Worker, **settings: Any) -> None:
        super().__init__(**{"cpu": True, **settings})
        if (kind := self.state.distributed_type) not in (DistributedType.NO, DistributedType.MULTI_CPU):
            raise ConfigurationError(
                f"Accelerate with {kind.value}: plesio has the workers, and exchanges; leave it out"
            )
        for name, instead in CUTS.items():
            if worker.workers > 1 and getattr(self, name):
                raise ConfigurationError(f"Accelerate with {name}=True: {instead}")
        self._worker = worker
        self._reads = False
        if worker.workers > 1:
            _one_of_many(PartialState(), worker)

    def prepare(self, *things: Any, **named: Any) -> Any:
        """Take part in the run; then what Accelerate does of models and optimizers (precision, accumulation).

        Of several loaders the first one is to train from. In lock step the others are shared out as Accelerate does it.
        """
        ours = list(things)
        loaders = [place for place, one in enumerate(things) if isinstance(one, DataLoader)]
        theirs = loaders[not self._reads :] if self._worker.workers == 1 or dist.is_initialized() else []
        self._reads |= bool(loaders)
        places = [place for place in range(len(things)) if place not in theirs]
        prepared = self._worker.prepare(*(things[place] for place in places))
        for place, one in zip(places, [prepared] if len(places) == 1 else prepared, strict=True):
            ours[place] = one
        return super().prepare(*ours, **named)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """As Accelerate's, which steps it once for each process; a prepared one knows where the run is."""
        prepared = super().prepare_scheduler(scheduler)
        prepared.split_batches = True
        return prepared

    @property
    def distributed_type(self) -> Any:
        """Each worker prepares its model by itself."""
        return DistributedType.NO

    @property
    def is_main_process(self) -> bool:
        return self._worker.rank == 0

    @property
    def num_processes(self) -> int:
        return self._worker.workers

    @property
    def process_index(self) -> int:
        return self._worker.rank

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, DataLoader):
            return super().skip_first_batches(dataloader, num_batches)
        return Slice(dataloader, num_batches)


def _one_of_many(state: Any, worker: Worker) -> None:
    """What Accelerate asks of all processes it asks of all workers."""
    state.distributed_type, state.backend = DistributedType.MULTI_CPU, "gloo"
    state.num_processes, state.process_index, state.local_process_index = worker.workers, worker.rank, worker.rank
    if not dist.is_initialized():
        state.wait_for_everyone = lambda: None  # these strategies let nobody wait for others


def _asking(name: str) -> Any:

    def ask(self: Accelerator, *given: Any, **named: Any) -> Any:
        check_lock_step(self._worker, f"Accelerate's {name}")
        return getattr(super(Accelerator, self), name)(*given, **named)

    return ask


for _name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes", "check_trigger"):
    setattr(Accelerator, _name, _asking(_name))
