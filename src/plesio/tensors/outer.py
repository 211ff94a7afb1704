"""The user's optimizer, rebuilt at the server over flat tensors.

An elementwise optimizer (SGD, Adam, ...) does the same to a flat buffer as to the tensors in it, bit for bit, so it gets
one flat parameter for each segment and steps through it at the memory's speed. Any other optimizer (one that looks at a
whole tensor, such as Adafactor or Muon, or one we do not know) gets the model's tensors one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.errors import CheckpointError, ConfigurationError
from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.carrying import Carried, Held, from_plain, is_whole, plain
from plesio.tensors.optimizer_spec import Groups, OptimizerSpec, full_name, number, unsendable
from plesio.tensors.sgd import MOMENTUM, sgd_step, steps_directly

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop, ASGD,
)  # fmt: skip
NORMALISING: tuple[type[Optimizer], ...] = (Adam, AdamW, SparseAdam, Adamax, NAdam, RAdam, RMSprop, Adagrad, Adadelta)
"""They divide by the root of a second moment: the noisier a gradient, the shorter their step."""
FLAT_DTYPES = ("float32", "float64")
FUSED: tuple[type[Optimizer], ...] = (Adam, AdamW, Adagrad)
FUSED_FROM = 1 << 17
"""Elements from which the fused kernel is worth differing in the last bit from the plain loop (it is 7-10 times faster)."""


class Kept(NamedTuple):
    """What a checkpoint keeps of something that folds: tensors by name, and numbers that go into a file as they are."""

    tensors: dict[str, torch.Tensor]
    numbers: dict[str, Any]


def scale_for(kind: type[Optimizer], scale: float, share: float) -> float:
    """What to multiply the learning rate by, where the strategy says `scale`, in which `share` is k/N.

    The mean of k of N workers' gradients has N/k times the noise variance of all of them, so that an optimizer which
    divides by the root of a second moment shortens its step by itself: by nothing where gradients are mostly signal, by
    the root of k/N where they are mostly noise (Malladi et al. 2022, arXiv 2205.10287). What is left to take is k/N in
    the one case and its root in the other; we take their geometric mean, (k/N)^(3/4). docs/decisions/0006.

    >>> scale_for(SGD, 0.0625, 0.0625), scale_for(Adam, 0.0625, 0.0625)
    (0.0625, 0.125)
    """
    return scale / share**0.25 if issubclass(kind, NORMALISING) else scale


@contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Without the hooks for every optimizer of a process: they are the user's, and ran in the worker."""
    if not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks:
        yield
        return
    before, after = dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks)
    _global_optimizer_pre_hooks.clear()
    _global_optimizer_post_hooks.clear()
    try:
        yield
    finally:
        _global_optimizer_pre_hooks.update(before)
        _global_optimizer_post_hooks.update(after)


