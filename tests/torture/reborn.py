"""The server of the simulation whose process may die alone: its spare goes on from the log, in memory that outlives it.

        turn ... once, once, once            x dies, at any boundary
    ----+----------------------------------->|
        |                                       letters wait in the pipe
        |                                    |
        +-- the spare: a copy ... asleep ....+-- wakes: the log's turns again, then what lies in the pipe

| outlives the process                 | dies with it, and is the spare's from then on                      |
| ------------------------------------ | ------------------------------------------------------------------ |
| `Survivor`: parameters and buffer    | program, sequencer, sessions, what it knows of slots (`FORKED`)     |
| the log (the real one), the pipe     | the log's own place in it; memory that it laid out itself (`MEMORY`) |

A deep copy stands for the fork. At a switch to another phase the memory is laid out anew. `Witness` sees to it that the reborn
server does what the dead one did, and shows the oracle only what comes after: to it there was one server.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from plesio.core.events import Effect, Event, Fold, Joined, Switch
from plesio.protocol.rows import RowsRequest
from plesio.system.recovery_log import _FREE, RecoveryLog
from torture.model import Model, ModelState
from torture.oracle import Oracle, PromiseBroken
from torture.plan import DEATHS_WITHIN_S
from torture.process import Clock
from torture.server import NEVER, TICK_S, Crash, Server
from torture.sessions.envelopes import Beat, FromServer, FromWorker, Request
from torture.sessions.service import ServiceState

if TYPE_CHECKING:
    from torture.world import World

LETTERS, TICK, CHECKPOINT = range(3)
"""What a turn is about."""
MEMORY = ("model", "_buffer", "survivor", "_laid_out_for")
"""What lies in memory that a fork shares."""
FORKED = (
    "sequencer", "service", "program", "_actions", "_event", "_payload", "_slots", "log", "oracle", "_effects", *MEMORY
)  # fmt: skip
"""What a fork copies, of which the dead process' is lost; of the memory, where it lies."""
WAKES_S = 0.03
AGAIN = 0.2
"""How likely it dies once more while it recovers, or soon after."""
FORK_FAILS = 0.1
DIES_FORKING = 0.3
DEATHS_MOST = 3
SPARES_KEPT = 4
NOWHERE = (0, 0)
"""Between turns."""


class HungUp(msgspec.Struct, frozen=True, tag=True):
    """The end of what a process says."""

    worker: int
    incarnation: int


class SwitchTo(msgspec.Struct, frozen=True, tag=True):
    """What the launcher says: the run is to go over to that phase."""

    phase: int


class WantsRows(msgspec.Struct, frozen=True, tag=True):
    """A member asks for rows of a table."""

    worker: int
    incarnation: int
    request: RowsRequest


MAIL = msgspec.json.Decoder(tuple[Request | Beat | HungUp | SwitchTo | WantsRows, int])


