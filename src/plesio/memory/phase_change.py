"""A run goes over to another phase of its strategy: the memory goes on with the state that both have."""

from __future__ import annotations

from itertools import islice

from plesio.core.events import Forget, Share, Switch
from plesio.errors import SharedMemoryError
from plesio.memory.blocks import Blocks
from plesio.memory.capability import Action, MemoryCapability, ModelMemory
from plesio.memory.saved import Kept
from plesio.memory.taking_over import lost, one_for_all, take_over
from plesio.protocol.worker import Contribution


class PhaseChange(MemoryCapability):
    """Of the run that `blocks` are for: who waits meanwhile, and with what."""

    sizes_differ = True

    def __init__(self, blocks: Blocks) -> None:
        self._numbers: dict[int, int] = {}  # of what each worker sent last
        self._finite: dict[int, bool] = {}  # whether that was
        self._among = blocks.workers  # who share learning rates

    @property
    def actions(self) -> dict[type, Action]:
        return {Switch: self._do, Forget: self._forget, Share: self._share}

    def told(self, worker: int, made: Contribution) -> None:
        self._numbers[worker], self._finite[worker] = made.number, made.finite

    def _forget(self, memory: ModelMemory, forget: Forget) -> None:
        self._numbers.pop(forget.worker, None)

    def _share(self, memory: ModelMemory, share: Share) -> None:
        self._among = share.workers

    def _do(self, memory: ModelMemory, switch: Switch) -> None:
        try:
            self._switch(memory, switch.phase)
        except SharedMemoryError as error:
            if memory.log is not None and memory.log.recovering:  # it was done: nobody may go on as if it were not
                raise MemoryError("a switch cannot be done again") from error
            raise

    def _switch(self, memory: ModelMemory, phase: int) -> None:
        """As a checkpoint would be gone on from in that phase, without one. Nobody reads a version until it is shown one.

        Nothing that is read here is written: a process that takes over does it again."""
        blocks, was, before = memory.blocks, memory.blocks.strategy, memory.folder.kept()
        waiting = dict(sorted(self._numbers.items()))
        there = {worker: number for worker, number in waiting.items() if worker not in memory.elsewhere}
        held = ((worker, memory.states.left(worker, number)) for worker, number in there.items())
        left = ((worker, state) for worker, state in held if state)
        # Of one that overflowed the optimizer may have, too.
        sound = ((worker, state) for worker, state in left if self._finite[worker])
        lowest = was.send.stepped and blocks.phases[phase].steps_at_server  # of several optimizers that one counts
        own = dict(islice(sound, 1) if lowest else left)
        blocks.versions.turn()
        blocks.turn_to(phase)
        folder = memory.lay_out_anew()
        begun = take_over(blocks, folder, was, Kept({}, before.tensors, before.numbers, (), own=own, was=was))
        folder.all_behind()
        folder.share_among(self._among)
        memory.states.give(waiting, begun)
        dropped = [*lost(was, blocks.strategy, before.numbers, blocks.workers)]
        if was.send.stepped and not blocks.strategy.send.stepped:
            away = (
                "they are all on other hosts" if memory.elsewhere >= waiting.keys() else "none can be had that is sound"
            )
            why = away if waiting else "none of them is left"
            dropped.append(one_for_all([*waiting], min(own, default=None), why))
        memory.dropped = "; ".join(filter(None, dropped))
