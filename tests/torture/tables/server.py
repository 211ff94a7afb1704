"""The server of the simulation, of a run with table servers: it crashes when one of them does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from plesio.core.events import Effect, Fold, FoldRows, Hold, Joined, Pushed
from plesio.launch.local.table_links import TableLink
from plesio.memory.row_servers import RowServers
from plesio.protocol.rows import RowsRequest
from plesio.transport.channel import ChannelClosedError
from plesio.transport.row_slots import RowSlots
from torture.model import Image
from torture.plan import MOST_SERVERS, SILENCE_S
from torture.process import Clock
from torture.server import IMAGES, Crash, Server
from torture.sessions.envelopes import FromWorker, Request
from torture.sessions.service import ServiceState
from torture.tables.desk import SPEC

if TYPE_CHECKING:
    from torture.world import World


def payloads_of(server: Server, effect: Effect) -> list[int]:
    """The contributions whose rows an effect is about."""
    if isinstance(effect, Fold):
        return server._buffer if effect.held else [server._slots[one.worker, one.incarnation] for one in effect.members]
    if isinstance(effect, (FoldRows, Hold)):
        assert isinstance(server._event, Pushed)
        return [server._slots[effect.worker, server._event.incarnation]]
    return []


class TurnsAway(Server):
    """Nobody takes a seat while what the one before left in its slot waits for its fold."""

    _turned_away_s = -SILENCE_S

    def turns_away(self, letter: FromWorker) -> bool:
        """Whether this is not heard."""
        joins = isinstance(letter, Request) and isinstance(letter.event, Joined)
        worker = letter.event.worker if isinstance(letter, Request) else letter.worker
        if joined := joins and self.sequencer.holds_slot_of(worker):
            self._turned_away_s = self.agenda.now_s
        return joined

    def waits_for_nobody(self) -> bool:
        """A known limit: a worker waits for its seat, its slot for a round, and the round for members that hang. Nobody evicts
        them, for no member waits."""
        turned_away = self.agenda.now_s - self._turned_away_s < SILENCE_S
        return turned_away and self.sequencer.members.waiting == 0


class RowServer(TurnsAway):
    """One life of the head and its table servers, of which another life has another number."""

    def __init__(self, world: World, epoch: int, clock: Clock) -> None:
        assert world.rows is not None
        self._rows = rows = world.rows
        super().__init__(world, epoch, clock)
        plan, content = world.plan, world.disk.load()
        servers = plan.servers if epoch == 1 else world.rng.randint(1, MOST_SERVERS)
        readers = plan.workers + 1
        self.slots = rows.slots[epoch] = [RowSlots.create([SPEC], readers) for _ in range(servers)]
        self.actors = [world.parts.table_server(world) for _ in self.slots]
        links = [TableLink(actor, 1.0) for actor in self.actors]  # type: ignore[arg-type]
        for server, (slots, link) in enumerate(zip(self.slots, links, strict=True)):
            link.begin(slots, plan.strategy.rows.at_once, server, servers, [rows.bell] * readers)
        self.rows = RowServers(self.slots, links, answers=False)
        image = IMAGES.decode(content) if content else None
        rows.judge.begin(image.rows if image else ())
        if image is not None:
            folder, clock_then = image.rows
            self.rows.restore(Path(folder), sorted(os.listdir(folder)), clock_then)
        world.tell(f"{servers} table servers")

    # What comes

    def hear(self, letter: FromWorker, payload: int) -> None:
        if not self.turns_away(letter):
            super().hear(letter, payload)

    @property
    def listens(self) -> bool:
        """Whether what comes is read."""
        return not self.down

    def hear_rows(self, worker: int, incarnation: int, request: RowsRequest) -> None:
        """A member wants rows."""
        self.oracle.now_s = self.agenda.now_s
        self._rows.judge.wanted(worker, request)
        try:
            self.program.supplies[type(request)](worker, incarnation, request, self.now_s())
            self.oracle.settled(self.sequencer)
        except Crash:
            self._crash()

    # What is done

    def _carry_out(self, effect: Effect) -> None:
        self._rows.judge.carried(effect, payloads_of(self, effect))
        super()._carry_out(effect)

    def do(self, effect: Effect) -> None:
        assert self.rows is not None
        self.rows.do(effect)
        super().do(effect)

    def joins(self, worker: int) -> None:
        """Another process sits there."""
        assert self.rows is not None
        self._rows.judge.forget(worker)
        self.rows.forget(worker)

    # Checkpoints and crashes

    def _begin_checkpoint(self, _: object, __: object) -> None:
        try:
            super()._begin_checkpoint(None, None)
        except ChannelClosedError:
            self._crash()

    def _image(self, state: ServiceState) -> Image:
        assert self.rows is not None
        folder = self._rows.new_folder()
        self.rows.write(folder, 0, -1)
        self._rows.judge.kept(str(folder))
        return msgspec.structs.replace(super()._image(state), rows=(str(folder), self.rows.clock))

    def lose_one(self) -> None:
        """A table server dies, and the run ends when that is heard of."""
        actor = self.world.rng.choice(self.actors)
        actor.alive = False
        self.world.tally["table server crashes"] += 1
        self.world.tell(f"table server {self.actors.index(actor)} DIES")
        self.agenda.at(self.agenda.now_s + 0.05 * self.world.random(), self._heard)

    def _heard(self, _: object, __: object) -> None:
        if not self.down:
            self._crash()

    def _crash(self) -> None:
        for actor in self.actors:
            actor.close()
        super()._crash()
