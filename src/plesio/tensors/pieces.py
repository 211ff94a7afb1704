"""What an optimizer at the server steps on: whole segments of flat memory, or a model's tensors one by one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import optim
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.errors import ConfigurationError
from plesio.tensors import adam, sgd
from plesio.tensors.arena import Arena, Kind, Layout, flattened
from plesio.tensors.carrying import is_small, is_whole
from plesio.tensors.optimizer_spec import STAY, Groups, OptimizerSpec
from plesio.tensors.outer_optimizer import DelayedNesterov
from plesio.tensors.several import Several

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam,
    optim.RAdam, optim.Rprop, optim.ASGD, DelayedNesterov,
)  # fmt: skip
FLAT_DTYPES = ("float32", "float64")


@contextmanager
def no_global_hooks() -> Iterator[None]:
    """Without torch's global optimizer hooks: they are the user's, and ran in the worker."""
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


def kept_keys(specs: Sequence[OptimizerSpec], layout: Layout, small: bool = False) -> list[str]:
    """The keys of the tensors of the model's size that these optimizers keep, found by a step on tiny tensors unless they are
    known. `small`: and of those that are smaller.

    These have the groups, dtypes and numbers of dimensions of the real ones.
    """
    groups = [group for spec in specs for group in spec.groups]
    kinds = kinds_of(specs)
    pieces = ((piece, layout.specs[piece.tensors[0]]) for piece in pieces_of(layout, kinds, groups))
    forms = dict.fromkeys(
        (piece.group, one.torch_dtype, 1 if piece.flat else len(one.shape), piece.table) for piece, one in pieces
    )
    known = [None if table else _known_keys(kinds[group], groups[group]) for group, *_, table in forms]
    if None not in known:
        return sorted({key for keys in known for key in keys or ()})
    parameters = [torch.nn.Parameter(torch.zeros((3,) * dimensions, dtype=dtype)) for _, dtype, dimensions, _ in forms]
    for parameter, (*_, table) in zip(parameters, forms, strict=True):
        parameter.grad = torch.zeros_like(parameter).to_sparse(1) if table else torch.zeros_like(parameter)
    try:
        optimizer = build(specs, [group for group, *_ in forms], parameters)
        with no_global_hooks():
            optimizer.step()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{named(specs)} cannot step at the server: tried there on small tensors of zeros, it raised "
            f"{type(error).__name__}: {error}; take another optimizer, or {STAY}"
        ) from error
    state = optimizer.state.items()
    return sorted(
        {
            key
            for parameter, held in state
            for key, value in held.items()
            if is_whole(key, value, parameter) or (small and is_small(value))
        }
    )


def _known_keys(kind: type[Optimizer], group: dict[str, Any]) -> Sequence[str] | None:
    """Those of an optimizer whose step is plesio's own; None of any other. A step of torch's would import torch's compiler."""
    if sgd.steps_directly(kind, group):
        return (sgd.MOMENTUM,) if group["momentum"] else ()
    return adam.keys(group) if adam.steps_directly(kind, group) else None


def kept_copies(specs: Sequence[OptimizerSpec], layout: Layout) -> int:
    """How many such tensors there are."""
    return len(kept_keys(specs, layout))


class StepPiece(NamedTuple):
    """One tensor to step on: a segment (`flat`), a part of it (`split`), or a single tensor; and the model's tensors in it."""

    flat: bool
    place: int
    group: int
    tensors: tuple[int, ...]
    split: bool = False
    table: bool = False

    @property
    def bits(self) -> int:
        """Its tensors as a set (`plesio.tensors.tensor_set`)."""
        return sum(1 << tensor for tensor in self.tensors)

    def of(self, arena: Arena) -> torch.Tensor:
        """What there is of it in `arena`."""
        if self.flat and not self.split:
            return arena.flat[self.place]
        return flattened(arena.views[self.place]) if self.flat else arena.views[self.place]

    def parts(self) -> list[StepPiece]:
        """Its tensors by themselves."""
        return [self._replace(place=one, tensors=(one,), split=True) for one in self.tensors]


def kinds_of(specs: Sequence[OptimizerSpec]) -> list[type[Optimizer]]:
    """By group: the class of its optimizer."""
    return [spec.kind for spec in specs for _ in spec.groups]


def named(specs: Sequence[OptimizerSpec]) -> str:
    return " and ".join(spec.kind.__name__ for spec in specs)


def pieces_of(layout: Layout, kinds: Sequence[type[Optimizer]], groups: Groups) -> list[StepPiece]:
    """The tensors to step on: whole segments for an elementwise optimizer, single tensors otherwise.

    In half precision a kernel rounds its vector part and its rest differently: there only the user's own tensors give
    the same bits. Without an `eps`, the zeros that fill up a segment would be divided by zero.
    """
    pieces: list[StepPiece] = []
    for index, segment in enumerate(layout.segments):
        if not segment.kind.moves:
            continue
        table = segment.kind is Kind.ROWS
        elementwise = kinds[segment.group] in ELEMENTWISE and groups[segment.group].get("eps") != 0
        if not table and elementwise and segment.dtype in FLAT_DTYPES:
            pieces.append(StepPiece(True, index, segment.group, segment.tensors))
        else:
            pieces.extend(StepPiece(False, one, segment.group, (one,), table=table) for one in segment.tensors)
    return pieces


def build(
    specs: Sequence[OptimizerSpec], group_of: Sequence[int], parameters: Sequence[torch.nn.Parameter]
) -> Optimizer:
    given = [group for spec in specs for group in spec.groups]
    groups: Groups = [{**copy.deepcopy(settings), "params": []} for settings in given]  # it may write into them
    for group, parameter in zip(group_of, parameters, strict=True):
        groups[group]["params"].append(parameter)
    rest = iter(groups)
    built = [_build_one(spec, [next(rest) for _ in spec.groups]) for spec in specs]
    return built[0] if len(built) == 1 else Several(built)


def _build_one(spec: OptimizerSpec, groups: Groups) -> Optimizer:
    try:
        return spec.kind(groups, **spec.defaults)
    except TypeError as error:
        raise ConfigurationError(
            f"{spec.kind.__name__} cannot be built at the server from its defaults {sorted(spec.defaults)}: {error}; "
            f"give its __init__ the names that its defaults have, or {STAY}"
        ) from error
