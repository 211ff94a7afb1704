"""A fold: whose contributions, their shares of the mean, and its scale."""

from __future__ import annotations

import msgspec

from plesio.core.events import Fold, Member, Pushed
from plesio.core.leases import Batch
from plesio.strategy import Strategy


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A contribution on its way into a fold; `counts` is False for one that came but was not finite."""

    event: Pushed
    computed_from: int
    weight: float
    batches: tuple[Batch, ...]
    counts: bool
    came_s: float


class Folds:
    """Makes folds as `strategy` weighs them, in a run of `workers`; `held`: each is in the buffer when its fold is made."""

    def __init__(self, strategy: Strategy, workers: int, held: bool) -> None:
        self._normalised = strategy.weigh.normalised
        self._scale = strategy.outer.scale
        self.share_among(workers)
        self._held = held

    def share_among(self, workers: int) -> None:
        """The run has so many workers from now on."""
        self._workers = workers
        self._scale_of_one = self._scale(1, workers)

    def of(self, version: int, counting: list[Pending], missing: float = 0.0) -> Fold:
        """Members are in seat order where they lie waiting, so that a round's sum does not depend on who came first. They move by
        their part of the weight of all that are there, of whom others weigh `missing`."""
        count = len(counting)
        if count == 1:
            total = counting[0].weight
            members: tuple[Member, ...] = (self._member(version, counting[0], 1.0),)
            scale = self._scale_of_one
        else:
            if not self._held:
                counting = sorted(counting, key=lambda one: one.event.worker)
            total = sum([one.weight for one in counting])
            members = tuple([self._member(version, one, one.weight / total) for one in counting])
            scale = self._scale(count, self._workers)
        if not self._normalised:
            scale *= total / count
        if missing:
            scale *= total / (total + missing)
        return Fold(version, members, scale, total if self._held else None)

    def _member(self, version: int, one: Pending, share: float) -> Member:
        event, staleness = one.event, version - 1 - one.computed_from
        return Member(event.worker, event.incarnation, event.number, staleness, share, event.steps, event.samples)
