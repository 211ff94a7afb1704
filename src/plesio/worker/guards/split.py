"""At prepare: a model that an island's ranks hold together is one that they can exchange together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import nn

from plesio.errors import ConfigurationError, ModelMismatchError
from plesio.protocol.coding import encode
from plesio.tables.module import named_tables
from plesio.tensors.arena import TensorSpec
from plesio.tensors.local import is_split
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.transport.island_group import IslandGroup
from plesio.worker.island import Island


def check_model(model: nn.Module, island: Island, tensors: Sequence[torch.Tensor]) -> None:
    """Raise `ConfigurationError` for a model that cannot be exchanged by ranks, or whose ranks would train on the wrong data."""
    check_kind(model)
    if island.ranks > 1 and island.parts == (island.rank, island.ranks) and _splits_layers(model, tensors):
        raise ConfigurationError(
            "ranks of this worker split layers among them (tensor parallelism), and would each compute on another slice of a "
            "batch: make the mesh with worker.island.mesh_of(dp=..., tp=...), or set worker.island.parts = (part, parts) so that "
            "ranks which share a layer have the same part"
        )


def check_kind(model: nn.Module) -> None:
    """Raise `ConfigurationError` for a model that no ranks exchange."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigurationError(
            "prepare was given a DistributedDataParallel: prepare the model in it, and wrap what prepare returns"
        )
    if named_tables(model):
        raise ConfigurationError(
            "a worker of several processes has no tables (ps.Table): leave ranks out, or the tables"
        )


def _splits_layers(model: nn.Module, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether ranks hold shards that are not FSDP2's, or FSDP2's and others."""
    shards = [sum(place.is_shard() for place in one.placements) for one in tensors if is_split(one)]  # type: ignore[attr-defined]
    if not any(shards):
        return False
    from torch.distributed.fsdp import FSDPModule

    return max(shards) > 1 or not any(isinstance(one, FSDPModule) for one in model.modules())


def check_alike(group: IslandGroup, specs: Sequence[TensorSpec], optimizers: Sequence[OptimizerSpec]) -> None:
    """Raise `ModelMismatchError` unless all ranks prepared the same model and optimizers of the same kind."""
    kinds = [(one.name, [sorted(settings) for settings in one.groups]) for one in optimizers]
    digest = zlib.crc32(encode([list(specs), kinds]))
    others = [rank for rank, (one,) in enumerate(group.rows([digest])) if one != digest]
    if others:
        raise ModelMismatchError(
            f"{group.name}: rank {others[0]} does not hold the same model and optimizer as rank {group.rank} ({len(specs)} "
            "tensors here): names, shapes, dtypes, the optimizer's class and its groups are to be the same; build them the same "
            "way on every rank"
        )
