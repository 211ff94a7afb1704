"""The server of the simulation: the real program, sequencer and sessions around a one-hot model, on a disk that fails.

It may crash at any boundary: between any two effects it carries out, and between any two steps of writing a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from plesio.core.events import (
    Cancel,
    Discard,
    Effect,
    Event,
    Evict,
    Fold,
    Grant,
    Hold,
    Joined,
    Leased,
    Left,
    Pushed,
    Ticked,
)  # fmt: skip
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.memory.port import Memory
from plesio.observe.meter import Meter
from plesio.protocol.launcher import SwitchRequest
from plesio.protocol.worker import Aside, Contribution, LeaseReply, Supply
from plesio.server.interfaces import Replies
from plesio.server.program import Program
from plesio.transport.doorbell import Located
from torture.model import Image, Model
from torture.plan import PATIENCE_S, SILENCE_S
from torture.process import Clock
from torture.sessions.envelopes import FromServer, FromWorker
from torture.sessions.service import ServiceState

if TYPE_CHECKING:
    from torture.world import World

TICK_S = 0.1
DISK_STEP_S = 0.004
AGAIN_S = 0.01
"""When a checkpoint that has to wait is tried again."""
NEVER = -1
IMAGES = msgspec.msgpack.Decoder(Image)


class Crash(Exception):
    """The server's process ends here."""


class Watched:
    """A sequencer; `saw` is called with each event and the effects it had."""

    def __init__(self, sequencer: Sequencer, saw: Callable[[Event, list[Effect]], None]) -> None:
        self._sequencer = sequencer
        self._saw = saw

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_sequencer"), name)  # none yet: it is being copied

    def receive(self, event: Event, now_s: float) -> list[Effect]:
        """What the sequencer makes of it."""
        effects = self._sequencer.receive(event, now_s)
        self._saw(event, effects)
        return effects


