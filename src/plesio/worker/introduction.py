"""What a worker takes part with, and what it shows the server of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from torch import nn
from torch.optim import Optimizer

from plesio import tables
from plesio.errors import ConfigurationError
from plesio.protocol.worker import Hello
from plesio.strategy import Strategy
from plesio.tables.module import named_tables, without_rows
from plesio.tensors.after_step import AfterStep
from plesio.tensors.arena import Kind
from plesio.tensors.carrying import Carried
from plesio.tensors.cut import cut
from plesio.tensors.local import is_split
from plesio.tensors.low_rank import check_pairs
from plesio.tensors.model import Described, describe, dump_plain, dump_structure, with_control
from plesio.tensors.rows import tables_of
from plesio.tensors.several import specs_of
from plesio.worker.guards.overlap import check_apart
from plesio.worker.own_part import OwnPart
from plesio.worker.row_exchange import check_strategy
from plesio.worker.warn import listed, warn


@dataclass(frozen=True)
class Taking:
    """What a worker takes part with. `after_step`: what is done to the weights after each step; `frozen_too`: what the optimizer
    holds may be unfrozen later; `own`: what is not shared."""

    model: nn.Module
    optimizer: Optimizer
    after_step: AfterStep | None = None
    frozen_too: bool = False
    own: OwnPart | None = None


def introduction(
    worker: int, strategy: Strategy, given: Taking, evaluates: bool, build: Callable[[], nn.Module] | None = None
) -> tuple[Hello, Carried | None, list[torch.Tensor]]:
    """What a worker shows the server of itself, the optimizer's state in it, and the model's tensors in order. `build` builds the
    model as `evaluate` is to see it, if that is not to be a copy of the worker's."""
    model, optimizer = given.model, given.optimizer
    at_server = [one.steps_at_server for one in strategy.phases]
    by_rows = all(at_server) and all(one.correct.spares_rows for one in strategy.phases)
    row_tables = named_tables(model)
    own = given.own or OwnPart({})
    if given.own is not None:
        own.check(strategy, judged=evaluates)
    if row_tables:
        check_strategy(strategy, row_tables)
        tables.load_kernels()  # before training begins
    if given.frozen_too and strategy.every.among_ranks:
        raise ConfigurationError(
            "prepare(trainable='all'): DistributedDataParallel reduces what needs a gradient when it is built; take allreduce on "
            "one host, or sync_sgd"
        )
    sparse = tables_of(model, optimizer) if by_rows else ()
    described, tensors = describe(model, optimizer, sparse, given.frozen_too, strategy.gives_back_mean, own.identities)
    if strategy.send.control:
        if row_tables or given.after_step is not None:
            what = "tables" if row_tables else "after_step="
            raise ConfigurationError(
                f"ps.scaffold knows a client's mean gradient by how its steps moved it: leave out {what}"
            )
        described, tensors = with_control(described, tensors)
    for phase in strategy.phases:
        check_pairs(phase.combine, described.specs)
    if worker == 0:
        _warn_of_whole(strategy, described)
    described = replace(described, specs=cut(described.specs, strategy.send.fragments))
    names = [spec.name for spec in described.specs]
    check_apart([*names, *own.tensors], [*tensors, *own.tensors.values()])
    specs = specs_of(optimizer, tensors if any(at_server) else None)
    if not at_server[0]:  # what it holds stays here
        specs = tuple(replace(one, carried=None) for one in specs)
    with without_rows(row_tables.values()):
        structure = _structure(model, described, tensors, build) if evaluates else b""
    hello = Hello(
        worker=worker,
        model=described,
        optimizers=specs,
        structure=structure,
        tables=tuple(one.spec(name) for name, one in row_tables.items()),
        after_step=given.after_step,
    )
    return hello, specs[0].carried, tensors


def _warn_of_whole(strategy: Strategy, described: Described) -> None:
    """A codec that packs nothing of this model is one that was not meant."""
    packing = [one.name for one in strategy.phases if not one.sends_as_ddp]
    kinds = sorted({one.dtype for one in described.specs if one.kind is Kind.TRAINED})
    if packing and "float32" not in kinds:
        warn(
            f"{packing[0]}: a codec packs float32, and the parameters here are of {listed(kinds)}: they travel as they are. "
            "Leave the codec out, or keep parameters in float32 and compute in half precision, with torch.autocast"
        )


def _structure(
    model: nn.Module, described: Described, tensors: list[torch.Tensor], build: Callable[[], nn.Module] | None
) -> bytes:
    """What `evaluate` is given, without its tensors."""
    if build is not None:
        return dump_plain(build, described)
    if any(map(is_split, tensors)):
        raise ConfigurationError(
            "evaluate gets a copy of the model, and this one is split among the processes of a worker: say what builds the plain "
            "one, ps.run(..., model=build), or leave evaluate out and measure in the training function"
        )
    return dump_structure(model, tensors)
