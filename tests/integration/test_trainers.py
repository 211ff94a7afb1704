"""Lightning, Hugging Face's Trainer and Accelerate compute under plesio what they compute on their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import plesio as ps
from support.long_forms import but_thorough


class Later:
    """A package, imported when something of it is used: each process that shares the tests imports this file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, what: str) -> Any:
        if what.startswith("_") or what == "pytestmark":  # pytest asks, in each process
            raise AttributeError(what)
        return getattr(pytest.importorskip(self._name), what)


accelerate, pl, transformers = Later("accelerate"), Later("lightning"), Later("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
EPOCHS, ROWS = 3, 64
ALONE = ps.Simulated("uniform")
"""One worker in this process, which has imported the trainers already."""


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> None:
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    pl.pytorch.utilities.rank_zero.rank_zero_only.rank = 0
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))


def loader(batch: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(inputs(), inputs().sum(1, keepdim=True)), batch_size=batch)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


Settings = dict[str, Any]


def by_lightning(worker: ps.Worker | None, batch: int, folder: str, clip: float | None) -> nn.Module:
    settings: Settings = {
        "max_epochs": EPOCHS,
        "gradient_clip_val": clip,
        "accumulate_grad_batches": 2,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
        "logger": pl.pytorch.loggers.CSVLogger(folder),
    }
    from support.trainers import Module

    module = Module(network())
    if worker is None:
        pl.Trainer(accelerator="cpu", enable_progress_bar=False, **settings).fit(module, loader(batch))
    else:
        from plesio.integrations.lightning import Trainer

        trainer = Trainer(worker, **settings)
        trainer.fit(module, loader(batch))
        assert trainer.is_global_zero == (worker.rank == 0)
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
SOON = pytest.mark.parametrize("loop", but_thorough(LOOPS.values(), {by_lightning, by_accelerate}), ids=LOOPS)


def train(worker: ps.Worker, loop: Loop, **settings: Any) -> None:
    loop(worker, **settings)


@pytest.mark.few(1)
@SOON
def test_one_worker_gives_the_trainers_own_bits(loop: Loop, tmp_path: Path) -> None:
    alone = loop(None, batch=8, folder=str(tmp_path / "alone"), clip=0.5).state_dict()
    part = partial(train, loop=loop, batch=8, folder=str(tmp_path / "run"), clip=0.5)
    run = ps.run(part, "sync_sgd", workers=1, engine=ALONE)
    assert all(torch.equal(value, alone[name]) for name, value in run.state_dict.items())
    assert run.samples == EPOCHS * ROWS


@pytest.mark.few(1)
@SOON
@pytest.mark.parametrize(
    ("strategy", "engine"),
    [
        ("sync_sgd", ALONE),
        pytest.param(ps.allreduce("torch"), "local", marks=pytest.mark.thorough),
        pytest.param("sync_sgd", "local", marks=pytest.mark.slow),
    ],
    ids=["simulated", "allreduce", "sync_sgd"],
)
def test_two_workers_in_lock_step_are_the_trainer_with_the_doubled_batch_and_one_saves(
    loop: Loop, strategy: Any, engine: Any, tmp_path: Path
) -> None:
    """Clipping is left out: each worker clips its own gradient."""
    alone = loop(None, batch=8, folder=str(tmp_path / "alone"), clip=None).state_dict()
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path / "run"), clip=None)
    run = ps.run(part, strategy, workers=2, engine=engine, timeout_s=60.0)
    assert all(torch.allclose(value, alone[name], atol=1e-5) for name, value in run.state_dict.items())
    found = (tmp_path / "run").rglob("*")
    kept = [one for one in found if one.suffix == ".ckpt" or one.name.startswith("checkpoint-")]
    assert len(kept) == {by_lightning: 1, by_transformers: EPOCHS, by_accelerate: 0}[loop]
    if loop is by_lightning:
        saved = torch.load(kept[0], weights_only=False)
        assert len(saved["optimizer_states"][0]["state"]) == 4, "with the state, fetched from the server"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("loop", "strategy", "engine"),
    [
        (by_lightning, "hogwild", ALONE),
        pytest.param(by_transformers, "async_sgd", ALONE, marks=pytest.mark.thorough),
        (by_accelerate, "local_sgd", "local"),
        pytest.param(by_lightning, "hogwild", "local", marks=pytest.mark.slow),
        pytest.param(by_transformers, "async_sgd", "local", marks=pytest.mark.slow),
    ],
)
def test_workers_together_read_the_data_once_an_epoch(loop: Loop, strategy: str, engine: Any, tmp_path: Path) -> None:
    part = partial(train, loop=loop, batch=4, folder=str(tmp_path / "run"), clip=0.5)
    run = ps.run(part, strategy, workers=2, engine=engine, timeout_s=60.0)
    assert run.samples + 4 * run.batches_unvisited == EPOCHS * ROWS
    assert run.batches_unvisited <= 2, "what is accumulated when the data ends makes no step"


