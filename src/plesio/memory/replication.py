"""What a standby is told of a memory: what it folds, and from which contributions. It does the same, in the same order.

A contribution is put on the log before the sequencer hears of it, while its slot is still its own; its rows of tables when they
are about to step. Effects follow together, once the turn is over (`plesio.launch.local.replicated_turns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plesio.core.events import Fold, Forget, Hold, Share, Show
from plesio.errors import ConfigurationError
from plesio.memory.blocks import Blocks
from plesio.memory.capability import Action, MemoryCapability, ModelMemory, Stepping
from plesio.memory.row_tables import ServedRows
from plesio.protocol.coding import encode
from plesio.protocol.payloads import Payloads, cut
from plesio.protocol.replication import Came, Did, Effect, RowsCame
from plesio.protocol.worker import Contribution
from plesio.tensors.checksum import window_checksum
from plesio.transport.replication_log import ReplicationLog

PIECE_BYTES = 1 << 20
"""Of rows in one entry of the log, about."""


class Replication(MemoryCapability):
    """Of one server's memory.

    Attributes:
        log: None until somebody follows.
        version: the newest that the log has.
        settings: of each worker's optimizer, as it said them last.
        effects: since the turn began. What workers are shown is among them: stale gradients are corrected by that.
    """

    def __init__(self) -> None:
        self.log: ReplicationLog | None = None
        self.settings: dict[int, bytes] = {}
        self.version = -1
        self.effects: list[Effect] = []

    @property
    def actions(self) -> dict[type, Action]:
        return dict.fromkeys((Show, Forget, Hold, Fold, Share), self._did)

    def begun(self, blocks: Blocks, version: int) -> None:
        if blocks.first.tables and blocks.strategy.rows.at_once:
            raise ConfigurationError(
                f"standby=: under {blocks.strategy.name} rows of tables step before the version of their contribution is made, "
                "and a standby would step them twice; take rows='with', or leave standby out"
            )
        if blocks.after_step is not None:
            raise ConfigurationError(
                "standby=: a function (prepare(after_step=)) does not travel to a standby; leave either out"
            )
        self._blocks, self._payloads = blocks, Payloads(blocks.layout, blocks.strategy)

    def told(self, worker: int, made: Contribution) -> None:
        if made.settings:
            self.settings[worker] = made.settings
        if self.log is not None:
            slot = self._blocks.slots[worker].bytes
            self.log.put(encode(Came(worker, made)), cut(slot, self._payloads.spans(made)))

    def _did(self, memory: ModelMemory, effect: Any) -> None:
        self.effects.append(effect)
        rows = memory.rows
        if self.log is not None and rows is not None:
            for worker, number in _stepping(effect):
                for one in rows.given(worker, number):
                    self._put_rows(self.log, worker, number, one)
            if isinstance(effect, Fold):
                rows.stepped = 0  # that was of the fold before

    def _put_rows(self, log: ReplicationLog, worker: int, number: int, given: ServedRows) -> None:
        """In pieces: how many rows come nobody knows when the log is made."""
        count = len(given.laid.keys)
        each = 1 + PIECE_BYTES * count // sum(part.nbytes for part in given.laid.stepping)
        for begin in range(0, count, each):
            piece = given.laid.rows(begin, min(begin + each, count))
            log.put(encode(RowsCame(worker, number, given.table, len(piece.keys))), piece.stepping)

    def turn(self, machine: ModelMemory, version: int, manifest: Callable[[], bytes], journal: bytes) -> None:
        """A turn of the server is over, and there is this `version`. `manifest`: what a checkpoint of now would say, packed;
        `journal`: what that was told meanwhile."""
        effects, self.effects = self.effects, []
        if self.log is None or not (effects or journal):
            return
        did = Did(tuple(effects), journal)
        if version != self.version or not all(isinstance(one, Show) for one in effects):
            # Between two versions, too, a memory learns: a gradient that is held teaches the damping of others.
            checksum = window_checksum(machine.folded.bytes, version)
            did = Did(did.effects, journal, version, checksum, manifest(), _stepped(machine.rows, effects))
            self.version = version
        self.log.put(encode(did))


def _stepped(rows: Stepping | None, effects: list[Effect]) -> int:
    """The checksum of the rows that a fold stepped. The journal has taken it, or it is taken here. Of several folds in a turn it
    would be that of them all, which nobody can compare (0)."""
    folds = sum(isinstance(one, Fold) for one in effects)
    if rows is None or not folds:
        return 0
    if not rows.stepped:
        rows.take_checksum()
    return rows.stepped if folds == 1 else 0


def _stepping(effect: Effect) -> list[tuple[int, int]]:
    """The contributions, by worker and number, whose rows it takes."""
    if isinstance(effect, Hold):
        return [(effect.worker, effect.number)]
    if isinstance(effect, Fold) and not effect.held:
        return [(member.worker, member.number) for member in effect.members]
    return []
