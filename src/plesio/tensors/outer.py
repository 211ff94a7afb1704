"""The user's optimizer, rebuilt at the server over flat tensors.

An elementwise optimizer (SGD, Adam, ...) does the same to a flat buffer as to the tensors in it, bit for bit, so it gets
one flat parameter for each segment and steps through it at the memory's speed. Any other optimizer (one that looks at a
whole tensor, such as Adafactor or Muon, or one we do not know) gets the model's tensors one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Arena, Kind

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop, ASGD,
)  # fmt: skip
FUSED: tuple[type[Optimizer], ...] = (Adam, AdamW, Adagrad)
FUSED_FROM = 1 << 17
"""Elements from which the fused kernel is worth differing in the last bit from the plain loop (it is 7-10 times faster)."""

Groups = list[dict[str, Any]]


class OptimizerSpec(msgspec.Struct, frozen=True):
    """What it takes to build a user's optimizer elsewhere: its class, its defaults, its groups without parameters."""

    kind: type[Optimizer]
    defaults: dict[str, Any]
    groups: Groups

    @classmethod
    def of(cls, optimizer: Optimizer) -> OptimizerSpec:
        """Describe `optimizer`.

        Raises:
            ConfigurationError: an optimizer that cannot run at a server.
        """
        name = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                f"{name} evaluates the loss inside its step, which no worker is there for; use SGD, Adam, AdamW, ..."
            )
        if isinstance(optimizer, SparseAdam):
            raise ConfigurationError(f"{name} takes sparse gradients only, and they travel dense; use Adam")
        if optimizer.state:
            raise ConfigurationError(
                f"the {name} given to prepare already holds state for {len(optimizer.state)} parameters; "
                "prepare a fresh optimizer (resuming one is done from a checkpoint)"
            )
        return cls(type(optimizer), dict(optimizer.defaults), hyper_parameters(optimizer))


def hyper_parameters(optimizer: Optimizer) -> Groups:
    """The settings of each parameter group, without the parameters; a learning rate held in a tensor as a number."""
    return [
        {key: _number(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


class ServerOptimizer:
    """A user's optimizer over the trained segments of an arena.

    Args:
        spec: the optimizer to rebuild.
        arena: an arena of the model; its layout matters, and its values to an optimizer that looks at them when built.
        new_arena: makes the arenas that the optimizer's state is kept in.
    """

    def __init__(self, spec: OptimizerSpec, arena: Arena, new_arena: Callable[[], Arena]) -> None:
        self._new_arena = new_arena
        self._state_arenas: dict[str, Arena] = {}
        self.swapped: str | None = None  # the state that look-ahead swaps for each worker's own
        self._flat = spec.kind in ELEMENTWISE
        self.groups: Groups = [dict(group) for group in spec.groups]
        self.parameters = [torch.nn.Parameter(tensor, requires_grad=False) for tensor in self._select(arena)]
        self._group_of = [group for _, group in self._indices(arena)]
        self.optimizer = _build(spec, self._grouped(arena), sum(one.numel() for one in self.parameters))

    def _indices(self, arena: Arena) -> list[tuple[int, int]]:
        """(where it lies in the arena's flat tensors or views, optimizer group) of each tensor stepped on."""
        if self._flat:
            segments = enumerate(arena.layout.segments)
            return [(index, segment.group) for index, segment in segments if segment.kind is Kind.TRAINED]
        specs = enumerate(arena.layout.specs)
        return [(index, spec.group) for index, spec in specs if spec.kind is Kind.TRAINED]

    def _select(self, arena: Arena) -> list[torch.Tensor]:
        """The tensors of `arena` that correspond to this optimizer's parameters."""
        tensors = arena.flat if self._flat else arena.views
        return [tensors[index] for index, _ in self._indices(arena)]

    def _grouped(self, arena: Arena) -> list[list[torch.nn.Parameter]]:
        groups: list[list[torch.nn.Parameter]] = [[] for _ in self.groups]
        for (_, group), parameter in zip(self._indices(arena), self.parameters, strict=True):
            groups[group].append(parameter)
        return groups

    def set_groups(self, groups: Groups) -> None:
        """The worker's current hyper-parameters (a scheduler may have changed them)."""
        self.groups = groups

    @property
    def plain(self) -> bool:
        """Whether a step is w -= lr * g and nothing else."""
        return type(self.optimizer) is SGD and all(
            group["momentum"] == 0 and group["weight_decay"] == 0 and not group["maximize"] for group in self.groups
        )

    def step_plain(self, out: Arena, current: Arena, gradient: Arena, scale: float) -> None:
        """out = current - lr * scale * gradient in one pass; only where `plain`."""
        for (index, group), _ in zip(self._indices(out), self.parameters, strict=True):
            rate = self.groups[group]["lr"] * scale
            torch.add(current.flat[index], gradient.flat[index], alpha=-rate, out=out.flat[index])

    def step(self, target: Arena, gradient: Arena, scale: float) -> None:
        """Step `target` in place along `gradient`, at `scale` times the learning rate."""
        for group, settings in zip(self.optimizer.param_groups, self.groups, strict=True):
            group.update(settings)
            group["lr"] = settings["lr"] * scale
        for parameter, weight, slope in zip(self.parameters, self._select(target), self._select(gradient), strict=True):
            parameter.data = weight
            parameter.grad = slope
        self.optimizer.step()
        self._move_state()

    def _move_state(self) -> None:
        """Keep the optimizer's state in arenas: it appears at the first step, then stays where it is put."""
        for position, parameter in enumerate(self.parameters):
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if torch.is_tensor(value) and value.shape == parameter.shape and value.dtype == parameter.dtype:
                    home = self._home(key)[position]
                    if value.data_ptr() != home.data_ptr() and key != self.swapped:
                        state[key] = home.copy_(value)

    def _home(self, key: str) -> list[torch.Tensor]:
        if key not in self._state_arenas:
            self._state_arenas[key] = self._new_arena()
        return self._select(self._state_arenas[key])

    def group_of(self, position: int) -> dict[str, Any]:
        """The hyper-parameters of parameter `position`, as the user gave them."""
        return self.groups[self._group_of[position]]

    def state_of(self, position: int) -> dict[str, Any]:
        """The state of parameter `position`; empty before its first step."""
        state: dict[str, Any] = self.optimizer.state.get(self.parameters[position], {})
        return state

    def select(self, arena: Arena) -> list[torch.Tensor]:
        """The tensors of `arena` that this optimizer steps on, in the order of its parameters."""
        return self._select(arena)


def _build(spec: OptimizerSpec, grouped: Sequence[Sequence[torch.nn.Parameter]], elements: int) -> Optimizer:
    accepted = inspect.signature(spec.kind.__init__).parameters
    defaults = {key: _number(value) for key, value in spec.defaults.items() if key in accepted}
    groups = [{**settings, "params": list(members)} for settings, members in zip(spec.groups, grouped, strict=True)]
    if spec.kind in FUSED and elements >= FUSED_FROM and defaults.get("fused") is None:
        defaults["fused"] = True
        for group in groups:
            group["fused"] = True if not group.get("foreach") else None
    try:
        return spec.kind(groups, **defaults)
    except TypeError as error:
        raise ConfigurationError(
            f"{spec.kind.__name__} cannot be built at the server from its defaults {sorted(defaults)}: {error}; "
            "give its __init__ the names that its defaults have"
        ) from error
