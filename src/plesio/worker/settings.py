"""What the training loop had set in the optimizer's groups, set again in a process that goes on: of a resumed run, or in the
seat of a worker that has gone.

Torch's `optimizer.load_state_dict` brings every setting back. So does plesio, for what the loop had changed: at the first batch,
unless the script has set that by then. The rest is as the script makes it now. A rate that a scheduler moves is the
scheduler's: a prepared one goes to where the run is, and of another one the user is told.
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from plesio.attachments.schedules import Scheduling
from plesio.tensors.optimizer_spec import number
from plesio.worker.schedule import RunSchedule
from plesio.worker.warn import listed, warn

MOVED = ("lr", "momentum", "betas")
"""What torch's schedulers set."""


def go_on(optimizer: Optimizer, scheduling: Scheduling, schedules: list[RunSchedule]) -> None:
    """The first batch, or step, is next: the first call does it all."""
    groups = optimizer.param_groups
    kept = any(one.went_on for one in schedules)  # a schedule, with the rate that it left
    moved = not kept and any("initial_lr" in group for group in groups)
    again, begun = [], []
    for place, (group, made) in enumerate(zip(groups, scheduling.made, strict=False)):
        where = f" of group {place}" if len(groups) > 1 else ""
        for key, value in scheduling.before.changed.pop(place, {}).items():
            if number(group.get(key)) != made.get(key):
                continue  # the script has set it
            if moved and key in MOVED:
                begun.append(f"{key} {made[key]}{where}, as the optimizer was made; a schedule had moved it to {value}")
                continue
            if isinstance(group[key], torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value
            again += [f"{key} {value}{where}"] if not (kept and key in MOVED) else []
    if again:
        warn(
            f"training goes on with {listed(again)}, which the loop had set earlier in this run; for another value, set it "
            "before the first batch"
        )
    if begun and not schedules:
        warn(
            f"training goes on with {listed(begun)} earlier in this run: give the schedule to prepare, or load its state in train"
        )
