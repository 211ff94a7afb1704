"""What the server hands over with a version: the weights, and the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plesio.protocol.launcher import Final
from plesio.system.memory import SharedBlock, tables_at
from plesio.tables.file import from_memory, joined
from plesio.tables.module import Table
from plesio.tensors.arena import Layout, Lies


def copied(descriptor: int, lies: Lies, layout: Layout) -> list[torch.Tensor]:
    """The tensors that lie there in the ring behind `descriptor`."""
    block = SharedBlock(descriptor, lies.nbytes)
    kept = [view.clone() for view in lies.of(block.memory, layout).views]
    block.close()
    return kept


def handed_over(final: Final, descriptors: Sequence[int]) -> tuple[dict[str, torch.Tensor], dict[str, Table]]:
    """The state dict that a run ended with, and the tables by name; of a run that began."""
    assert final.model is not None, "it began"
    kept = copied(descriptors[0], final.lies, Layout(final.model.specs))
    state = {name: kept[index] for name, index in final.model.names}
    state |= {name: one.clone() for name, one in tables_at(final.model.tables).items()}
    rows = joined([from_memory(one) for one in descriptors[1:]]) if len(descriptors) > 1 else None
    return state, {one.name: Table.of(one, rows[one.name]) for one in final.tables} if rows is not None else {}