class Server(Memory, Replies):
    """One life of the server, from its start to its crash: it drives the program, folds for it, and answers for it."""

    def __init__(self, world: World, epoch: int, clock: Clock) -> None:
        plan, parts = world.plan, world.parts
        self.world = world
        self.agenda = world.agenda
        self.oracle = world.oracle
        self.epoch = epoch
        self.clock = clock
        self.down = False
        self.boundaries = 0  # passed: the moments at which it could have crashed
        self.crashes_at = NEVER  # the boundary
        self._slots: dict[tuple[int, int], int] = {}  # of each worker's incarnation: what it sent last
        self._buffer: list[int] = []
        stealing = bool(plan.strategy.plan) or not plan.strategy.in_lock_step
        content = world.disk.load()
        image = IMAGES.decode(content) if content else None
        if image is None:
            leases = DataLeases(plan.workers, stealing)
            self.model = Model(plan.workers)
            self.sequencer = parts.sequencer(plan.strategy, plan.workers, leases, PATIENCE_S)
            self.service = parts.service(plan.workers, epoch, SILENCE_S, plan.level, now_s=self.now_s())
        else:
            self.model = Model.restore(image.model)
            self.sequencer = parts.sequencer.restore(
                plan.strategy, plan.workers, image.sequencer, stealing=stealing, silence_s=PATIENCE_S
            )
            self.service = parts.service(plan.workers, epoch, SILENCE_S, plan.level, image.service, now_s=self.now_s())
        watched: Any = Watched(self.sequencer, self._saw)
        self.program = Program(
            plan.strategy, watched, self, Meter(plan.workers, spans_max=0), tell=lambda message: None, memory=self
        )
        self._actions = self.program.actions
        self.program.actions = dict.fromkeys(self._actions, self._carry_out)
        self._event: Event = Ticked()  # what is dealt with
        self._payload = NEVER
        self.oracle.booted(self, image)
        self.agenda.at(self.agenda.now_s + TICK_S, self._tick)
        self.agenda.at(self.agenda.now_s + plan.checkpoint_s, self._begin_checkpoint)

    def now_s(self) -> float:
        """The time as the server measures it."""
        return self.agenda.now_s * self.clock.rate + self.clock.offset_s

    # What comes

    def hear(self, letter: FromWorker, payload: int) -> None:
        """A letter of a worker arrived, its contribution beside it."""
        self._guarded(self._take_in, letter, payload)

    def _take_in(self, letter: FromWorker, payload: int) -> None:
        self.oracle.letter_came(letter)
        events = self.service.receive(letter, self.now_s())
        if self.service.outbox:
            self._post()
        self._tell(events, payload)

    def broken(self, worker: int, incarnation: int) -> None:
        """The connection to a process ended with it."""
        self._guarded(self._hang_up, worker, incarnation)

    def _hang_up(self, worker: int, incarnation: int) -> None:
        self._tell(self.service.broken(worker, incarnation), NEVER)

    def switch(self, phase: int) -> None:
        """The run is to go over to that phase."""
        self._guarded(self._ask_for, phase)

    def _ask_for(self, phase: int) -> None:
        self._payload = NEVER
        self.program.orders[SwitchRequest](SwitchRequest(phase), self.now_s())
        self.oracle.settled(self.sequencer)

    def _tick(self, _: object, __: object) -> None:
        if self.down:
            return
        self._guarded(self._look)
        self.agenda.at(self.agenda.now_s + TICK_S, self._tick)

    def _look(self) -> None:
        silent = self.service.tick(self.now_s())
        for event in silent:
            assert isinstance(event, Left)
            self.oracle.fell_silent(event, self.world.is_well)
        self._tell((*silent, Ticked()), NEVER)

    def _guarded(self, deal: Callable[..., None], *with_what: Any) -> None:
        """Deal with what came, up to a crash."""
        if self.down:
            return
        self.world.oracle.now_s = self.agenda.now_s
        try:
            deal(*with_what)
        except Crash:
            self._crash()

    def waits_for_nobody(self) -> bool:
        """Whether workers wait for what no rule brings."""
        return False

    # What is to be done

    def _tell(self, events: Iterable[Event], payload: int) -> None:
        now_s = self.now_s()
        self._payload = payload
        for event in events:
            self._tell_program(event, now_s)
            self.oracle.settled(self.sequencer)

    def _tell_program(self, event: Event, now_s: float) -> None:
        program = self.program
        if isinstance(event, Pushed):
            self._slots[event.worker, event.incarnation] = self._payload
            made = Contribution(
                event.number,
                event.steps,
                event.samples,
                event.batches,
                event.finite,
                aside=Aside(event.adopted_at, rows=event.rows),
            )
            program.pushed(event.worker, event.incarnation, made, now_s)
        elif isinstance(event, Joined):
            program.joined(event.worker, event.incarnation, now_s)
        elif isinstance(event, Left):
            program.over(event.worker, event.died)
            program.left(event.worker, event.incarnation, event.died, now_s)
        else:
            program.receive(event, now_s)

    def _saw(self, event: Event, effects: list[Effect]) -> None:
        self._event = event
        self.oracle.event(event, self._payload, effects)

    def _carry_out(self, effect: Effect) -> None:
        self._actions[type(effect)](effect)
        self.oracle.effect(self._event, effect)
        if self.service.outbox:
            self._post()
        self._boundary()

    # What folds (`plesio.memory.port.Memory`)

    def do(self, effect: Effect) -> None:
        """What came is added to the buffer, or a version made."""
        if isinstance(effect, Hold):
            assert isinstance(self._event, Pushed)
            self._hold(self._slots[effect.worker, self._event.incarnation])
        elif isinstance(effect, Fold):
            slots = [] if effect.held else [self._slots[one.worker, one.incarnation] for one in effect.members]
            self._fold(effect, slots)
            self.service.folded(effect)

    def _hold(self, payload: int) -> None:
        self._buffer.append(payload)

    def _fold(self, fold: Fold, slots: list[int]) -> None:
        """Make a version of what lies in the slots, or in the buffer."""
        payloads = self._buffer if fold.held else slots
        self.oracle.folded(fold, payloads)
        for payload in payloads:
            self.model.add(payload, self.oracle.made[payload])
            self._added()
        self.model.version += 1
        self.world.tally["contributions folded"] += len(payloads)
        if self.world.story is not None:
            self.world.tell(f"server folds {', '.join(f'{m.worker}:{m.number}' for m in fold.members)} "
                            f"into version {fold.version}")  # fmt: skip
        if fold.held:
            self._buffer.clear()

    def _added(self) -> None:
        """One more contribution is in the parameters."""

    # What workers are answered (`plesio.server.interfaces.Replies`): letters, which the sessions write

    def granted(self, grant: Grant, answer: Located) -> float:
        """A worker goes on."""
        self.service.granted(grant)
        return self.now_s()

    def called_off(self, cancel: Cancel, answer: Located) -> float:
        """A step does not count."""
        self.service.called_off(cancel)
        return self.now_s()

    def supplied(self, worker: int, reply: Supply) -> None:
        """Data for a worker."""
        assert isinstance(reply, LeaseReply), "there are no tables"
        self.service.leased(Leased(worker, reply.batches, reply.epoch))

    def refused(self, worker: int, why: str) -> None:
        """All have the same data."""
        raise AssertionError(why)

    def repeated(self, discard: Discard) -> None:
        """It is answered again, or told that it is no member."""
        self.service.repeated(discard)

    def evicted(self, evict: Evict) -> None:
        """A worker is no member any more."""
        self.service.evicted(evict)

    def _post(self) -> None:
        outbox = self.service.outbox
        for letter in outbox:
            self.oracle.told(letter)
            self._send(letter)
        outbox.clear()

    def _send(self, letter: FromServer) -> None:
        self.world.down[letter.worker].send(letter, self.epoch)

    def end_at(self, boundary: int) -> None:
        """Let it end there."""
        self.crashes_at = boundary

    def _boundary(self) -> None:
        self.boundaries += 1
        if self.boundaries == self.crashes_at:
            raise Crash

    # Checkpoints and crashes

    def _begin_checkpoint(self, _: object, __: object) -> None:
        if self.down:
            return
        if not self._may_keep():
            self.agenda.at(self.agenda.now_s + AGAIN_S, self._begin_checkpoint)
            return
        number, state = self.service.begin_checkpoint()
        image = self._image(state)
        content = msgspec.msgpack.encode(image)
        self.oracle.checkpoint_begun(content, image)
        if self.world.story is not None:
            self.world.tell(f"server begins a checkpoint of version {image.model.version}")
        self._write(0, (content, number, state))

    def _may_keep(self) -> bool:
        """Whether a checkpoint may be taken now, as `Program.keep` has it."""
        return not self.program.unsettled

    def _image(self, state: ServiceState) -> Image:
        return Image(self.model.state(), self.sequencer.state(), state)

    def _write(self, step: int, checkpoint: tuple[bytes, int, ServiceState]) -> None:
        """One step of writing it; the next one comes a while later."""
        if self.down:
            return
        content, number, state = checkpoint
        disk, agenda = self.world.disk, self.agenda
        try:
            self._boundary()
            getattr(disk, disk.STEPS[step])(content)
            self.oracle.disk_changed(disk)
            if step + 1 < len(disk.STEPS):
                agenda.at(agenda.now_s + DISK_STEP_S * self.world.random(), self._write, step + 1, checkpoint)
                return
            self._boundary()
            self.service.written(number, state)
            self._post()
        except Crash:
            self._crash()
            return
        if self.world.story is not None:
            self.world.tell("server has written the checkpoint")
        agenda.at(agenda.now_s + self.world.plan.checkpoint_s, self._begin_checkpoint)

    def close(self) -> None:
        """Give back what the run's process would keep."""

    def _crash(self) -> None:
        self.down = True
        self.world.disk.crash()
        self.world.server_crashed()