class ServerOptimizer:
    """A user's optimizer over the trained segments of an arena.

    Args:
        spec: the optimizer to rebuild.
        arena: an arena of the model; its layout matters, and its values to an optimizer that looks at them when built.
        new_arena: makes the arenas that the optimizer's state is kept in.
    """

    def __init__(self, spec: OptimizerSpec, arena: Arena, new_arena: Callable[[], Arena]) -> None:
        self.kind = spec.kind
        self._new_arena = new_arena
        self._state_arenas: dict[str, Arena] = {}
        self._selected: dict[int, list[torch.Tensor]] = {}
        self.swapped: str | None = None  # the state that look-ahead swaps for each worker's own
        self._pieces = _pieces(arena.layout, spec.kind in ELEMENTWISE)
        self._flat = all(piece.flat for piece in self._pieces)
        self._group_of = [piece.group for piece in self._pieces]
        self.parameters = [torch.nn.Parameter(tensor, requires_grad=False) for tensor in self.select(arena)]
        grouped: list[list[torch.nn.Parameter]] = [[] for _ in spec.groups]
        for group, parameter in zip(self._group_of, self.parameters, strict=True):
            grouped[group].append(parameter)
        self._fused = _pays_fused(spec, sum(one.numel() for one in self.parameters))
        self.optimizer = _build(spec, grouped)
        self._applied = spec.groups  # what the optimizer's own groups were last told
        self._sent: dict[int, Groups] = {}  # by worker
        self.set_groups(spec.groups)
        self._move_state()  # what some (Adagrad) lay out before their first step

    def select(self, arena: Arena) -> list[torch.Tensor]:
        """The tensors of `arena` that this optimizer steps on, in the order of its parameters."""
        known = self._selected.get(id(arena))
        if known is None:
            known = [(arena.flat if piece.flat else arena.views)[piece.place] for piece in self._pieces]
            self._selected[id(arena)] = known
        return known

    def sent_groups(self, worker: int, groups: Groups) -> None:
        """The current hyper-parameters of `worker`, which its contributions are folded with (it may have a scheduler)."""
        self._sent[worker] = self._given if groups == self._given else groups

    def step_as(self, worker: int) -> None:
        """From now on step as `worker` asked to; the others may be at another point of their schedules."""
        groups = self._sent.get(worker, self._given)
        if groups is not self._given:
            self.set_groups(groups)

    def set_groups(self, groups: Groups) -> None:
        """Step with these hyper-parameters."""
        self._given = groups
        self.groups = [{**group, "fused": True} for group in groups] if self._fused else groups
        self._set_at: float | None = None
        self._directly = self._flat and steps_directly(type(self.optimizer), groups)

    def step(self, target: Arena, current: Arena, gradient: Arena, scale: float) -> None:
        """`target` = `current` (which it may be) one step along `gradient`, at `scale` times the learning rate."""
        if self._directly:
            self._step_directly(target, current, gradient, scale)
            return
        if target is not current:
            target.copy_from(current, Kind.TRAINED)
        if scale != self._set_at:
            self._set_at = scale
            self._apply_groups()
            for group, settings in zip(self.optimizer.param_groups, self.groups, strict=True):
                group["lr"] = settings["lr"] * scale
        for parameter, weight, slope in zip(self.parameters, self.select(target), self.select(gradient), strict=True):
            parameter.data = weight
            parameter.grad = slope
        with _no_global_hooks():
            self.optimizer.step()
        self._move_state()

    def _apply_groups(self) -> None:
        """Tell the optimizer what is new: some keep what is their own (a count of steps) beside the settings in a group."""
        if self._applied is self.groups:
            return
        for group, told, settings in zip(self.optimizer.param_groups, self._applied, self.groups, strict=True):
            news = {key: value for key, value in settings.items() if key not in told or told[key] != value}
            group.update(news)
        self._applied = self.groups

    def _own(self) -> Groups:
        """What the optimizer itself changed in its groups, as far as it goes into a file; the learning rate is scaled."""
        own: Groups = []
        for group, told in zip(self.optimizer.param_groups, self._applied, strict=True):
            values = {key: number(value) for key, value in group.items() if key not in ("params", "lr")}
            own.append(
                {key: value for key, value in values.items() if not unsendable(value) and value != told.get(key)}
            )
        return own

    def _step_directly(self, target: Arena, current: Arena, gradient: Arena, scale: float) -> None:
        tensors = zip(self.select(target), self.select(current), self.select(gradient), strict=True)
        for position, (new, old, slope) in enumerate(tensors):
            group = self.group_of(position)
            momentum, first = None, False
            if group["momentum"]:
                state = self.optimizer.state[self.parameters[position]]
                momentum = state.get(MOMENTUM)
                if first := momentum is None:
                    own = self.swapped == MOMENTUM
                    momentum = state[MOMENTUM] = torch.empty_like(slope) if own else self._home(MOMENTUM)[position]
            sgd_step(new, old, slope, momentum, first, group, group["lr"] * scale)

    def _move_state(self) -> None:
        """Keep the optimizer's state in arenas: it appears at the first step, then stays where it is put."""
        for position, parameter in enumerate(self.parameters):
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if is_whole(key, value, parameter) and key != self.swapped:
                    home = self._home(key)[position]
                    if value.data_ptr() != home.data_ptr():
                        state[key] = home.copy_(value)

    def _home(self, key: str) -> list[torch.Tensor]:
        if key not in self._state_arenas:
            self._state_arenas[key] = self._new_arena()
        return self.select(self._state_arenas[key])

    def kept(self) -> Kept:
        """What a checkpoint has to keep beside the parameters."""
        tensors = {f"optimizer {key}": arena.memory for key, arena in self._state_arenas.items()}
        held = [Held.of(self.state_of(position), parameter) for position, parameter in enumerate(self.parameters)]
        for position, one in enumerate(held):
            small = {key: value for key, value in one.rest.items() if torch.is_tensor(value) and value.dim()}
            tensors |= {f"optimizer {key} of {position}": value for key, value in small.items()}
        return Kept(
            tensors,
            {
                "whole": [[key for key in one.whole if key != self.swapped] for one in held],
                "rest": [{key: plain(value) for key, value in one.rest.items()} for one in held],
                "groups": self.groups,
                "own": self._own(),
                "swapped": [self.swapped in one.whole for one in held],
                "kind": full_name(self.kind),
            },
        )

    def restore(self, numbers: dict[str, Any]) -> None:
        """Go on from the numbers of `kept`; its tensors, which are there after this, are to be filled.

        Raises:
            CheckpointError: they are another optimizer's.
        """
        kind = full_name(self.kind)
        kept = str(numbers["kind"])
        ours = "torch." not in (kept[:6], kind[:6]) and kept.split(".")[-1] == kind.split(".")[-1]
        if kept != kind and not ours:  # a script's class has another module, depending on how the script was started
            raise CheckpointError(
                f"the checkpoint holds the state of {kept}, and this run prepared {kind}; prepare the same optimizer, or "
                "begin a new run and load weights.safetensors in the training function"
            )
        self.set_groups(numbers["groups"])
        self._apply_groups()
        for group, own in zip(self.optimizer.param_groups, numbers["own"], strict=False):
            group.update(own)
        swapped = numbers["swapped"]
        for position, parameter in enumerate(self.parameters):
            state: dict[str, Any] = {key: self._home(key)[position] for key in numbers["whole"][position]}
            state.update({key: from_plain(value) for key, value in numbers["rest"][position].items()})
            if swapped[position]:
                state[str(self.swapped)] = torch.zeros_like(parameter)
            if state:
                self.optimizer.state[parameter] = state

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Begin with copies of the state that a user's optimizer held; `arenas` hold what its keys name."""
        given = {key: self.select(arena) for key, arena in zip(carried.keys, arenas, strict=False)}
        for position, (piece, parameter) in enumerate(zip(self._pieces, self.parameters, strict=True)):
            held = carried.held[piece.tensors[0]]
            state: dict[str, Any] = {key: copy.deepcopy(value) for key, value in held.rest.items()}
            for key in held.whole:
                own = torch.zeros_like(parameter) if key == self.swapped else self._home(key)[position]
                state[key] = own.copy_(given[key][position])
            if state:
                self.optimizer.state[parameter] = state

    def group_of(self, position: int) -> dict[str, Any]:
        """The hyper-parameters of parameter `position`, as the user gave them."""
        group: dict[str, Any] = self.groups[self._group_of[position]]
        return group

    def state_of(self, position: int) -> dict[str, Any]:
        """The state of parameter `position`; empty before its first step."""
        state: dict[str, Any] = self.optimizer.state.get(self.parameters[position], {})
        return state