# Lightning's callbacks and options


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for row in inputs()[:24]:
            yield row, row.sum(0, keepdim=True)


def rows(number: int, batch: int, **settings: Any) -> DataLoader[Any]:
    data = TensorDataset(inputs()[:number], inputs()[:number].sum(1, keepdim=True))
    return DataLoader(data, batch_size=batch, **settings)


def by_watched(
    worker: ps.Worker | None,
    folder: str,
    data: Callable[[], Any] = lambda: rows(24, 4, shuffle=True),
    callbacks: Callable[[], list[Any]] = list,
    manual: bool = False,
    **settings: Any,
) -> Any:
    from support.trainers import Watched

    settings |= {"default_root_dir": folder, "callbacks": callbacks(), "enable_model_summary": False}
    module = Watched(network(), data, manual)
    module.net[1] = nn.Dropout(0.3)
    torch.manual_seed(2)
    if worker is None:
        trainer = pl.Trainer(accelerator="cpu", **settings)
    else:
        from plesio.integrations.lightning import Trainer

        trainer = Trainer(worker, **settings)
    trainer.fit(module, val_dataloaders=rows(8, 4))
    return module.seen, module.validated, trainer.global_step, trainer.current_epoch, module.state_dict()


def stopped_early() -> list[Any]:
    return [pl.pytorch.callbacks.EarlyStopping("never", patience=1)]


OPTIONS: dict[str, Settings] = {
    "overfit_batches": {"max_epochs": 3, "overfit_batches": 2},
    "limit_train_batches=3": {"max_epochs": 3, "limit_train_batches": 3},
    "limit_train_batches=.5": {"max_epochs": 3, "limit_train_batches": 0.5},
    "validation within an epoch": {"max_epochs": 2, "val_check_interval": 2, "limit_val_batches": 1},
    "reload_dataloaders_every_n_epochs": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1},
    "a stream": {"max_epochs": 2, "data": lambda: DataLoader(Stream(), batch_size=4), "limit_train_batches": 4},
    "max_steps": {"max_epochs": -1, "max_steps": 9},
    "early stopping": {"max_epochs": 9, "callbacks": stopped_early},
    "manual optimisation": {"max_epochs": 2, "manual": True},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", but_thorough(OPTIONS, {"max_steps", "early stopping", "a stream"}))
def test_one_worker_goes_by_lightnings_options(name: str, tmp_path: Path) -> None:
    quiet: Settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, **OPTIONS[name]}
    *alone, weights = by_watched(None, str(tmp_path), **quiet)
    run = ps.run(partial(by_watched, folder=str(tmp_path), **quiet), "sync_sgd", workers=1, engine=ALONE)
    assert run.returned[0][:-1] == tuple(alone)
    assert all(torch.equal(value, weights[name]) for name, value in run.state_dict.items())


