"""Lightning's Trainer as one of many workers.

    def train(worker):
        trainer = plesio.integrations.lightning.Trainer(worker, max_epochs=3, gradient_clip_val=1.0)
        trainer.fit(module, loader)

    ps.run(train, "async_sgd", workers=2)

As under Lightning's own strategies, each worker reads an equal share of the batches, and what counts steps (a schedule by
`estimated_stepping_batches`, `max_steps`) counts those of one worker. Worker 0 logs, checkpoints and shows progress.
"""

from __future__ import annotations

from typing import Any

import lightning as pl
from lightning.pytorch.utilities import rank_zero
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.integrations.part import Part
from plesio.worker.worker import Worker


class Trainer(pl.Trainer):
    """A Lightning Trainer whose `fit` takes part in the run; automatic optimisation only.

    Args:
        worker: what the training function is given.
        settings: Lightning's.

    Raises:
        ConfigurationError: from `fit`: no DataLoader to train from, manual optimisation, or a module without optimizers.
    """

    def __init__(self, worker: Worker, **settings: Any) -> None:
        rank_zero.rank_zero_only.rank = worker.rank
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        silent = dict.fromkeys(quiet, False) if worker.rank else {}
        super().__init__(**{"accelerator": "cpu", "devices": 1, **settings, **silent})
        self._worker = worker

    def fit(self, model: pl.LightningModule, train_dataloaders: Any = None, *rest: Any, **named: Any) -> None:
        """As Lightning's."""
        if not model.automatic_optimization:
            raise ConfigurationError(
                "automatic_optimization=False: call worker.prepare in your own loop, without a Trainer"
            )
        source = named.get("datamodule") or model
        if train_dataloaders is None:
            if source is not model:
                source.setup("fit")
            train_dataloaders = source.train_dataloader()
        part = Part(self._worker, train_dataloaders)
        configure = model.configure_optimizers

        def prepared() -> Any:
            return self._prepared(model, configure(), part)

        model.configure_optimizers = prepared
        try:
            super().fit(model, part, *rest, **named)
        finally:
            model.configure_optimizers = configure

    def _prepared(self, model: pl.LightningModule, configured: Any, part: Part) -> Any:
        """What Lightning gets for what the module configured: the same, with optimizers that exchange."""
        optimizers = _optimizers_in(configured)
        if not optimizers:
            raise ConfigurationError(f"{type(model).__name__}.configure_optimizers returned no optimizer")
        ours, part.prepared, *exchanged = self._worker.prepare(model, part.whole, *optimizers)
        if ours is not model:
            raise ConfigurationError(
                "torch's all-reduce exchanges after forward(), and Lightning calls training_step; take sync_sgd instead"
            )
        return _replaced(configured, dict(zip(map(id, optimizers), exchanged, strict=True)))


def _optimizers_in(configured: Any) -> list[Optimizer]:
    """The optimizers in one of the forms that `configure_optimizers` may return."""
    if isinstance(configured, Optimizer):
        return [configured]
    if isinstance(configured, dict):
        return _optimizers_in(configured["optimizer"])
    return [one for part in configured or () for one in _optimizers_in(part)] if _is_list(configured) else []


def _is_list(configured: Any) -> bool:
    return isinstance(configured, (list, tuple))


def _replaced(configured: Any, by: dict[int, Any]) -> Any:
    """The same with other optimizers; schedulers are told of theirs."""
    if _is_list(configured):
        return [_replaced(one, by) for one in configured]
    if isinstance(configured, dict):
        return {key: _replaced(value, by) for key, value in configured.items()}
    if id(getattr(configured, "optimizer", None)) in by:
        configured.optimizer = by[id(configured.optimizer)]
    return by.get(id(configured), configured)