def kept_copies(spec: OptimizerSpec, layout: Layout) -> int:
    """How many tensors the size of the model this optimizer keeps: found by letting it step on tiny ones.

    They are of the groups, the dtypes and the numbers of dimensions that it will step on.

    Raises:
        ConfigurationError: it cannot.
    """
    grouped: list[list[torch.nn.Parameter]] = [[] for _ in spec.groups]
    for group, dtype, dimensions in dict.fromkeys(_forms(spec, layout)):
        parameter = torch.nn.Parameter(torch.zeros((3,) * dimensions, dtype=dtype))
        parameter.grad = torch.zeros_like(parameter)
        grouped[group].append(parameter)
    try:
        optimizer = _build(spec, grouped)
        with _no_global_hooks():
            optimizer.step()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{spec.kind.__name__} cannot step at the server: tried there on small tensors of zeros, it raised "
            f"{type(error).__name__}: {error}; take another optimizer, or a strategy whose optimizer stays in the worker, "
            "such as local_sgd"
        ) from error
    state = optimizer.state.items()
    return len({key for parameter, held in state for key, value in held.items() if is_whole(key, value, parameter)})


def _forms(spec: OptimizerSpec, layout: Layout) -> Iterator[tuple[int, torch.dtype, int]]:
    """Of each tensor that is stepped on: group, dtype, number of dimensions."""
    for piece in _pieces(layout, spec.kind in ELEMENTWISE):
        one = layout.specs[piece.tensors[0]]
        yield piece.group, one.torch_dtype, 1 if piece.flat else len(one.shape)


