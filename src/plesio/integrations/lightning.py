"""Lightning's Trainer as one of many workers.

    def train(worker):
        trainer = plesio.integrations.lightning.Trainer(worker, max_epochs=3, gradient_clip_val=1.0)
        trainer.fit(module, loader)

    ps.run(train, "async_sgd", workers=2)

As under Lightning's own strategies, each worker reads an equal share of the batches, and what counts steps (a schedule by
`estimated_stepping_batches`, `max_steps`) counts those of one worker. Worker 0 logs, checkpoints and shows progress. Each worker
validates on all of the data. If one stops training early, that is the end of the run.
"""

from __future__ import annotations

from typing import Any

import lightning as pl
import torch.distributed as dist
from lightning.fabric.utilities.distributed import _all_gather_ddp_if_available, _sync_ddp_if_available
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero

from plesio.errors import ConfigurationError
from plesio.integrations.part import WorkerBatches, check_lock_step
from plesio.worker.worker import Worker


class Trainer(pl.Trainer):
    """A Lightning Trainer whose `fit` takes part in the run.

    Args:
        worker: what the training function is given.
        settings: Lightning's, but for those that start processes.

    Raises:
        ConfigurationError: a strategy, devices or nodes of Lightning's; from `fit`: nothing that can be shared out.
    """

    def __init__(self, worker: Worker, **settings: Any) -> None:
        rank_zero.rank_zero_only.rank = worker.rank
        if settings.pop("strategy", "auto") not in ("auto", "single_device") or settings.get("num_nodes", 1) != 1:
            raise ConfigurationError(OWN_PROCESSES)
        strategy = _Workers(worker)
        super().__init__(
            **{"accelerator": "cpu", "devices": 1, **settings, "use_distributed_sampler": False}, strategy=strategy
        )
        if len(strategy.parallel_devices) > 1:
            raise ConfigurationError(OWN_PROCESSES)
        self._worker = worker

    def fit(self, *given: Any, **named: Any) -> None:
        super().fit(*given, **named)
        if self.should_stop:
            self._worker.stop("Lightning's Trainer was told to stop")


class _Workers(SingleDeviceStrategy):
    """What Lightning does differently as one of several workers."""

    optimizers: Any
    parallel_devices: Any = None
    _layer_sync: Any = None  # Lightning sets both; the second for sync_batchnorm=True

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.global_rank = worker.rank
        self.is_distributed = worker.workers > 1  # so that sync_dist asks
        self._parts: list[WorkerBatches] = []
        self._prepared = False

    @property
    def root_device(self) -> Any:
        return self.parallel_devices[0]

    @property
    def is_global_zero(self) -> bool:
        return self._worker.rank == 0

    def reduce(self, tensor: Any, *given: Any, **named: Any) -> Any:
        """Over all workers, if `self.log(sync_dist=True)` asks; Lightning itself asks how long loaders are, without a group."""
        return _sync_ddp_if_available(tensor, **named) if "group" in named and self._asks("sync_dist=True") else tensor

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        return _all_gather_ddp_if_available(tensor, group, sync_grads) if self._asks("all_gather") else tensor

    def _asks(self, what: str) -> bool:
        """Whether others know more than this worker; each validates on all of the data."""
        training = bool(self.lightning_module.trainer.training)
        if training:
            check_lock_step(self._worker, f"{what} in Lightning's training")
        return training

    def process_dataloader(self, dataloader: Any) -> Any:
        """This worker's part, if it is to train from."""
        if not self.lightning_module.trainer.training:
            return dataloader
        part = WorkerBatches(self._worker, dataloader, self._take_part)
        if self._prepared:  # reload_dataloaders_every_n_epochs
            most = self.lightning_module.trainer.limit_train_batches
            part.prepared = part.cut(most) if self._worker.workers == 1 else self._worker.share(part.cut(most))
        else:
            self._parts.append(part)
        return part

    def _take_part(self) -> None:
        module, plain = self.lightning_module, list(self.optimizers)
        self._ask_all_in_training(module)
        data = [part.cut(module.trainer.limit_train_batches) for part in self._parts]
        self.model, *prepared = self._worker.prepare(module, *data, *plain)
        for part, shared in zip(self._parts, prepared, strict=False):
            part.prepared = shared
        self.optimizers = prepared[len(data) :]
        self._prepared = True

    def _ask_all_in_training(self, module: pl.LightningModule) -> None:
        """Layers and metrics that ask all workers do so then; each validates on all of the data."""
        if self._layer_sync is not None and self._worker.workers > 1:
            self._layer_sync.apply(module)
        for one in module.modules():
            if hasattr(one, "distributed_available_fn"):  # a metric of torchmetrics
                one.distributed_available_fn = lambda: dist.is_initialized() and module.trainer.training


OWN_PROCESSES = (
    "strategy=, devices= and num_nodes= of Lightning's Trainer start processes of its own: leave them out, and say "
    "ps.run(train, strategy, workers=2); one device of several is accelerator='gpu', devices=[worker.device.index]"
)
