"""Models and callbacks for the trainers of others. Apart from the tests of these: the packages take seconds to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as pl
import torch
import transformers
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=0.01)
        schedule = CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watched(Module):
    """It remembers what it was shown; `data` makes the loader to train from."""

    def __init__(self, net: nn.Module, data: Callable[[], Any], manual: bool = False) -> None:
        super().__init__(net)
        self.data, self.seen, self.validated = data, list[float](), 0
        self.automatic_optimization = not manual

    def train_dataloader(self) -> Any:
        return self.data()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.seen.extend(batch[0][:, 0].tolist())
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, on_epoch=True)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.validated += len(batch[0])
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("judged", loss, sync_dist=True)  # each worker validates on all of the data, so there is nothing to ask
        self.log("never", 1.0)

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=0.01)
        return [optimizer], [CosineAnnealingLR(optimizer, 10)]


class Asking(Watched):
    """Its logged value of a step is the mean over workers."""

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.log("first", batch[0][0, 0], sync_dist=True)
        return super().training_step(batch, number)

    def on_train_batch_end(self, *_: Any) -> None:
        self.answers = [*getattr(self, "answers", []), float(self.trainer.callback_metrics["first"])]


class Stopping(transformers.TrainerCallback):  # type: ignore[misc]
    """Stops after 5 steps, and wants to save wherever it is."""

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        control.should_training_stop = state.global_step == 5
        control.should_save = True
