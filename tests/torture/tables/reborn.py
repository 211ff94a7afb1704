"""The server of the simulation that holds the rows of a table itself, and is reborn with them, by the real `SurvivingRows`.

It may die at any word that says which rows step, and when half of them have stepped. Requests for rows lie in the pipe, like
letters. The judge is shown everything once, as the oracle is.
"""

from __future__ import annotations

import copy
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from plesio.core.events import Effect, Fold, Serve
from plesio.memory.row_servers import RowServers
from plesio.memory.surviving_rows import SurvivingRows
from plesio.protocol.rows import RowsRequest
from plesio.tables.store import Folded, Store
from plesio.transport.row_slots import RowSlots
from torture.model import Image
from torture.oracle import PromiseBroken
from torture.process import Clock
from torture.reborn import FORKED, Forked, Reborn, WantsRows, Words
from torture.server import IMAGES
from torture.sessions.envelopes import FromWorker
from torture.sessions.service import ServiceState
from torture.tables.desk import SPEC
from torture.tables.server import TurnsAway, payloads_of

if TYPE_CHECKING:
    from torture.world import World


class Shown(Forked):
    """What a server had the judge see, which a reborn one does again."""

    def __init__(self) -> None:
        self._at = 0
        self._seen: list[object] = []

    def is_new(self, what: object) -> bool:
        """Whether it happens for the first time."""
        self._at += 1
        if self._at > len(self._seen):
            self._seen.append(what)
            return True
        if self._seen[self._at - 1] != what:
            raise PromiseBroken(
                f"a reborn server does with rows as the dead one did: {self._seen[self._at - 1]}, {what}"
            )
        return False


class TornStore(Store):
    """Its process may die in a fold."""

    server: RebornRows

    def fold(self, keys: Any, places: Any, gradients: Any, touched: Any, *about: Any) -> Folded:
        if self.server.dies_next:
            half = touched.copy()
            half[len(keys) // 2 :] = 0
            super().fold(keys, places, gradients, half, *about)
        self.server.boundary()
        return super().fold(keys, places, gradients, touched, *about)


class Rows(SurvivingRows):
    """Its deep copy is what a fork has: rows, slots and words are shared."""

    def __init__(self, server: RebornRows, slots: RowSlots, at_once: bool) -> None:
        super().__init__(server.log, slots, at_once)
        self._begun: Any = Words(self._begun, server.boundary)
        for store in self.stores:
            store.__class__ = TornStore
            store.server = server  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        twin = copy.copy(self)
        twin._log = copy.deepcopy(self._log, memo)
        twin.stores = [copy.copy(store) for store in self.stores]
        twin.counted = [*self.counted]
        twin._asked = [{**one} for one in self._asked]
        twin._served = [{number: [*some] for number, some in one.items()} for one in self._served]
        twin.actions = twin._actions(Fold not in self.actions)
        return twin

    def request(self, serve: Serve) -> RowsRequest:
        """What is to be served."""
        return self._asked[serve.worker][serve.number]


class RebornRows(TurnsAway, Reborn):
    """One life of a server, of several processes, each the spare of the one before."""

    forked = (*FORKED, "held", "shown")
    held: Rows | None = None

    def __init__(self, world: World, epoch: int, clock: Clock) -> None:
        assert world.rows is not None
        super().__init__(world, epoch, clock)
        plan, content = world.plan, world.disk.load()
        self._judge, self.shown = world.rows.judge, Shown()
        self.slots = world.rows.slots[epoch] = [RowSlots.create([SPEC], plan.workers + 1)]
        self.held = world.parts.rows(self, self.slots[0], plan.strategy.rows.at_once)
        image = IMAGES.decode(content) if content else None
        self._judge.begin(image.rows if image else ())
        if image is not None:
            folder, clock_then = image.rows
            self._all.restore(Path(folder), sorted(os.listdir(folder)), clock_then)

    @property
    def _all(self) -> RowServers:
        assert self.held is not None
        return RowServers(self.slots, [self.held], answers=False)

    @property
    def rows(self) -> RowServers | None:  # type: ignore[override]
        """As the program has them."""
        return self._all if self.held is not None else None

    @property
    def dies_next(self) -> bool:
        """Whether it is to die at the next boundary."""
        return self.boundaries + 1 == self._dies_at

    def boundary(self) -> None:
        """It may die here."""
        self._boundary()

    # What comes

    def _take_in(self, letter: FromWorker, payload: int) -> None:
        if not self.turns_away(letter):
            super()._take_in(letter, payload)

    def _give_rows(self, wants: WantsRows) -> None:
        if self.sequencer.members.seat(wants.worker, wants.incarnation) is None:  # it has left since
            return
        if self.shown.is_new(wants):
            self._judge.wanted(wants.worker, wants.request)
        super()._give_rows(wants)

    # What is done

    def _carry_out(self, effect: Effect) -> None:
        if self.shown.is_new(effect):
            self._judge.carried(effect, payloads_of(self, effect))
        super()._carry_out(effect)

    def do(self, effect: Effect) -> None:
        assert self.held is not None
        request = self.held.request(effect) if isinstance(effect, Serve) else None
        self._all.do(effect)
        super().do(effect)
        if isinstance(effect, Serve):
            self.log.once(partial(self._ring, effect.worker, request))

    def _ring(self, worker: int, request: RowsRequest) -> None:
        """The rows are there."""
        assert self.world.rows is not None
        self.slots[0].note_served(worker, request)
        self.world.rows.served(worker)

    def joins(self, worker: int) -> None:
        """Another process sits there."""
        if self.shown.is_new(("handed on", worker)):
            self._judge.forget(worker)
        self._all.forget(worker)

    def _image(self, state: ServiceState) -> Image:
        assert self.world.rows is not None
        folder = self.world.rows.new_folder()
        self._all.write(folder, 0, -1)
        self._judge.kept(str(folder))
        return msgspec.structs.replace(super()._image(state), rows=(str(folder), self._all.clock))
