"""What a checkpoint keeps of a memory, and going on from that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plesio.errors import CheckpointError
from plesio.memory.blocks import Blocks
from plesio.memory.folder import Folder
from plesio.strategy import Strategy
from plesio.tensors import carrying
from plesio.tensors.arena import Arena


class Kept(NamedTuple):
    """What a checkpoint keeps of the memory: `weights` by the model's names, other `tensors` by name, plain `numbers`, the
    `layout` in words. To restore: the folder and the files with the rows of `tables`, what workers held of their `own`, the
    strategy that it `was`, if that or the seats are others now, and the `phase` that the run goes on in."""

    weights: dict[str, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    numbers: dict[str, Any]
    layout: tuple[str, ...]
    tables: tuple[Path, tuple[str, ...]] = (Path(), ())
    own: Mapping[int, bytes] = {}
    was: Strategy | None = None
    phase: int = 0


def weights(blocks: Blocks, current: Arena) -> dict[str, torch.Tensor]:
    """By the model's names, each with memory of its own: torch loads them alone."""
    named = {name: current.views[index].clone() for name, index in blocks.model.names}
    return named | {name: table.clone() for name, table in blocks.tables.items()}


def kept(blocks: Blocks, current: Arena, state: carrying.Kept) -> Kept:
    known = {index for _, index in blocks.model.names}
    nameless = {f"tensor {index}": view for index, view in enumerate(current.views) if index not in known}
    return Kept(weights(blocks, current), {**nameless, **state.tensors}, state.numbers, _words(blocks))


def load_weights(blocks: Blocks, kept: Kept, name: str) -> None:
    """Into the first buffer, where those of the first worker lie; `blocks` are for the phase that they are of then."""
    blocks.turn_to(kept.phase)
    wanted, got = kept.layout, _words(blocks)
    if wanted != got:
        differ = (f"{a}, got {b}" for a, b in zip(wanted, got, strict=False) if a != b)
        first = next(differ, f"{len(wanted)} tensors, got {len(got)}")
        raise CheckpointError(
            f"{name} is of another model: it has {first}; build the model as it was (and prepare it so)"
        )
    views = blocks.ring[0].views
    for weight, index in blocks.model.names:
        views[index].copy_(kept.weights[weight])
    for weight, table in blocks.tables.items():
        table.copy_(kept.weights[weight])
    for index, view in enumerate(views):
        if f"tensor {index}" in kept.tensors:
            view.copy_(kept.tensors[f"tensor {index}"])


def load_state(folder: Folder, kept: Kept, name: str) -> None:
    """What the server's optimizer, corrections and publishing keep."""
    was, now = kept.numbers, folder.kept().numbers
    if was.keys() != now.keys():  # with or without momentum, look-ahead or plainly: what folds depends on the optimizer
        had, has = (one.get("optimizer", {}).get("kind", "no optimizer") for one in (was, now))
        raise CheckpointError(
            f"{name} holds the state of {had} ({', '.join(was)}), and this run prepared {has} ({', '.join(now)}); "
            "prepare the same optimizer with momentum as it was, or begin a new run and load weights.safetensors in the "
            "training function"
        )
    folder.state.restore(was, kept.tensors)


def _words(blocks: Blocks) -> tuple[str, ...]:
    tensors = [
        f"{spec.name}: {spec.dtype} {tuple(spec.shape)}, {spec.kind.name.lower()}"
        + (f" in group {spec.group}" if spec.group >= 0 else "")
        + (", frozen at prepare" if spec.asleep else "")
        + (f", {spec.in_memory}" if spec.order else "")
        for spec in blocks.layout.specs
    ]
    rows = [f"{one.name}: table of rows of {one.dim} by {type(one.optimizer).__name__}" for one in blocks.first.tables]
    return (*rows, *tensors, *(f"{name}: {place.what}" for name, place in blocks.model.tables.items()))
