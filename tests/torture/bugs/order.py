"""Bugs of order and of data: who goes on when, what is folded, and what becomes of leased batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from plesio.core.events import Cancel, Fold, Pushed
from plesio.core.folds import Folds, Pending
from plesio.core.leases import Batch, DataLeases, LeasesState
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.strategy import Strategy
from torture.bugs.planting import bug
from torture.server import Server
from torture.sessions.session import WorkerSession

# Order


@bug("the clock bound is off by one")
class _OffByOne(Sequencer):
    def _release_by_clock(self) -> None:
        for seat in self.members.seats.values():
            if seat.waiting is not None and self._release.may_go(seat.clock - 1, self.members.slowest):
                self._grant(seat)


@bug("a wake-up is lost")
class _WakesOnlyTheSender(Sequencer):
    def _release_by_clock(self) -> None:
        seat = self.members.seats.get(self._sender)
        if seat is not None and seat.waiting is not None and self._release.may_go(seat.clock, self.members.slowest):
            self._grant(seat)


@bug("a round waits for the dead")
class _CountsTheDead(Sequencer):
    def _reachable(self) -> int | None:
        return self.workers if self._after_fold else super()._reachable()


@bug("the last few are never folded")
class _WaitsForMore(Sequencer):
    def _reachable(self) -> int | None:
        return super()._reachable() if self._after_fold else None


@bug("what was begun before the answer counts as begun after it")
class _TakesAllAsNew(Sequencer):
    def _pushed(self, event: Pushed) -> None:
        super()._pushed(replace(event, adopted_at=0))


@bug("staleness is counted from the current version")
class _AlwaysFresh(Sequencer):
    class _Folds(Folds):
        def of(self, version: int, counting: list[Pending], missing: float = 0.0) -> Fold:
            fold = super().of(version, counting, missing)
            fresh = [replace(one, staleness=0) for one in fold.members]
            return replace(fold, members=tuple(fresh))

    def __init__(self, strategy: Strategy, workers: int, *arguments: Any, **settings: Any) -> None:
        super().__init__(strategy, workers, *arguments, **settings)
        self._folds = self._Folds(strategy, workers, self._holds)


@bug("what came is dropped when its worker leaves")
class _DropsPending(Sequencer):
    def _left(self, worker: int, incarnation: int, finished: bool = False) -> None:
        self._pending = [one for one in self._pending if one.event.worker != worker]
        super()._left(worker, incarnation, finished)


@bug("who is called off goes on from the old version")
class _StaysBehind(WorkerSession):
    def _called_off(self, cancel: Cancel) -> Any:
        version = self.version
        effect = super()._called_off(cancel)
        self.version = version
        return effect


@bug("what is not finite is folded")
class _TakesAnything(Sequencer):
    def _pushed(self, event: Pushed) -> None:
        super()._pushed(replace(event, finite=True))


@bug("incarnations share a slot")
class _SharesSlots(Server):
    class _ByWorker(dict[tuple[int, int], int]):
        def __setitem__(self, key: tuple[int, int], payload: int) -> None:
            super().__setitem__((key[0], 0), payload)

        def __getitem__(self, key: tuple[int, int]) -> int:
            return super().__getitem__((key[0], 0))

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._slots = self._ByWorker()


# Data


class _Keeps(DataLeases):
    def left(self, worker: int) -> None:
        self._gone.add(worker)
        self._outstanding[worker].clear()


@bug("the data of the dead is not given back")
class _WithoutGivingBack(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.leases.__class__ = _Keeps


@bug("data of a step called off is not given back")
class _KeepsAbandoned(WorkerSession):
    def abandon(self, batches: int) -> None:
        pass


@bug("data that came and is not folded is missing from the checkpoint")
class _ForgetsPending(Sequencer):
    def state(self) -> SequencerState:
        return replace(super().state(), leases=self.leases.state(()))


class _ForgetsLeased(DataLeases):
    def state(self, unfolded: Iterable[Batch]) -> LeasesState:
        held, self._outstanding = self._outstanding, {worker: type(one)() for worker, one in self._outstanding.items()}
        state = super().state(unfolded)
        self._outstanding = held
        return state


@bug("leased data is missing from the checkpoint")
class _WithoutLeased(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.leases.__class__ = _ForgetsLeased