class Forked:
    """Its own state is copied by a fork; what it refers to is shared."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Forked:
        return copy.copy(self)


class Words:
    """Words that outlive their process, which may die before and after each is stored."""

    def __init__(self, words: Any, boundary: Callable[[], None]) -> None:
        self._words = words
        self._boundary = boundary

    def __getitem__(self, which: int) -> int:
        word: int = self._words[which]
        return word

    def __setitem__(self, which: int, word: int) -> None:
        self._boundary()
        self._words[which] = word
        self._boundary()


class Log(Forked, RecoveryLog):
    """The real log, whose process may die at any word it stores."""

    def __init__(self, half_bytes: int, boundary: Callable[[], None]) -> None:
        super().__init__(half_bytes)
        self._words: Any = Words(self._words, boundary)


class Survivor:
    """Memory that outlives its process: what an effect changes lies twice, and `under_way` says which effect changes it.

    An effect counts when it is in the log. One that is under way and not in the log is undone, and done again.
    """

    def __init__(self, model: Model, buffer: list[int], boundary: Callable[[], None]) -> None:
        self._model = model
        self._buffer = buffer
        self._boundary = boundary
        self._backup: tuple[ModelState, list[int]]
        self.under_way = 0

    def do(self, number: int, change: Callable[[], None]) -> None:
        """Effect `number` changes what is in here; its process may die at any moment."""
        if self.under_way == number:
            self._undo()
        else:
            self._begin(number)
        self._boundary()
        change()
        self._boundary()

    def _begin(self, number: int) -> None:
        self._backup = self._model.state(), self._buffer[:]
        self._boundary()
        self.under_way = number

    def _undo(self) -> None:
        model, self._buffer[:] = self._backup
        self._boundary()
        self._model.go_back(model)


class Witness(Forked):
    """Stands between a server and the oracle, and shows it everything once: what a reborn server does again must be the same."""

    AGAIN = frozenset({"taken", "letter_came", "fell_silent", "event", "effect", "settled", "told"})

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._at = 0
        self._seen: list[tuple[object, ...]] = []
        self.in_the_pipe: deque[object] = deque()
        self.told_now: list[FromServer] = []

    def __getattr__(self, name: str) -> Any:
        return partial(self._see, name) if name in self.AGAIN else getattr(vars(self).get("_oracle"), name)

    def _see(self, call: str, *arguments: Any) -> None:
        what = call, *(tuple(one) if isinstance(one, list) else one for one in arguments if call != "settled")
        self._at += 1
        if self._at <= len(self._seen):
            if self._seen[self._at - 1] != what:
                self._broken("a reborn server does as the dead one did", self._seen[self._at - 1], what)
            return
        self._seen.append(what)
        if call == "taken":
            self._taken(arguments[0])
            return
        if call == "told":
            self.went_out()
            self.told_now.append(arguments[0])
        getattr(self._oracle, call)(*arguments)

    def _taken(self, what: object) -> None:
        came = self.in_the_pipe.popleft() if self.in_the_pipe else "nothing"
        if came != what:
            self._broken("what came is heard once, in order", came, what)

    def read_all(self) -> None:
        """The pipe is empty."""
        if self.in_the_pipe:
            self._broken("what came is heard once, in order", self.in_the_pipe, "nothing")

    def went_out(self) -> None:
        """Whatever is told was sent."""
        if self.told_now:
            self._broken("what is decided is told", self.told_now, "nothing")

    def _broken(self, promise: str, then: object, now: object) -> None:
        raise PromiseBroken(f"{promise}: then {then}, now {now}")


class Reborn(Server):
    """One life of a server, of several processes, each the spare of the one before."""

    forked = FORKED

    def __init__(self, world: World, epoch: int, clock: Clock) -> None:
        self._turn_s: float | None = None
        self._asleep = False
        self._effects = 0
        self._dies_at = NEVER
        self._deaths: list[tuple[float, tuple[int, int]]] = []
        self._inbox, self._pipe = os.pipe()
        super().__init__(world, epoch, clock)
        rng, parts = world.rng, world.parts
        self.survivor = parts.survivor(self.model, self._buffer, self._boundary)
        self._laid_out_for = self.program.strategy
        self.log = parts.log(_FREE + (1 << rng.randint(10, 14)), self._boundary)
        self.oracle: Any = Witness(world.oracle)
        self._spares: list[dict[str, Any]] = []
        self._wants_spare = True

    def now_s(self) -> float:
        """The time of the turn, whoever goes on with it."""
        return super().now_s() if self._turn_s is None else self._turn_s

    # What comes

    def hear(self, letter: FromWorker, payload: int) -> None:
        """It lies in the pipe, and is read unless the process is dead."""
        self._lay(letter, payload)

    def broken(self, worker: int, incarnation: int) -> None:
        """So does an end of file."""
        self._lay(HungUp(worker, incarnation), NEVER)

    def hear_rows(self, worker: int, incarnation: int, request: RowsRequest) -> None:
        """So does a request for rows."""
        self._lay(WantsRows(worker, incarnation, request), NEVER)

    @property
    def listens(self) -> bool:
        """Whether what comes is read, by this process or the next one."""
        return not self.down or self._asleep

    def switch(self, phase: int) -> None:
        """So does what the launcher says."""
        self._lay(SwitchTo(phase), NEVER)

    def _lay(self, what: FromWorker | HungUp | SwitchTo | WantsRows, payload: int) -> None:
        if self.listens:
            self.oracle.in_the_pipe.append(what)
            os.write(self._pipe, msgspec.json.encode((what, payload)) + b"\n")
            self._guarded(self._turn, LETTERS)

    def _tick(self, _: object, __: object) -> None:
        self._at_times(TICK, TICK_S, self._tick)

    def _begin_checkpoint(self, _: object, __: object) -> None:
        self._at_times(CHECKPOINT, self.world.plan.checkpoint_s, self._begin_checkpoint)

    def _at_times(self, source: int, each_s: float, again: Callable[[Any, Any], None]) -> None:
        self._guarded(self._turn, source)
        if self.listens:
            self.agenda.at(self.agenda.now_s + each_s, again)

    def _turn(self, source: int) -> None:
        now_s = super().now_s()
        self.log.turn(source, now_s)
        self._deal(source, now_s)
        if self.log.rest() or self._wants_spare:
            self._new_spare()

    def _deal(self, source: int, now_s: float) -> None:
        self._turn_s = now_s
        (self._read, self._look, self._keep)[source]()
        self._turn_s = None

    def _read(self) -> None:
        for what, payload in MAIL.decode_lines(self.log.read(self._inbox)):
            self.oracle.taken(what)
            if isinstance(what, HungUp):
                self._hang_up(what.worker, what.incarnation)
            elif isinstance(what, SwitchTo):
                self._ask_for(what.phase)
            elif isinstance(what, WantsRows):
                self._give_rows(what)
            else:
                self._take_in(what, payload)

    def _give_rows(self, wants: WantsRows) -> None:
        self.program.supplies[type(wants.request)](wants.worker, wants.incarnation, wants.request, self.now_s())
        self.oracle.settled(self.sequencer)

    # What is done through the log

    def do(self, effect: Effect) -> None:
        super().do(effect)
        if isinstance(effect, Switch):
            self._lay_out(effect.phase)

    def _lay_out(self, phase: int) -> None:
        """What lay in memory goes on in memory of this process's own, for this phase. Whoever takes over does it again."""
        self.model, self._buffer = Model.restore(self.model.state()), []
        self._boundary()
        self.survivor = self.world.parts.survivor(self.model, self._buffer, self._boundary)
        self._laid_out_for = self.sequencer.switching.whole.phases[phase]
        self.world.oracle.model = self.model

    def _hold(self, payload: int) -> None:
        self._change(partial(super()._hold, payload))

    def _fold(self, fold: Fold, slots: list[int]) -> None:
        self._change(partial(super()._fold, fold, slots))

    def _change(self, change: Callable[[], None]) -> None:
        self._effects += 1
        if self._laid_out_for != self.program.strategy:
            raise PromiseBroken(
                f"memory is of the phase that holds: {self.program.strategy.name}, not {self._laid_out_for.name}"
            )
        self.log.once(partial(self.survivor.do, self._effects, change))

    def _added(self) -> None:
        self._boundary()

    def _send(self, letter: FromServer) -> None:
        self.log.once(partial(self._send_now, letter))

    def _send_now(self, letter: FromServer) -> None:
        super()._send(letter)
        self.oracle.told_now.clear()

    def _keep(self) -> None:
        """Write a checkpoint; nobody is heard meanwhile."""
        if not self._may_keep():
            return
        number, state = self.service.begin_checkpoint()
        self.log.once(partial(self._write_all, state))
        self.service.written(number, state)
        self._post()

    def _write_all(self, state: ServiceState) -> None:
        image, disk = self._image(state), self.world.disk
        content = msgspec.msgpack.encode(image)
        self.oracle.checkpoint_begun(content, image)
        for step in disk.STEPS:
            self._boundary()
            getattr(disk, step)(content)
            self.oracle.disk_changed(disk)

    # Death

    def _boundary(self) -> None:
        super()._boundary()
        if self.boundaries == self._dies_at:
            raise Crash

    def end_at(self, boundary: int) -> None:
        """Let the process die there; its memory stays."""
        self._dies_at = boundary

    def _saw(self, event: Event, effects: list[Effect]) -> None:
        """A new spare is wanted, as if descriptors had come with who joins; and for memory that the old one does not know."""
        self._wants_spare |= type(event) is Joined or any(type(one) is Switch for one in effects)
        super()._saw(event, effects)

    def _crash(self) -> None:
        self._asleep = self.boundaries == self._dies_at and self._may_go_on()
        if not self._asleep:
            super()._crash()
            self.close()
            return
        self.down = True
        self.world.tell("server DIES")
        self.agenda.at(self.agenda.now_s + WAKES_S * self.world.random(), self._wake)

    def _may_go_on(self) -> bool:
        """Not without a spare, if the same turn has killed two, nor after several deaths in a short time."""
        spare, now_s = self._spare(), self.agenda.now_s
        self._deaths = [one for one in self._deaths if now_s - one[0] < DEATHS_WITHIN_S]
        place = spare["log"].place if spare else NOWHERE
        again = place != NOWHERE and any(place == one for _, one in self._deaths)
        self._deaths.append((now_s, place))
        goes_on = spare is not None and not again and len(self._deaths) < DEATHS_MOST
        self.world.tally["server deaths" if goes_on else "servers given up"] += 1
        return goes_on

    def _spare(self) -> dict[str, Any] | None:
        """Who takes over. Others may still be asleep: of a process that died before its spare counted."""
        spares = [one for one in self._spares if one["log"].is_mine]
        if len(spares) > 1:
            raise PromiseBroken(f"one takes over: {len(spares)} do")
        return spares[0] if spares else None

    def _wake(self, _: object, __: object) -> None:
        """The spare goes on where the dead process came to."""
        spare = self._spare()
        assert spare is not None
        vars(self).update(self._copy(spare))
        self.world.oracle.model = self.model
        self.down = self._asleep = False
        if self.world.random() < AGAIN:
            self.end_at(self.boundaries + self.world.rng.randint(1, 100))
        try:
            self._recover()
        except Crash:
            self._crash()

    def _recover(self) -> None:
        self.log.recover()
        while (turn := self.log.next_turn()) is not None:
            self._deal(*turn)
        self.log.rest()
        self.oracle.went_out()
        self.world.tell(f"server is REBORN at version {self.sequencer.version}")
        self._new_spare()
        if self.oracle.in_the_pipe:
            self.world.oracle.now_s = self.agenda.now_s
            self._turn(LETTERS)
        self.oracle.read_all()

    def _new_spare(self) -> None:
        """Fork one. Until it counts the one before takes over; if it fails, none does.

        A death that is due soon may well strike here, for forks are few.
        """
        if self.boundaries < self._dies_at and self.world.random() < DIES_FORKING:
            self.end_at(self.boundaries + self.world.rng.randint(1, 6))
        self.log.begin()
        if self.world.random() < FORK_FAILS:
            self.log.give_up()
            return
        self._wants_spare = False
        self._spares = [*self._spares[1 - SPARES_KEPT :], self._copy(vars(self))]
        self.log.counts()

    def _copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """What a fork gives of it."""
        shared = (self, self.world, self.world.plan.strategy, *(state[name] for name in MEMORY))
        return copy.deepcopy({name: state[name] for name in self.forked}, {id(one): one for one in shared})

    def close(self) -> None:
        """Give back the pipe, once."""
        for descriptor in (self._inbox, self._pipe):
            if descriptor >= 0:
                os.close(descriptor)
        self._inbox = self._pipe = NEVER
