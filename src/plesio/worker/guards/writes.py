"""What the training function writes into the model by hand, where no exchange takes it along.

Where the optimizer steps at the server, each version replaces the worker's parameters. What the loop wrote into them since the
last one (clipped weights, a pruning mask, loaded weights) would be lost, and torch keeps it. So it is refused at the next step. A
tensor counts its writes; one that was written to is compared with the version. Weights that were swapped for an evaluation and
put back are as they were.

At the end worker 0 warns of what came after the last exchange: the run's weights and `evaluate` lack it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Kind, Layout
from plesio.tensors.local import local_of
from plesio.tensors.model import self_limiting
from plesio.worker.warn import listed, warn, warn_at_end


class Version(Protocol):
    """What was adopted, as an `Arena`."""

    @property
    def views(self) -> Sequence[torch.Tensor]: ...


class Writes:
    """Compares a model with the version that its worker adopted last. `comparable`: versions stay as they were adopted."""

    def __init__(self, model: nn.Module, layout: Layout, tensors: Sequence[torch.Tensor], comparable: bool) -> None:
        self._specs = layout.specs
        self._tensors = tensors
        self._comparable = comparable
        moved = [index for index, spec in enumerate(layout.specs) if spec.kind.moves]
        limited = {id(one) for module in self_limiting(model) for one in module.parameters(recurse=False)}
        self._steady = [index for index in moved if id(tensors[index]) not in limited]
        self._watched = [tensors[index] for index in self._steady]
        self._saved = [
            (module._buffers, name, index)
            for module, name, index in buffers_of(model, tensors)
            if name not in module._non_persistent_buffers_set
        ]
        self._version: Version
        self._counters: list[int] = []

    def adopted(self, version: Version) -> None:
        self._version = version
        self._counters = [tensor._version for tensor in self._watched]

    def refuse(self, strategy: str, only_warn: bool) -> None:
        """Before an exchange: refuse what was written since the last one, unless that is only to be warned of."""
        if [tensor._version for tensor in self._watched] == self._counters or not (names := self.written()):
            return
        lost = (
            f"{listed(names)} written to by hand since the last step: under {strategy} the optimizer steps at the server, whose "
            "next version replaces that"
        )
        if only_warn:
            warn(f"{lost}, as on_write='warn' accepts")
            self.adopted(self._version)
            return
        raise ConfigurationError(
            f"{lost}. Take allreduce or local_sgd, where each worker's own optimizer steps on its own weights; or "
            "worker.prepare(..., after_step=f), where f(parameters by name) is what the server does after each step; load or "
            "initialise weights before prepare; or say worker.prepare(..., on_write='warn') if the loss is meant"
        )

    def written(self) -> list[str]:
        """The parameters that were written to and are not as they were adopted."""
        changes = zip(self._steady, self._watched, self._counters, strict=True)
        touched = [index for index, tensor, counter in changes if tensor._version != counter]
        return [
            self._specs[index].name
            for index in touched
            if not self._comparable or _differ(local_of(self._tensors[index]), self._version.views[index])
        ]

    def saved_buffers(self) -> dict[int, torch.Tensor]:
        """The buffers of the state_dict as they are now, by index; a forward pass may have assigned new tensors."""
        now = {index: home.get(name) for home, name, index in self._saved}
        return {index: local_of(buffer) for index, buffer in now.items() if buffer is not None}

    def warn_of_late(
        self, names: list[str], buffers: dict[int, torch.Tensor], exchanged: Sequence[torch.Tensor]
    ) -> None:
        """Warn of what was written after the last exchange: these parameters, and `buffers` that are not as `exchanged`."""
        late = names + [self._specs[index].name for index, one in buffers.items() if _differ(one, exchanged[index])]
        if late:
            warn_at_end(
                f"worker 0 wrote into {listed(late)} after its last exchange: the run's weights and evaluate lack that. Do it "
                "before the last step(), or to run.state_dict after ps.run; or save what you want to keep in train "
                "(torch.save(model.state_dict(), ...))"
            )

    def warn(self, stopped: bool) -> None:
        """Warn of all of them; if the run was `stopped`, the training function had no chance to write in time."""
        views = self._version.views
        if not stopped:
            self.warn_of_late(self.written(), self.saved_buffers(), views)
        every = zip(self._specs, self._tensors, views, strict=True)
        frozen = [(spec.name, local_of(mine), theirs) for spec, mine, theirs in every if spec.kind is Kind.FROZEN]
        if names := [name for name, mine, theirs in frozen if _differ(mine, theirs)]:
            warn_at_end(
                f"worker 0 wrote into parameters that need no gradient: {listed(names)}. Nobody exchanges these: the run's "
                "weights and evaluate have them as they were at the beginning. Make buffers of running statistics or a moving "
                "average of the weights (register_buffer in place of Parameter(requires_grad=False)): these are exchanged. Or "
                "keep and save such an average outside of the model given to prepare"
            )


def buffers_of(model: nn.Module, tensors: Sequence[torch.Tensor]) -> list[tuple[nn.Module, str, int]]:
    """Which of the tensors are buffers: the module that holds it, its name there, and its index."""
    indices = {id(tensor): index for index, tensor in enumerate(tensors)}
    held = ((module, name, one) for module in model.modules() for name, one in module._buffers.items())
    return [(module, name, indices[id(one)]) for module, name, one in held if id(one) in indices]


def _differ(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether they differ in a number; one that was converted, to export the model, is not compared."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype or mine.is_meta:
        return False
    mine = mine.to(theirs.device)
    return not torch.equal(mine, theirs) and not bool(((mine == theirs) | (mine != mine)).all())
