"""The optimizer itself, which steps what plesio has no arithmetic of its own for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import optim
from torch.optim import Optimizer

from plesio.tensors.optimizer_spec import Groups, OptimizerSpec, number, unsendable
from plesio.tensors.pieces import StepPiece, build, kinds_of, no_global_hooks

FUSED: tuple[type[Optimizer], ...] = (optim.Adagrad,)
"""Those that use torch's fused kernel in a large model: 7-10 times faster, but the last bit differs from the plain loop's."""


class TorchStep:
    """Of the optimizers that `specs` say, over `parameters`, one a piece, of a `large` model."""

    def __init__(
        self,
        specs: Sequence[OptimizerSpec],
        pieces: Sequence[StepPiece],
        parameters: Sequence[torch.nn.Parameter],
        large: bool,
    ) -> None:
        given = [group for spec in specs for group in spec.groups]
        self.optimizer = build(specs, [piece.group for piece in pieces], parameters)
        chose = any(group.get("fused") is not None or group.get("foreach") for group in given)
        by_rows = {piece.group for piece in pieces if piece.table}
        self._fused = [
            kind in FUSED and large and not chose and group not in by_rows for group, kind in enumerate(kinds_of(specs))
        ]
        self._applied = given  # the settings last written into the optimizer's groups
        self._set_at: tuple[Sequence[float], float] = ((), 0.0)

    def as_set(self, groups: Groups) -> Groups:
        """These settings, as they hold from now on."""
        self._set_at = (), 0.0
        if not any(self._fused):
            return groups
        return [{**one, "fused": True} if fused else one for one, fused in zip(groups, self._fused, strict=True)]

    def apply(self, groups: Groups) -> None:
        """Update changed settings only: some optimizers keep values of their own, such as a step count, in a group."""
        if self._applied is groups:
            return
        for group, told, settings in zip(self.optimizer.param_groups, self._applied, groups, strict=True):
            news = {key: value for key, value in settings.items() if key not in told or told[key] != value}
            group.update(news)
        self._applied = groups

    def step(self, groups: Groups, scales: Sequence[float], decays: Sequence[bool], share: float) -> None:
        """At `scales` times the groups' learning rates; which groups' weights decay by themselves, by their `share`."""
        if (scales, share) != self._set_at:
            self._set_at = scales, share
            self.apply(groups)
            for group, settings, scale, decay in zip(self.optimizer.param_groups, groups, scales, decays, strict=True):
                group["lr"] = settings["lr"] * scale
                if decay:
                    group["weight_decay"] = settings["weight_decay"] * share**0.25
        with no_global_hooks():
            self.optimizer.step()

    def own(self) -> Groups:
        """Values that the optimizer itself changed in its groups, if they can be saved; without the scaled learning rate."""
        own: Groups = []
        for group, told in zip(self.optimizer.param_groups, self._applied, strict=True):
            values = {key: number(value) for key, value in group.items() if key not in ("params", "lr")}
            own.append(
                {key: value for key, value in values.items() if not unsendable(value) and value != told.get(key)}
            )
        return own

    def take(self, own: Groups) -> None:
        """Go on from such values."""
        self._set_at = (), 0.0
        for group, values in zip(self.optimizer.param_groups, own, strict=False):
            group.update(values)