def every_callback() -> list[Any]:
    kinds = pl.pytorch.callbacks
    return [
        kinds.ModelCheckpoint(monitor="judged", save_top_k=-1, filename="{epoch}"),
        kinds.LearningRateMonitor(),
        kinds.TQDMProgressBar(),
        kinds.DeviceStatsMonitor(),
        kinds.Timer(),
        *stopped_early(),
    ]


def test_lightnings_callbacks_work_on_all_workers_and_each_reads_its_part(tmp_path: Path) -> None:
    limits: Settings = {"limit_train_batches": 2, "reload_dataloaders_every_n_epochs": 1, "data": lambda: rows(24, 4)}
    part = partial(by_watched, folder=str(tmp_path), callbacks=every_callback, max_epochs=9, **limits)
    run = ps.run(part, "sync_sgd", workers=2, engine=ALONE)
    (one, *same, _), (other, *others, _) = (run.returned[rank] for rank in range(2))
    assert same == others == [3 * 8, 4, 2], "sanity check and two epochs; stopped together"
    first = inputs()[:16, 0].tolist()
    assert sorted(one + other) == sorted(2 * first)
    assert {file.name for file in tmp_path.rglob("*.ckpt")} == {"epoch=0.ckpt", "epoch=1.ckpt"}


def test_what_starts_processes_in_lightning_is_refused(tmp_path: Path) -> None:
    for settings in ({"strategy": "ddp"}, {"devices": 2}, {"num_nodes": 2}):
        with pytest.raises(
            ps.ConfigurationError, match=r"leave them out, and say ps\.run\(train, strategy, workers=2\)"
        ):
            ps.run(partial(by_watched, folder=str(tmp_path), **settings), "sync_sgd", workers=1, engine=ALONE)


# Hugging Face's callbacks and options


class NamedStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for place in range(24):
            yield Rows()[place]


def by_arguments(
    worker: ps.Worker | None,
    folder: str,
    data: Callable[[], Any] = Rows,
    callbacks: Callable[[], list[Any]] = list,
    collator: Any = None,
    **settings: Any,
) -> Any:
    usual: Settings = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 4}
    args = transformers.TrainingArguments(folder, **{**usual, **settings})
    model = Scored()
    given: Settings = {"model": model, "args": args, "train_dataset": data(), "callbacks": callbacks()}
    given["data_collator"] = collator
    given["eval_dataset"] = torch.utils.data.Subset(Rows(), range(10))
    if worker is None:
        trainer = transformers.Trainer(**given)
    else:
        from plesio.integrations.transformers import Trainer

        trainer = Trainer(worker, **given)
    trainer.train()
    trainer.save_model()
    judged = [one["eval_loss"] for one in trainer.state.log_history if "eval_loss" in one]
    return trainer.state.global_step, judged, model.state_dict()


class Lengths(Rows):
    def __getitem__(self, place: int) -> Any:
        return {"input_ids": [0] * (1 + place % 7), **super().__getitem__(place)}


def without_ids(items: list[Any]) -> Any:
    return transformers.default_data_collator([{name: one[name] for name in ("x", "labels")} for one in items])


