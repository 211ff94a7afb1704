"""After a worker left during a step, replicas may be a step apart: those behind take over the state of one ahead."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.optim import Optimizer

from plesio.tensors.arena import CPU, Arena
from plesio.transport.collective import Group
from plesio.worker.exchanges.all_reduce.buffers import SharedBuffers

At = tuple[int, int]  # (steps completed, those of them that moved the parameters)


def take_over(group: Group, source: int, at: At, optimizer: Optimizer, arena: Arena, buffers: SharedBuffers) -> At:
    """Take over member `source`'s parameters, buffers and optimizer's state, unless this replica is `at` the same step. It
    returns where this replica is now. A death meanwhile (RuntimeError) leaves it as it was."""
    parameters = [parameter for one in optimizer.param_groups for parameter in one["params"]]
    state = io.BytesIO()
    if group.rank == source:
        states = [_on_cpu(optimizer.state.get(parameter, {})) for parameter in parameters]
        torch.save({"at": at, "states": states}, state)
    came = torch.load(io.BytesIO(group.share(state.getvalue(), source)), weights_only=True)
    flats = [buffers.before(flat).to(CPU, copy=True) for flat in arena.flat]
    for flat in flats:
        group.broadcast(flat, source)
    if came["at"] == at:
        return at
    for parameter, theirs in zip(parameters, came["states"], strict=True):
        optimizer.state[parameter] = {
            key: value.to(parameter.device) if moved else value for key, (value, moved) in theirs.items()
        }
    for mine, flat in zip(arena.flat, flats, strict=True):
        mine.copy_(flat)
    buffers.keep()
    steps, versions = came["at"]
    return steps, versions


def _on_cpu(state: dict[str, Any]) -> dict[str, tuple[Any, bool]]:
    """A parameter's state, and which of its tensors lie on a device (Adam's step count may stay on the CPU)."""
    return {
        key: (value.cpu(), not value.is_cpu) if isinstance(value, torch.Tensor) else (value, False)
        for key, value in state.items()
    }
