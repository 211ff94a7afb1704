"""Hugging Face's Trainer as one of many workers.

    def train(worker):
        trainer = plesio.integrations.transformers.Trainer(worker, model=model, args=args, train_dataset=data)
        trainer.train()

    ps.run(train, "async_sgd", workers=2)

As under `torchrun`, each worker reads an equal share of the batches, and what counts steps (`max_steps`, the schedule) counts
those of one worker. Worker 0 saves, logs and shows progress.
"""

from __future__ import annotations

from typing import Any

import transformers
from torch.utils.data import DataLoader

from plesio.integrations.part import Part
from plesio.worker.worker import Worker


class Trainer(transformers.Trainer):
    """A transformers.Trainer whose `train` takes part in the run.

    Args:
        worker: what the training function is given.
        settings: the Trainer's.
    """

    model: Any

    def __init__(self, worker: Worker, **settings: Any) -> None:
        self._worker = worker
        self._part: Part | None = None
        args = settings.get("args")
        if worker.rank and args is not None:
            args.save_strategy, args.logging_strategy = (
                type(args.save_strategy)("no"),
                type(args.logging_strategy)("no"),
            )
            args.report_to, args.disable_tqdm = [], True
        super().__init__(**settings)
        if worker.rank:
            self.remove_callback(transformers.trainer_callback.PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """This worker's part of the data."""
        args = self.args
        self._part = Part(
            self._worker,
            DataLoader(
                self.train_dataset,
                batch_size=self._train_batch_size,
                sampler=self._get_train_sampler(self.train_dataset),
                drop_last=args.dataloader_drop_last,
                num_workers=args.dataloader_num_workers,
                pin_memory=args.dataloader_pin_memory and args.n_gpu > 0,
                collate_fn=self.data_collator,
            ),
        )
        return self._part

    def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
        """The Trainer's optimizer, with a step that exchanges."""
        optimizer = super().create_optimizer(*arguments, **named)
        if self._part is not None and self._part.prepared is None:
            ours, optimizer, self._part.prepared = self._worker.prepare(self.model, optimizer, self._part.whole)
            self.model = self.model_wrapped = ours
            self.optimizer = optimizer
        return optimizer

    def is_world_process_zero(self) -> bool:
        return self._worker.rank == 0