class _Piece(NamedTuple):
    """One tensor that the optimizer steps on: a segment (`flat`) or a single tensor, and the model's tensors in it."""

    flat: bool
    place: int
    group: int
    tensors: tuple[int, ...]


def _pieces(layout: Layout, elementwise: bool) -> list[_Piece]:
    """What to step on: whole segments of an elementwise optimizer, single tensors otherwise.

    In half precision a kernel rounds its vector part and its rest differently, so that there only the user's own tensors
    give the user's own bits.
    """
    pieces: list[_Piece] = []
    for index, segment in enumerate(layout.segments):
        if segment.kind is not Kind.TRAINED:
            continue
        if elementwise and segment.dtype in FLAT_DTYPES:
            pieces.append(_Piece(True, index, segment.group, segment.tensors))
        else:
            pieces.extend(_Piece(False, tensor, segment.group, (tensor,)) for tensor in segment.tensors)
    return pieces


def check_carried(spec: OptimizerSpec, layout: Layout) -> None:
    """Make sure that what is stepped as one tensor has one state.

    Raises:
        ConfigurationError: it has not.
    """
    if spec.carried is None:
        return
    held = spec.carried.held
    for piece in _pieces(layout, spec.kind in ELEMENTWISE):
        first = piece.tensors[0]
        for other in piece.tensors[1:]:
            if not held[first].same(held[other]):
                names = [layout.specs[index].name for index in (first, other)]
                raise ConfigurationError(
                    f"the {spec.kind.__name__} given to prepare holds {held[first]} for {names[0]} and {held[other]} for "
                    f"{names[1]}; the server, which steps a group of parameters as one, can keep one count for it: put them "
                    "into groups of their own, prepare a fresh one, or take a strategy whose optimizer stays in the "
                    "worker, such as local_sgd"
                )


def _pays_fused(spec: OptimizerSpec, elements: int) -> bool:
    """Whether to use the fused kernel: where it pays and the user did not choose another one."""
    chose = any(group.get("fused") is not None or group.get("foreach") for group in spec.groups)
    return spec.kind in FUSED and elements >= FUSED_FROM and not chose


def _build(spec: OptimizerSpec, grouped: Sequence[Sequence[torch.nn.Parameter]]) -> Optimizer:
    given = copy.deepcopy(spec.groups)  # lists in it are the optimizer's to write into
    groups = [{**settings, "params": list(members)} for settings, members in zip(given, grouped, strict=True)]
    try:
        return spec.kind(groups, **spec.defaults)
    except TypeError as error:
        raise ConfigurationError(
            f"{spec.kind.__name__} cannot be built at the server from its defaults {sorted(spec.defaults)}: {error}; "
            "give its __init__ the names that its defaults have, or take a strategy whose optimizer stays in the worker, such as "
            "local_sgd"
        ) from error
