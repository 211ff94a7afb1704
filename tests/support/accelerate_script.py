"""Accelerate's own checks, the script of `accelerate test`, by plesio's Accelerator in a run."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

import plesio as ps

CHECKS = (
    "init_state_check",
    "process_execution_check",
    "test_split_between_processes_list",
    "test_split_between_processes_nested_dict",
    "test_split_between_processes_tensor",
    "test_split_between_processes_evenly",
    "test_split_between_processes_dataset",
    "rng_sync_check",
    "dl_preparation_check",
    "central_dl_preparation_check",
    "custom_sampler_check",
    "check_seedable_sampler_in_batch_sampler_shard",
    "test_trigger",
)
"""Those that train nothing, all in one run."""
STAGES = ("plain", "split_batches", "bf16", "fp16")
"""What `training_check` trains one after the other; a run trains one."""
NOT_RUN = {
    "check_seedable_sampler": "it prepares a loader without a model; a run's seed draws the order in its place",
    "check_seedable_sampler_with_data_seed": "the same, and another `data_seed` is to be another order",
    "test_reinstantiated_state": "it prepares a model without an optimizer, which a run refuses before Accelerate can",
}
"""Why these cannot be run."""


def script(worker: ps.Worker) -> ModuleType:
    from accelerate.test_utils.scripts import test_script

    from plesio.integrations.accelerate import Accelerator

    warnings.simplefilter("ignore")
    test_script.Accelerator = partial(Accelerator, worker)
    return test_script


def checks(worker: ps.Worker) -> list[str]:
    """The names of those that went well on this worker; what does not raises."""
    from datasets import Dataset

    module, model = script(worker), torch.nn.Linear(1, 1)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    module.Accelerator()
    given = {"test_split_between_processes_dataset": (Dataset,)}
    with contextlib.redirect_stdout(io.StringIO()):
        for name in CHECKS:
            getattr(module, name)(*given.get(name, ()))
    return list(CHECKS)


class InAnotherRun:
    """In place of the Accelerator of a stage that this run leaves out: it trains nothing, and its model is as it should be."""

    def __init__(self, right: torch.nn.Module) -> None:
        self._right = right

    def prepare(self, loader: Any, model: torch.nn.Module, optimizer: Any) -> Any:
        return [], copy.deepcopy(self._right), optimizer

    def unwrap_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def print(self, *said: object) -> None:
        pass


def training(worker: ps.Worker, stage: str, seedable: bool) -> list[str]:
    """`training_check`, of which one stage trains; the stages there were. Its data come in their own order: else Accelerate draws
    one by torch's generator, and plesio one by the run's seed."""
    module, made, right = script(worker), [], []
    ours, alone = module.Accelerator, module.mock_training

    def accelerator(*given: Any, **settings: Any) -> Any:
        made.append(STAGES[len(made)])
        return ours(*given, **settings) if made[-1] == stage else InAnotherRun(right[0])

    def baseline(*given: Any) -> Any:
        data, model = alone(*given)
        right.append(model)
        return data, model

    module.Accelerator, module.mock_training = accelerator, baseline
    module.generate_baseline_dataloader = lambda data, generator, batch_size, *_: DataLoader(data, batch_size)
    ours()  # `training_check` asks Accelerate's state before it makes one
    with contextlib.redirect_stdout(io.StringIO()):
        module.training_check(seedable)
    return made
