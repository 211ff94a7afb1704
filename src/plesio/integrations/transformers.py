"""Hugging Face's Trainer as one of many workers.

    def train(worker):
        trainer = plesio.integrations.transformers.Trainer(worker, model=model, args=args, train_dataset=data)
        trainer.train()

    ps.run(train, "async_sgd", workers=2)

As under `torchrun`, each worker reads an equal share of the batches, and what counts steps (`max_steps`, the schedule) counts
those of one worker. Worker 0 saves, logs and shows progress. Each worker evaluates on all of the data. If a callback stops the
training of one, that is the end of the run.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers.training_args import ParallelMode

from plesio.errors import ConfigurationError
from plesio.integrations.part import WorkerBatches
from plesio.worker.worker import Worker


class Trainer(transformers.Trainer):
    """A transformers.Trainer whose `train` takes part in the run.

    Args:
        worker: what the training function is given.
        settings: the Trainer's.

    Raises:
        ConfigurationError: `args` that distribute the training, too.
    """

    model: Any
    optimizer: Any

    def __init__(self, worker: Worker, *given: Any, **settings: Any) -> None:
        self._worker = worker
        self._part: WorkerBatches | None = None
        super().__init__(*given, **settings)
        mode = self.args.parallel_mode
        if mode is not ParallelMode.NOT_PARALLEL or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ConfigurationError(
                f"TrainingArguments with parallel_mode={mode.value}, deepspeed={self.args.deepspeed!r}, fsdp={self.args.fsdp!r}: "
                "plesio has the workers, each with one device. Leave these out, and let a worker see one GPU"
            )
        # whatever a subclass has made of these methods
        self.__dict__.update(get_train_dataloader=self._share_out, create_optimizer=self._prepare)

    def train(self, *given: Any, **named: Any) -> Any:
        result = super().train(*given, **named)
        asked = self._part is not None and self._part.given  # else it stops as others have taken all of an epoch
        if asked and self.control.should_training_stop and self.state.global_step < self.state.max_steps:
            self._worker.stop("Hugging Face's Trainer was told to stop")
        return result

    def _share_out(self) -> WorkerBatches:
        whole = type(self).get_train_dataloader(self)
        self._part = WorkerBatches(self._worker, getattr(whole, "base_dataloader", whole), self._prepare)
        return self._part

    def _prepare(self, *given: Any, **named: Any) -> Any:
        """The Trainer's optimizer, with a step that exchanges."""
        self.optimizer = type(self).create_optimizer(self, *given, **named) or self.optimizer
        part = self._part
        if part is not None and part.prepared is None:
            ours, self.optimizer, part.prepared = self._worker.prepare(self.model, self.optimizer, part.whole)
            self.model = self.model_wrapped = ours
        return self.optimizer

    def is_world_process_zero(self) -> bool:
        return self._worker.rank == 0

    is_local_process_zero = is_world_process_zero

    def save_model(self, *given: Any, **named: Any) -> None:
        if self.is_world_process_zero():
            super().save_model(*given, **named)

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        if self.is_world_process_zero():
            super()._save_checkpoint(*given, **named)