ARGUMENTS: dict[str, Settings] = {
    "its own shuffling": {"num_train_epochs": 2},
    "dataloader options": {"num_train_epochs": 1, "dataloader_drop_last": True, "per_device_train_batch_size": 7},
    "max_steps": {"max_steps": 20},
    "samples of equal length": {
        "num_train_epochs": 2,
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,
        "data": lambda: Lengths(),
        "collator": lambda items: without_ids(items),
    },
    "a stream": {"max_steps": 8, "data": NamedStream},
    "evaluation": {
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("option", ARGUMENTS.values(), ids=ARGUMENTS)
def test_one_worker_goes_by_training_arguments(option: Settings, tmp_path: Path) -> None:
    *alone, weights = by_arguments(None, str(tmp_path / "alone"), **option)
    run = ps.run(partial(by_arguments, folder=str(tmp_path / "run"), **option), "sync_sgd", workers=1, engine=ALONE)
    assert run.returned[0][:-1] == tuple(alone)
    assert all(torch.equal(value, weights[name]) for name, value in run.state_dict.items())


def stopping() -> list[Any]:
    from support.trainers import Stopping

    return [Stopping()]


@pytest.mark.thorough
def test_callbacks_of_the_hugging_face_trainer_save_once_and_stop_all(tmp_path: Path) -> None:
    part = partial(by_arguments, folder=str(tmp_path), callbacks=stopping, num_train_epochs=9)
    run = ps.run(part, "sync_sgd", workers=2, engine=ALONE)
    assert [run.returned[rank][0] for rank in range(2)] == [5, 5]
    assert len(list(tmp_path.glob("checkpoint-*/rng_state.pth"))) == 5
    assert run.ended.endswith("stopped the run: Hugging Face's Trainer was told to stop")


# What asks all workers


def asking(worker: ps.Worker) -> Any:
    from plesio.integrations.accelerate import Accelerator
    from plesio.integrations.lightning import Trainer
    from support.trainers import Asking

    quiet: Settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    module = Asking(network(), lambda: rows(16, 4))
    Trainer(worker, max_epochs=1, **quiet).fit(module, val_dataloaders=rows(8, 4))
    accelerator = Accelerator(worker)
    mine = torch.tensor([1.0 + worker.rank])
    counted = sum(len(accelerator.gather_for_metrics(one)) for (one, _) in accelerator.prepare_data_loader(rows(18, 4)))
    if worker.rank == 1:
        accelerator.set_trigger()
    gathered = accelerator.gather(mine).tolist(), accelerator.reduce(mine, "sum").tolist()
    return module.answers, counted, gathered, accelerator.check_trigger()


@pytest.mark.thorough
def test_in_lock_step_questions_are_answered_by_all_workers() -> None:
    run = ps.run(asking, "sync_sgd", workers=2, timeout_s=60.0)
    answers, *rest = run.returned[0]
    assert run.returned[1] == run.returned[0]
    first = inputs()[:, 0]
    assert answers == pytest.approx([float(first[0] + first[4]) / 2, float(first[8] + first[12]) / 2])
    assert rest == [18, ([1.0, 2.0], [3.0]), True]


@pytest.mark.parametrize("name", ["split_batches", "dispatch_batches"])
def test_accelerate_may_not_cut_what_the_run_shares_out(name: str) -> None:
    def train(worker: ps.Worker) -> None:
        from plesio.integrations.accelerate import Accelerator

        Accelerator(worker, dataloader_config=accelerate.DataLoaderConfiguration(**{name: True}))

    with pytest.raises(ps.ConfigurationError, match=f"Accelerate with {name}=True: plesio .*; leave it out"):
        ps.run(train, "sync_sgd", workers=2, engine=ALONE)


@pytest.mark.parametrize("even", [True, False])
def test_no_sample_to_train_from_comes_twice_for_even_batches(even: bool) -> None:
    def train(worker: ps.Worker) -> list[float]:
        from plesio.integrations.accelerate import Accelerator

        model = network()
        accelerator = Accelerator(worker, dataloader_config=accelerate.DataLoaderConfiguration(even_batches=even))
        model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), rows(18, 4))
        seen = []
        for given, targets in batches:
            accelerator.backward(nn.functional.mse_loss(model(given), targets))
            optimizer.step()
            seen += given[:, 0].tolist()
        return seen

    run = ps.run(train, "sync_sgd", workers=2, engine=ALONE)
    assert sorted(run.returned[0] + run.returned[1]) == sorted(inputs()[:18, 0].tolist())


def test_where_nobody_answers_questions_are_refused_by_name() -> None:
    with pytest.raises(ps.ConfigurationError, match="sync_dist=True in Lightning's training asks all workers"):
        ps.run(asking, "async_sgd", workers=2, engine=ALONE)
