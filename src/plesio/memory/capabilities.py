"""What the memory of a run may be able to do beside folding (`plesio.memory.capability`): who does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from plesio.capabilities import halves
from plesio.memory.blocks import Blocks
from plesio.memory.capability import MemoryCapability
from plesio.memory.folder import Folder, Parts
from plesio.memory.own_weights import OwnWeights
from plesio.memory.phase_change import PhaseChange
from plesio.memory.row_servers import RowServers, rows_here
from plesio.memory.surviving import Surviving, why_not
from plesio.memory.worker_states import Once
from plesio.system.recovery_log import RecoveryLog
from plesio.tensors.pieces import kept_keys


class Able(NamedTuple):
    """`all`: in the order in which they are told; two of them have places of their own in the memory's port."""

    rows: RowServers | None
    own: OwnWeights | None
    all: list[MemoryCapability]


def those_of(
    blocks: Blocks,
    in_one_process: bool,
    log: RecoveryLog | None,
    once: Once,
    beside: Sequence[MemoryCapability] = (),
) -> Able:
    """Those that the run has. Those `beside` are told first: tables are among them, if other processes hold their rows."""
    rows = next((one for one in beside if isinstance(one, RowServers)), None)
    here = rows_here(blocks, log) if rows is None else None
    own = OwnWeights(blocks, in_one_process, once) if blocks.gives_back_mean else None
    changes = PhaseChange(blocks) if len(blocks.phases) > 1 else None
    loaded = [half.MemoryHalf(blocks) for half in halves(blocks.strategy, "memory")]
    return Able(rows or here, own, [one for one in (*beside, here, own, changes, *loaded) if one is not None])


def kind_of_folder(log: RecoveryLog | None, blocks: Blocks, lost: str) -> Callable[[Parts], Folder]:
    """Puts one together for the strategy that holds in `blocks`: with a `log` one that survives, if it could."""
    if log is None or lost or why_not(blocks):
        return Folder
    specs, layout = blocks.specs, blocks.state_layout
    return partial(Surviving, log, kept_keys(specs, layout, small=True) if specs else ())
