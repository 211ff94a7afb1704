"""Lightning, Hugging Face's Trainer and Accelerate compute under plesio what they compute on their own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import plesio as ps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate = pytest.importorskip("accelerate")
    pl = pytest.importorskip("lightning")
    transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
EPOCHS, ROWS = 3, 64
ASYNCHRONOUS = ["async_sgd", "local_sgd", "hogwild"]


@pytest.fixture(autouse=True)
def quiet() -> None:
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))


def loader(batch: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(inputs(), inputs().sum(1, keepdim=True)), batch_size=batch)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


Settings = dict[str, Any]


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=0.01)
        schedule = CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def by_lightning(worker: ps.Worker | None, batch: int, folder: str, clip: float | None) -> nn.Module:
    settings: Settings = {
        "max_epochs": EPOCHS,
        "gradient_clip_val": clip,
        "accumulate_grad_batches": 2,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
        "logger": pl.pytorch.loggers.CSVLogger(folder),
    }
    module = Module()
    if worker is None:
        pl.Trainer(accelerator="cpu", enable_progress_bar=False, **settings).fit(module, loader(batch))
    else:
        from plesio.integrations.lightning import Trainer

        trainer = Trainer(worker, **settings)
        trainer.fit(module, loader(batch))
        assert (trainer.logger is None) == (worker.rank > 0)
    return module


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> Any:
        row = inputs()[place]
        return {"x": row, "labels": row.sum(0, keepdim=True)}


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.net(x)
        return {"loss": (output - labels).square().mean(), "logits": output}


def by_transformers(worker: ps.Worker | None, batch: int, folder: str, clip: float | None) -> nn.Module:
    args = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch,
        num_train_epochs=EPOCHS,
        learning_rate=0.01,
        lr_scheduler_type="cosine",
        max_grad_norm=clip or 0.0,
        gradient_accumulation_steps=2,
        train_sampling_strategy="sequential",
        save_strategy="epoch",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model, data = Scored(), Rows()
    if worker is None:
        transformers.Trainer(model=model, args=args, train_dataset=data).train()
    else:
        from plesio.integrations.transformers import Trainer

        Trainer(worker, model=model, args=args, train_dataset=data).train()
    return model


def by_accelerate(worker: ps.Worker | None, batch: int, folder: str, clip: float | None) -> nn.Module:
    accumulate: Settings = {"gradient_accumulation_steps": 2}
    if worker is None:
        accelerator = accelerate.Accelerator(cpu=True, **accumulate)
    else:
        from plesio.integrations.accelerate import Accelerator

        accelerator = Accelerator(worker, **accumulate)
        assert accelerator.is_main_process == (worker.rank == 0)
    model = network()
    optimizer, data = AdamW(model.parameters(), lr=0.01), loader(batch)
    schedule = CosineAnnealingLR(optimizer, EPOCHS * len(data) // 2)
    data, schedule, model, optimizer = accelerator.prepare(data, schedule, model, optimizer)
    for _ in range(EPOCHS):
        for rows, labels in data:
            with accelerator.accumulate(model):
                accelerator.backward((model(rows) - labels).square().mean())
                if accelerator.sync_gradients and clip:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return model


Loop = Callable[..., nn.Module]
LOOPS: dict[str, Loop] = {"lightning": by_lightning, "transformers": by_transformers, "accelerate": by_accelerate}
ALL = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


def train(worker: ps.Worker, loop: Loop, **settings: Any) -> None:
    loop(worker, **settings)


@ALL
def test_one_worker_gives_the_trainers_own_bits(loop: Loop, tmp_path: Path) -> None:
    alone = loop(None, batch=8, folder=str(tmp_path / "alone"), clip=0.5).state_dict()
    part = partial(train, loop=loop, batch=8, folder=str(tmp_path / "run"), clip=0.5)
    run = ps.run(part, "sync_sgd", workers=1, timeout_s=60.0)
    assert all(torch.equal(value, alone[name]) for name, value in run.state_dict.items())
    assert run.samples == EPOCHS * ROWS


@ALL
def test_two_workers_in_lock_step_are_the_trainer_with_the_doubled_batch(loop: Loop, tmp_path: Path) -> None:
    """Clipping is left out: each worker clips its own gradient."""
    alone = loop(None, batch=8, folder=str(tmp_path / "alone"), clip=None).state_dict()
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path / "run"), clip=None)
    run = ps.run(part, "sync_sgd", workers=2, timeout_s=60.0)
    assert all(torch.allclose(value, alone[name], atol=1e-5) for name, value in run.state_dict.items())


@ALL
@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_workers_together_read_the_data_once_an_epoch(loop: Loop, strategy: str, tmp_path: Path) -> None:
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path / "run"), clip=0.5)
    run = ps.run(part, strategy, workers=2, timeout_s=60.0)
    assert run.samples + 4 * run.batches_unvisited == EPOCHS * ROWS
    assert run.batches_unvisited <= 2, "what is accumulated when the data ends makes no step"


@pytest.mark.parametrize("loop", [by_transformers, by_accelerate])
def test_all_reduce_equals_lock_step(loop: Loop, tmp_path: Path) -> None:
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path / "run"), clip=None)
    one, other = (
        ps.run(part, strategy, workers=2, timeout_s=60.0).state_dict for strategy in (ps.allreduce("torch"), "sync_sgd")
    )
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_lightning_under_all_reduce_is_refused(tmp_path: Path) -> None:
    part = partial(train, loop=by_lightning, batch=4, folder=str(tmp_path), clip=None)
    with pytest.raises(ps.ConfigurationError, match="Lightning calls training_step; take sync_sgd"):
        ps.run(part, ps.allreduce("torch"), workers=2, timeout_s=60.0)


@pytest.mark.parametrize("loop", [by_lightning, by_transformers])
def test_one_worker_saves_checkpoints(loop: Loop, tmp_path: Path) -> None:
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path), clip=None)
    ps.run(part, "sync_sgd", workers=2, timeout_s=60.0)
    kept = [one for one in tmp_path.rglob("*") if one.suffix == ".ckpt" or one.name.startswith("checkpoint-")]
    assert len(kept) == (1 if loop is by_lightning else EPOCHS)
    if loop is by_lightning:
        saved = torch.load(kept[0], weights_only=False)
        assert len(saved["optimizer_states"][0]["state"]) == 4, "with the state, fetched from the server"
