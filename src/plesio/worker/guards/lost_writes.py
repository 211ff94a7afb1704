"""At the end: what the training function wrote into the model, and no exchange took along.

Only worker 0 warns. The run's weights and `evaluate` lack such writes, so the message says where to make them instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.model import self_limiting
from plesio.worker.warn import listed, warn_at_end

NamedTensors = list[tuple[str, torch.Tensor]]


class LostWrites:
    """Compares a model with the version that its worker adopted last."""

    def __init__(self, model: nn.Module, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        self._specs = layout.specs
        self._tensors = tensors
        trained = [tensor for tensor, spec in zip(tensors, layout.specs, strict=True) if spec.kind.moves]
        self._steady = steady(model, trained)
        self._saved = [
            (module._buffers, name, index)
            for module, name, index in buffers_of(model, tensors)
            if name not in module._non_persistent_buffers_set
        ]
        self._version: Arena | None = None
        self._counters: list[int] = []

    def adopted(self, version: Arena) -> None:
        self._version = version
        self._counters = [tensor._version for _, tensor in self._steady]

    def saved_buffers(self) -> dict[int, torch.Tensor]:
        """The buffers of the state_dict as they are now, by index; a forward pass may have assigned new tensors."""
        now = {index: home.get(name) for home, name, index in self._saved}
        return {index: buffer.detach() for index, buffer in now.items() if buffer is not None}

    def warn_of_buffers(self, now: dict[int, torch.Tensor], exchanged: Sequence[torch.Tensor]) -> None:
        """Warn if buffers differ from the ones that were exchanged last."""
        if names := [self._specs[index].name for index, one in now.items() if _differ(one, exchanged[index])]:
            warn_at_end(
                f"worker 0 wrote into buffers after its last exchange: {listed(names)}. The run's weights and evaluate have "
                "them as they were then: do it before the last step(), or to run.state_dict after ps.run (batch-norm "
                "statistics by a model that loaded it)"
            )

    def warn(self, stopped: bool) -> None:
        """Warn of all of them; if the run was `stopped`, the training function had no chance to write in time."""
        assert self._version is not None, "training began"
        if not stopped:
            self.warn_of_buffers(self.saved_buffers(), self._version.views)
            self._warn_of_parameters()
        self._warn_of_frozen(self._version)

    def _warn_of_parameters(self) -> None:
        """What is written by `.data` is not seen."""
        changes = zip(self._steady, self._counters, strict=True)
        if names := [name for (name, tensor), counter in changes if tensor._version != counter]:
            warn_at_end(
                f"worker 0 wrote into parameters after its last exchange: {listed(names)}. Unless it put them back, the run's "
                "weights and evaluate lack that, being as that exchange made them: save what you want to keep in train "
                "(torch.save(model.state_dict(), ...)), or do it to run.state_dict after ps.run"
            )

    def _warn_of_frozen(self, version: Arena) -> None:
        every = zip(self._specs, self._tensors, version.views, strict=True)
        frozen = [(spec.name, mine.detach(), theirs) for spec, mine, theirs in every if spec.kind is Kind.FROZEN]
        if names := [name for name, mine, theirs in frozen if _differ(mine, theirs)]:
            warn_at_end(
                f"worker 0 wrote into parameters that need no gradient: {listed(names)}. Nobody exchanges these: the run's "
                "weights and evaluate have them as they were at the beginning. A moving average of the weights can be made of "
                "buffers instead, which are exchanged, or be kept and saved outside of the model given to prepare"
            )


def buffers_of(model: nn.Module, tensors: Sequence[torch.Tensor]) -> list[tuple[nn.Module, str, int]]:
    """Which of the tensors are buffers: the module that holds it, its name there, and its index."""
    indices = {id(tensor): index for index, tensor in enumerate(tensors)}
    held = ((module, name, one) for module in model.modules() for name, one in module._buffers.items())
    return [(module, name, indices[id(one)]) for module, name, one in held if id(one) in indices]


def steady(model: nn.Module, parameters: Sequence[torch.Tensor]) -> NamedTensors:
    """Those of the parameters that no forward pass writes into, as `nn.Embedding(max_norm=...)` does."""
    limited = {id(one) for module in self_limiting(model) for one in module.parameters(recurse=False)}
    wanted = set(map(id, parameters)) - limited
    return [(name, one) for name, one in model.named_parameters() if id(one) in wanted]


def _differ(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether they differ in a number; one that was converted, to export the model, is not compared."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype or mine.is_meta:
        return False
    mine = mine.to(theirs.device)
    return not torch.equal(mine, theirs) and not bool(((mine == theirs) | (mine != mine)).all())
