"""Folds that can be gone on from when the process that made them dies (`plesio.host.recovery_log`).

Tensors lie in memory that outlives it. An effect that changes them in place is entered in the log when it is done, with the
numbers beside the tensors. Whoever takes over takes the numbers of each effect from there, and moves no tensor. What may have
been under way at the end lies twice. A word in that memory says which effect was begun last.

| died                              | begun | in the log | whoever takes over                                      |
| --------------------------------- | ----- | ---------- | ------------------------------------------------------- |
| while the second copy was made    | n     | n          | copies again, and has effect n + 1 done                 |
| while effect n + 1 changed tensors | n + 1 | n          | copies back what it changes, and has it done            |
| after it was in the log           | n + 1 | n + 1      | goes on                                                 |

The second copy is made when nobody has anything to say (`settle`), or when the next effect is about to change the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from plesio.tensors.arena import ALL_PARTS, PAGE, Arena, Kind
from plesio.tensors.carrying import Kept
from plesio.tensors.corrections import Correction

MOVING = (Kind.TRAINED, Kind.BUFFER)


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
        self._new_arena = new_arena
        self._block = SharedBlock.create(PAGE, "the word that says which fold was begun")
        self._begun = self._block.memory.numpy().data.cast("Q")
        self._done = 0  # effects that are in the log
        self._latest: Sequence[Any] | None = None  # numbers that were taken from the log, and not yet gone on from
        self._copies: dict[int, Arena] = {}
        self._stale: dict[int, Arena] = {}  # what changed since it was copied
        publisher.in_place = False
        gather.survive(new_arena)
        if (optimizer := parts["optimizer"]) is not None:
            optimizer.make_room(keys)
        for arena in self._changed_by(range(gather.seats), held=True):
            self._copies[id(arena)] = self._stale[id(arena)] = Arena(arena.layout, new_arena("second copy").memory)
            self._stale[id(arena)] = arena
        self.hold, self._hold = self._held, gather.hold
        self.share_among, self._share_among = self._shared_among, step.share_among
        self.carried = partial(self._caught_up, step.carried)
        if publisher.writes:
            self.publish, self.snapshot = self._published, self._pinned_whole

    # Effects

    def fold(self, fold: Fold) -> None:
        workers = [member.worker for member in fold.members]
        index = self._through(partial(super().fold, fold), self._changed_by(workers, fold.held))
        if index is not None:
            for worker in self._gather.stepping(fold):
                self._step.step_as(worker)
            self._publisher.made(index)

    def _held(self, worker: int, weight: float) -> None:
        self._through(partial(self._hold, worker, weight), self._gather.arenas)

    def forget(self, worker: int) -> None:
        self._publisher.forget(worker)
        if changed := self._step.arenas((worker,)):
            self._through(partial(self._step.forget, worker), changed)

    def _shared_among(self, workers: int) -> None:
        if self._through(partial(self._share_among, workers), ()) is not None:
            self._share_among(workers)

    def _published(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        publisher = self._publisher
        return self._shown(
            partial(publisher.publish, reader, unasked, part), partial(publisher.published, reader, part=part)
        )

    def _pinned_whole(self, reader: int) -> int:
        return self._shown(partial(self._publisher.whole, reader), partial(self._publisher.pinned_whole, reader))

    def _shown(self, show: Callable[[], int], shown: Callable[[int], None]) -> int:
        """Write into a buffer that nobody reads, which may be done again: its index."""
        recovering = self._log.recovering
        index: int = self._log.once(partial(self._caught_up, show))
        if recovering:
            shown(index)
        return index

    def _through(self, do: Callable[[], None], changed: Sequence[Arena]) -> int | None:
        """Have an effect done that changes these; the current buffer, if that is known from the log."""
        recovering = self._log.recovering
        index, *numbers = self._log.once(partial(self._do, do, changed))
        self._done += 1
        self._stale.update((id(arena), arena) for arena in changed)
        if not recovering:
            return None
        self._latest = numbers
        self._gather.take(numbers[0])
        return int(index)

    def _do(self, do: Callable[[], None], changed: Sequence[Arena]) -> list[Any]:
        if self._begun[0] > self._done:  # by a process that died
            for arena in changed:
                arena.copy_from(self._copy_of(arena), *MOVING)
                self._stale.pop(id(arena), None)
        for arena in changed:
            if id(arena) in self._stale:
                self._settle(arena)
        self._begun[0] = self._done + 1
        self._caught_up(do)
        gather, step, correction = self._gather, self._step, self._correction
        numbers = gather.numbers(), step.numbers(), correction.kept().numbers if correction is not None else None
        return [self._publisher.versions.current, *numbers]

    def _changed_by(self, workers: Iterable[int], held: bool) -> list[Arena]:
        """What a fold of contributions of these changes in place."""
        publisher = self._publisher
        changed = [*self._step.arenas(workers), *(self._gather.arenas if held else ())]
        if self._correction is not None:
            changed += self._correction.arenas
        if self._master is not None:
            changed.append(self._master.weights)
        if publisher.writes:
            changed.append(publisher.versions.buffers[publisher.versions.current])
        return changed

    # The second copy

    def settle(self) -> bool:
        """Copy some of what has changed, while there is time; whether there is more."""
        for arena in list(self._stale.values())[:1]:
            self._settle(arena)
        return bool(self._stale)

    def _settle(self, arena: Arena) -> None:
        self._copy_of(arena).copy_from(arena, *MOVING)
        del self._stale[id(arena)]

    def _copy_of(self, arena: Arena) -> Arena:
        return self._copies[id(arena)]

    # The numbers

    def _caught_up(self, do: Callable[[], Any]) -> Any:
        """Do this with the numbers as the log has them."""
        if self._latest is not None:
            _, of_step, of_correction = self._latest
            self._latest = None
            self._step.take(of_step)
            if self._correction is not None:
                self._correction.restore(of_correction)
        return do()

    def kept(self) -> Kept:
        kept: Kept = self._caught_up(super().kept)
        return kept
