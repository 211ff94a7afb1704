"""Folds that can be gone on from when the process that made them dies (`plesio.host.recovery_log`).

Tensors lie in memory that outlives it. An effect that changes them is entered in the log when it is done, with the numbers beside
the tensors. Whoever takes over takes the numbers of each effect from there, and moves no tensor. The effect that was under way at
the end is done again, from what was there before it:

| a fold of                | what was there before it                                                              |
| ------------------------ | ------------------------------------------------------------------------------------- |
| a large model, in a pass | is kept line by line (`plesio.tensors.undo`), and the pass is gone on with            |
| anything else            | is copied first: each arena of the state lies twice                                   |

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
from plesio.host.memory import SharedBlock
from plesio.host.recovery_log import RecoveryLog
from plesio.memory.folder import Folder
from plesio.memory.gather import Gather, NewArena
from plesio.memory.master import Master
from plesio.memory.publish import Publisher
from plesio.memory.steps import Step
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, PAGE, Arena
from plesio.tensors.carrying import Carried, Kept
from plesio.tensors.corrections import Correction
from plesio.tensors.undo import Undo

LARGE_BYTES = 1 << 18
"""An arena of more is copied while there is time; a smaller one when it changes, for which it is in the caches then."""


class Surviving(Folder):
    """Does as `Folder`, by way of the `log`. `keys`: of the tensors that the optimizer keeps, whose memory is made now: a process
    that was forked does not see what is made later."""

    def __init__(
        self,
        log: RecoveryLog,
        new_arena: NewArena,
        keys: Sequence[str],
        gather: Gather,
        correction: Correction | None,
        step: Step,
        publisher: Publisher,
        after: Applied | None,
        parts: dict[str, Any],
        master: Master | None = None,
    ) -> None:
        super().__init__(gather, correction, step, publisher, after, parts, master)
        self._log = log
        self._block = SharedBlock.create(PAGE, "the word that says which fold was begun")
        self._begun = self._block.memory.numpy().data.cast("Q")
        self._done = 0  # effects that are in the log, and the one that is being done
        self._latest: Sequence[Any] | None = None  # numbers that were taken from the log, and not yet gone on from
        self._generation = log.generation
        # Where something other than a pass reads the weights, they are not changed in place.
        buffers = bool(publisher.versions.buffers[0].layout.buffer_segments)
        self._weights_stay = buffers or correction is not None or master is not None
        self._in_place, publisher.in_place = publisher.in_place, False
        gather.survive(new_arena)
        optimizer = parts["optimizer"]
        if optimizer is not None:
            optimizer.make_room(keys, self._give_up)
            optimizer.copies_always |= publisher.writes  # into buffers that weights lay in: they are not made in place
        self._undo = optimizer.undo() if optimizer is not None else None
        self._beside = (*correction.arenas,) if correction is not None else ()
        masters = (master.weights,) if master is not None else ()
        one_of_each = (*step.arenas(range(gather.seats)), *self._beside, *gather.arenas, *masters)
        pairs = [(one, Arena(one.layout, new_arena("second copy").memory)) for one in one_of_each]
        for one in masters:  # what is frozen stays there, too
            pairs[-1][1].copy_from(one)
        both_ways = [(one, other) for pair in pairs for one, other in (pair, pair[::-1])]
        self._other = {id(one): other for one, other in both_ways}
        self._copy = {id(one): _copying(one, other) for one, other in both_ways}
        """By identity: copies an arena into its other one."""
        self._swapped = False  # whether the master copy is the second one of its pair
        self._alike: set[int] = set()  # by identity: arenas that were copied, and have not changed since
        self._next: Sequence[int] = ()  # likewise: what is likely to be copied next
        if any(one.layout.nbytes > LARGE_BYTES for one in one_of_each):
            self.settle = self._settled
        self._holds = gather.numbers() is not None
        self.hold, self.share_among, self.carried = self._held, self._shared_among, self._carried
        if publisher.writes:
            self.publish, self.snapshot = self._published, self._pinned_whole

    def _give_up(self, why: str) -> None:
        """Nobody takes over from here on, not even what is being done."""
        self.lost = why
        self._log.give_up()

    # Effects

    def fold(self, fold: Fold) -> None:
        index = self._through(self._fold, fold)
        if index is not None:
            for worker in self._gather.stepping(fold):
                self._step.step_as(worker)
            self._publisher.made(index)

    def _fold(self, fold: Fold) -> None:
        if self.lost:
            super().fold(fold)
            return
        self._check_slots()
        step, master, versions = self._step, self._master, self._publisher.versions
        workers = self._gather.stepping(fold)
        if master is not None:
            master.other = self._other[id(master.weights)]
        changed = step.arenas(workers)
        kept = (*self._beside, *(self._gather.arenas if fold.held else ()))
        undoes = self._undo is not None and self._can_undo(fold, workers)
        stays = not undoes or self._weights_stay
        versions.lasting, self._publisher.in_place = versions.current if stays else None, self._in_place and not stays
        self._keep(kept if undoes else (*changed, *kept))
        if undoes:
            self._alike.difference_update(map(id, changed))
            self._undo_by(self._undo)
        super().fold(fold)
        versions.lasting = None
        if undoes:
            self._undo_by(None)
        self._swapped ^= master is not None

    def _can_undo(self, fold: Fold, workers: Sequence[int]) -> bool:
        self._step.step_as(workers[0])
        return (
            len(workers) == 1 and self._after is None and self._step.can_undo(workers[0], self._gather.absent_in(fold))
        )

    def _undo_by(self, undo: Undo | None) -> None:
        """The passes that come are kept there, as this effect's."""
        self._parts["optimizer"].undo_by(undo)
        if undo is not None:
            undo.begin(self._done)

    def _held(self, worker: int, weight: float) -> None:
        self._through(self._hold_now, worker, weight)

    def _hold_now(self, worker: int, weight: float) -> None:
        self._check_slots()
        self._keep(self._gather.arenas)
        self._gather.hold(worker, weight)

    def forget(self, worker: int) -> None:
        self._publisher.forget(worker)
        if self._step.remembers:
            self._through(self._forget, worker)

    def _forget(self, worker: int) -> None:
        self._keep(self._step.arenas((worker,)))
        self._step.forget(worker)

    def _shared_among(self, workers: int) -> None:
        if self._through(self._step.share_among, workers) is not None:
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

    def _through(self, do: Callable[..., None], *about: Any) -> int | None:
        """Have an effect done, unless the log has it: then the current buffer after it."""
        self._done += 1
        if not self._log.recovering or self._is_new:
            if self._latest is not None:
                self._catch_up()
            do(*about)
            self._log.once(self._numbers)
            return None
        current, *numbers = self._log.once(list[Any])
        self._latest = numbers
        self._gather.take(numbers[1])
        self._next = ()  # as this process knew it; what is alike, too
        self._alike.clear()
        return int(current)

    @property
    def _is_new(self) -> bool:
        """Whether its memory is younger than the spare: what a dead process laid out is gone with it."""
        return self._generation == self._log.generation

    def _check_slots(self) -> None:
        """What lay in them when the dead process did this may be gone."""
        assert not self._log.recovering, "nothing is folded between a switch and the spare that knows of it"

    def _numbers(self) -> list[Any]:
        """All that an effect changes beside tensors."""
        correction = self._correction
        return [
            self._publisher.versions.current,
            self._swapped,
            self._gather.numbers() if self._holds else None,
            self._step.numbers(),
            correction.kept().numbers if correction is not None else None,
        ]

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
        if self._latest is None:
            return
        swapped, _, of_step, of_correction = self._latest
        self._latest = None
        if self._master is not None and swapped != self._swapped:
            self._master.weights = self._other[id(self._master.weights)]
        self._swapped = swapped
        self._step.take(of_step)
        if self._correction is not None:
            self._correction.restore(of_correction)

    def kept(self) -> Kept:
        self._catch_up()
        return super().kept()

    def _carried(self) -> Carried:
        self._catch_up()
        return self._step.carried()


def _copying(one: Arena, other: Arena) -> Callable[[], object]:
    """Copies all of `one` into the `other`: of a small one in a call that runs no Python, for that is what costs there."""
    size = one.layout.nbytes
    if size > LARGE_BYTES:
        return partial(other.copy_from, one)
    return partial(operator.setitem, other.bytes, slice(size), one.bytes[:size])
