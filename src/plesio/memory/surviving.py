"""Folds that can be gone on from when the process that made them dies (`plesio.system.recovery_log`).

Tensors lie in memory that outlives it. An effect that changes them is entered in the log when it is done, with the numbers beside
the tensors. Whoever takes over takes the numbers of each effect from there, and moves no tensor. The effect that was under way at
the end is done again, from what was there before it:

| a fold of                | what was there before it                                                              |
| ------------------------ | ------------------------------------------------------------------------------------- |
| a large model, in a pass | is kept line by line (`plesio.tensors.undo`), and the pass is gone on with            |
| anything else            | is copied first: each array of the register lies twice                                |

Where it was copied, a word in shared memory says which effect was begun, and that the copy is whole. Whoever takes over copies
back if that effect is not in the log. The copy is made when it is needed; of a large model before, when nobody has anything to
say (`settle`).

Versions go into a free buffer of the ring. Where a server that does not survive changes them in place, so does this one if passes
do all of it. The master copy of half precision goes into its other arena. Slots are left as they are.

At a switch to another strategy the state is laid out anew, in memory that only the process that does it sees, and nothing is
written that it is made of. Until that process has a new spare nothing is folded. So whoever takes over in between does all of it
again, whatever the log has (`_is_new`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from plesio.core.events import Fold
from plesio.memory.blocks import Blocks
from plesio.memory.folder import Folder, Parts
from plesio.memory.register import When
from plesio.system.memory import SharedBlock
from plesio.system.recovery_log import RecoveryLog
from plesio.tensors.arena import ALL_PARTS, PAGE, Arena, Kind
from plesio.tensors.carrying import Carried, Kept

LARGE_BYTES = 1 << 18
"""An arena of more is copied while there is time; a smaller one when it changes, for which it is in the caches then."""


class Surviving(Folder):
    """Does as `Folder`, by way of the `log`. `keys`: of the tensors that the optimizer keeps, whose memory is made now: a process
    that was forked does not see what is made later."""

    def __init__(self, log: RecoveryLog, keys: Sequence[str], parts: Parts) -> None:
        super().__init__(parts)
        self._log = log
        self._block = SharedBlock.create(PAGE, "the word that says which fold was begun")
        self._begun = self._block.memory.numpy().data.cast("Q")
        self._done = 0  # effects that are in the log, and the one that is being done
        self._latest: Sequence[Any] | None = None  # numbers that were taken from the log, and not yet gone on from
        self._generation = log.generation
        state, publisher, optimizer, master = self.state, self._publisher, self._step.optimizer, self._master
        # Where something other than a pass reads the weights, they are not changed in place.
        buffers = bool(publisher.versions.buffers[0].layout.buffer_segments)
        self._weights_stay = buffers or self._correction is not None or master is not None
        self._in_place, publisher.in_place = publisher.in_place, False
        self._gather.survive(state)
        if master is not None:
            master.survive(state)
        if optimizer is not None:
            optimizer.make_room(keys, self._give_up)
            optimizer.copies_always |= publisher.writes  # into buffers that weights lay in: they are not made in place
        self._undo = optimizer.undo() if optimizer is not None else None
        pairs = [(one, Arena(one.layout, state.new("second copy").memory)) for one in state.arrays]
        both_ways = [(one, other) for pair in pairs for one, other in (pair, pair[::-1])]
        self._other = {id(one): other for one, other in both_ways}
        self._copy = {id(one): _copying(one, other) for one, other in both_ways}
        """By identity: copies an array into its other one."""
        self._alike: set[int] = set()  # by identity: arrays that were copied, and have not changed since
        self._next: Sequence[int] = ()  # likewise: what is likely to be copied next
        if any(one.layout.nbytes > LARGE_BYTES for one in state.arrays):
            self.settle = self._settled
        self.hold, self.share_among, self.carried = self._held, self._shared_among, self._carried
        if publisher.writes:
            self.publish, self.snapshot = self._published, self._pinned_whole

    def _give_up(self, why: str) -> None:
        """Nobody takes over from here on, not even what is being done."""
        self.lost = why
        self._log.give_up()

    # Effects

    def fold(self, fold: Fold) -> None:
        index = self._through((), self._fold, fold)
        if index is not None:
            for worker in self._gather.stepping(fold):
                self._step.step_as(worker)
            self._publisher.made(index)

    def _fold(self, fold: Fold) -> None:
        if self.lost:
            super().fold(fold)
            return
        # What lay in slots when a dead process did this may be gone.
        assert not self._log.recovering, "nothing is folded between a switch and the spare that knows of it"
        state, versions, workers = self.state, self._publisher.versions, self._gather.stepping(fold)
        if self._master is not None:
            self._master.stays()
        changed = state.changing(When.STEP, workers)
        kept = state.changing(When.FOLD) + (state.changing(When.HOLD) if fold.held else [])
        optimizer, undo = self._step.optimizer, self._undo if self._can_undo(fold, workers) else None
        stays = undo is None or self._weights_stay
        versions.lasting, self._publisher.in_place = versions.current if stays else None, self._in_place and not stays
        self._keep(kept if undo is not None else changed + kept)
        if undo is None or optimizer is None:
            super().fold(fold)
        else:  # its passes are kept there, as this effect's
            self._alike.difference_update(map(id, changed))
            undo.begin(self._done)
            optimizer.undo_by(undo)
            super().fold(fold)
            optimizer.undo_by(None)
        versions.lasting = None

    def _can_undo(self, fold: Fold, workers: Sequence[int]) -> bool:
        if self._undo is None or self._after is not None or len(workers) > 1:
            return False
        self._step.step_as(workers[0])
        return self._step.can_undo(workers[0], self._gather.absent_in(fold))

    def _held(self, worker: int, weight: float) -> None:
        self._through(self.state.changing(When.HOLD), self._gather.hold, worker, weight)

    def forget(self, worker: int) -> None:
        self._publisher.forget(worker)
        if self._step.remembers:
            self._through(self.state.changing(When.STEP, (worker,)), self._step.forget, worker)

    def _shared_among(self, workers: int) -> None:
        if self._through((), self._step.share_among, workers) is not None:
            self._step.share_among(workers)

    def _published(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        """Written into a buffer that nobody reads, which may be done again."""
        log, publisher = self._log, self._publisher
        if log.recovering:
            publisher.published(reader, index := log.once(int), part)
            return index
        if self._latest is not None:
            self._catch_up()
        return log.enter(publisher.publish(reader, unasked, part))

    def _pinned_whole(self, reader: int) -> int:
        log, publisher = self._log, self._publisher
        if log.recovering:
            publisher.pinned_whole(reader, index := log.once(int))
            return index
        self._catch_up()
        return log.enter(publisher.whole(reader))

    def _through(self, arrays: Sequence[Arena], do: Callable[..., None], *about: Any) -> int | None:
        """Have an effect done, which changes these where they are, unless the log has it: then the current buffer after it."""
        self._done += 1
        if not self._log.recovering or self._is_new:
            if self._latest is not None:
                self._catch_up()
            if arrays:
                self._keep(arrays)
            do(*about)
            self._log.once(self._numbers)
            return None
        current, *self._latest = self._log.once(list[Any])
        self._next = ()  # as this process knew it; what is alike, too
        self._alike.clear()
        return int(current)

    @property
    def _is_new(self) -> bool:
        """Whether its memory is younger than the spare: what a dead process laid out is gone with it."""
        return self._generation == self._log.generation

    def _numbers(self) -> list[Any]:
        """All that an effect changes beside tensors."""
        return [self._publisher.versions.current, *self.state.numbers()]

    # What was there before

    def _keep(self, arenas: Sequence[Arena]) -> None:
        """These are about to change where they are."""
        self._next = changing = [id(one) for one in arenas]
        if not arenas or self.lost:
            return
        undoes = self._begun[0] == self._done  # what a process that died had begun
        for one in [id(self._other[one]) for one in changing] if undoes else changing:
            if undoes or one not in self._alike:
                self._copy[one]()
        self._alike.difference_update(changing)
        self._begun[0] = self._done

    def _settled(self) -> bool:
        """Copy something that is likely to change next; whether there was anything."""
        for one in self._next if not self.lost else ():
            if one not in self._alike:
                self._copy[one]()
                self._alike.add(one)
                return True
        return False

    # The numbers

    def _catch_up(self) -> None:
        """Go on from the numbers that the log has."""
        if self._latest is not None:
            self.state.take(self._latest)
            self._latest = None

    def kept(self) -> Kept:
        self._catch_up()
        return super().kept()

    def _carried(self) -> Carried:
        self._catch_up()
        return self._step.carried()


def why_not(blocks: Blocks) -> str:
    """Why nobody could go on with what is kept of these; empty if somebody could."""
    if any(spec.kind is Kind.ROWS for spec in blocks.layout.specs):
        return "which rows of embeddings with sparse=True changed is in its own memory"
    if blocks.rows and not blocks.rows_survive:  # or nobody asked, and nobody is told
        return f"under {blocks.rows_wait} gradients of rows wait for their fold in its own memory"
    return ""


def _copying(one: Arena, other: Arena) -> Callable[[], object]:
    """Copies all of `one` into the `other`: of a small one in a call that runs no Python, for that is what costs there."""
    size = one.layout.nbytes
    if size > LARGE_BYTES:
        return partial(other.copy_from, one)
    return partial(operator.setitem, other.bytes, slice(size), one.bytes[:size])
