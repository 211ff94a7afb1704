"""What the training loop had set in the optimizer's groups before the run was interrupted, set again.

Torch's `optimizer.load_state_dict` brings every setting back. So does a resumed run, for what the loop had changed: at the first
batch, unless the script has set that by then. The rest is as the script makes it now. A rate that a scheduler moves is the
scheduler's: a prepared one goes to where the run is, and of another one the user is told.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from plesio.riders.schedules import Scheduling
from plesio.tensors.optimizer_spec import number
from plesio.worker.schedule import RunSchedule
from plesio.worker.warn import listed, warn

MOVED = ("lr", "momentum", "betas")
"""What torch's schedulers set."""


class Settings:
    """Those of `optimizer`, which is being prepared."""

    def __init__(self, optimizer: Optimizer, scheduling: Scheduling) -> None:
        self._groups = optimizer.param_groups
        self._scheduling = scheduling
        self._open = True
        scheduling.begin(optimizer)

    def go_on(self, schedules: list[RunSchedule]) -> None:
        """The first batch, or step, is next."""
        changed, self._open = self._scheduling.before.changed if self._open else [], False
        kept = any(one.went_on for one in schedules)  # a schedule, with the rate that it left
        moved = not kept and any("initial_lr" in group for group in self._groups)
        again, begun = [], []
        for place, key, value in changed:
            if place >= len(self._groups) or number(self._groups[place].get(key)) != self._scheduling.made[place].get(
                key
            ):
                continue  # the script has set it
            where = f" of group {place}" if len(self._groups) > 1 else ""
            if moved and key in MOVED:
                begun.append(
                    f"{key} {self._scheduling.made[place][key]}{where}, as the optimizer was made, and had {value}"
                )
            else:
                _set(self._groups[place], key, value)
                again += [f"{key} {value}{where}"] if not (kept and key in MOVED) else []
        if again:
            warn(
                f"the run goes on with {listed(again)}, as the loop had set it before the run was interrupted; what is to be "
                "otherwise, set before the first batch"
            )
        if begun and not schedules:
            warn(
                f"the run goes on with {listed(begun)} when it was interrupted: give the schedule to prepare, or load its state "
                "in train"
            )


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    """As the group holds it: a rate may be in a tensor, and pairs are tuples."""
    if isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = tuple(value) if isinstance(value, list) else value
