"""The server process: hears whoever says something, and has it decided.

It has no other thread: a doorbell would cost the interpreter's switch interval. One loop polls every worker's pipe and
channel, the evaluator and the engine; whatever peer dies is noticed as the end of its file.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from plesio.core.events import Evict
from plesio.protocol.evaluator import SnapshotRequest
from plesio.protocol.journal import JournalWriter
from plesio.protocol.launcher import Final, Progress, Stop
from plesio.protocol.worker import (
    CheckedOut,
    CheckIn,
    CheckOut,
    Contribution,
    DroppedStep,
    Farewell,
    FromWorker,
    Hello,
    LeaseRequest,
    MirrorFilled,
    WorkDone,
)
from plesio.server.assembly import Assembly
from plesio.server.configs import ServerConfig
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.program import Deciding
from plesio.server.rendezvous import Rendezvous
from plesio.server.snapshots import Snapshots
from plesio.strategy import Strategy
from plesio.transport.channel import Channel, ChannelClosedError, readable
from plesio.transport.doorbell import Lookout, write_answer

TICK_S = 0.1
MESSAGE_S = 10.0
FINAL = -2
"""The reader of the ring for the engine, at the end."""


class Server:
    """One run's server.

    Args:
        config: its settings.
        strategy: how tightly workers keep step.
        engine: the channel to the engine.
        evaluator: the channel to the evaluator, if there is one.
        lines: one for each worker.
        writer: of the journal, if one is kept.
    """

    def __init__(
        self,
        config: ServerConfig,
        strategy: Strategy,
        engine: Channel[Stop],
        evaluator: Channel[SnapshotRequest] | None,
        lines: list[Line],
        writer: JournalWriter | None = None,
    ) -> None:
        self._timeout_s = config.timeout_s
        self._engine = engine
        self._lines = lines
        self._opening = Opening(strategy, config.workers, config.evaluates, lines)
        self._deciding = Deciding(config, strategy, lines, writer, self._built, self._tell_engine, self._lost)
        self._snapshots = Snapshots(evaluator, self._deciding.standing)
        self._rendezvous: Rendezvous | None = None
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._hear: dict[type[FromWorker], Callable[[Line, Any], None]] = {
            Contribution: self._deciding.pushed,
            DroppedStep: self._deciding.abandoned,
            WorkDone: self._deciding.reported,
            CheckIn: self._checked_in,
            MirrorFilled: self._mirror_filled,
            CheckOut: self._checked_out,
            Farewell: self._farewell,
        }
        self._next_tick_s = 0.0
        self._started_s = time.monotonic()

    def _built(self) -> Assembly:
        assert self._opening.assembly is not None, "nobody contributes before the model is there"
        return self._opening.assembly

    # The loop

    def run(self) -> None:
        """Serve until every worker is gone, then tell the engine what it cost."""
        self._watch(self._engine.fileno(), self._from_engine)
        if self._snapshots.evaluator is not None:
            descriptor = self._snapshots.evaluator.fileno()
            self._watch(descriptor, partial(self._from_evaluator, descriptor))
        for line in self._lines:
            self._watch(line.messages.descriptor, partial(self._from_doorbell, line))
            self._watch(line.channel.fileno(), partial(self._from_channel, line))
        gc.freeze()  # what was there before the fork is never garbage: do not look through it
        lookout = Lookout(self._poller)
        while not all(line.gone for line in self._lines):
            for descriptor, _ in lookout.wait(TICK_S):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            self._tick()
        self._finish()

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_tick_s:
            return
        self._next_tick_s = now_s + TICK_S
        if not self._deciding.begun and now_s - self._started_s > self._timeout_s:
            self._begin_is_late()
        self._deciding.tick(now_s)
        if self._rendezvous is not None:
            for worker, silent_s in self._rendezvous.tick(now_s):
                self._deciding.evict(Evict(worker, self._lines[worker].incarnation, silent_s))

    # What comes

    def _from_engine(self) -> None:
        try:
            message, _ = self._engine.receive(MESSAGE_S)
        except ChannelClosedError:
            raise SystemExit(0) from None  # the engine is gone, and with it whoever wanted the result
        assert isinstance(message, Stop)
        if self._opening.assembly is not None:
            self._opening.assembly.board.stop()
        self._deciding.stop()

    def _from_evaluator(self, descriptor: int) -> None:
        if not self._snapshots.hear(MESSAGE_S):
            self._unwatch(descriptor)
        elif self._deciding.begun and not self._deciding.stopping:  # the last one comes unasked
            self._snapshots.serve(self._built())

    def _from_channel(self, line: Line) -> None:
        try:
            message, _ = line.channel.receive(MESSAGE_S)
        except ChannelClosedError:
            self._unwatch(line.channel.fileno())  # its doorbell tells the rest
            return
        if isinstance(message, LeaseRequest):
            if readable(line.messages.descriptor, 0.0):  # what it said before it asked
                self._from_doorbell(line)
            if not line.gone:
                self._deciding.lease(line, message)
        elif isinstance(message, Hello):
            line.hello = message
            self._begin()
        else:
            line.ready = True
            self._begin()

    def _from_doorbell(self, line: Line) -> None:
        messages = line.messages.read()
        if messages is None:
            self._lost(line)
            return
        for message in messages:
            self._hear[type(message)](line, message)

    def _mirror_filled(self, line: Line, mirror: MirrorFilled) -> None:
        self._snapshots.mirrored(self._built(), mirror.number)

    def _farewell(self, line: Line, farewell: Farewell) -> None:
        line.finished = True
        if self._rendezvous is not None:
            self._built().last_weights.handed_over(line.worker)
        self._part(line.worker, died=False)

    def _checked_out(self, line: Line, check_out: CheckOut) -> None:
        place = self._built().last_weights.place(line.worker, check_out.version)
        write_answer(line.answer, CheckedOut(place is not None), place or 0)

    def _checked_in(self, line: Line, check_in: CheckIn) -> None:
        assert self._rendezvous is not None, "workers are told to begin before they check in"
        self._rendezvous.arrived(line.worker, check_in, time.monotonic())

    def _lost(self, line: Line) -> None:
        """A worker's pipe is closed, or is to be."""
        if line.gone:
            return
        self._unwatch(line.messages.descriptor)
        self._unwatch(line.channel.fileno())
        line.close()
        self._deciding.left(line)
        if self._deciding.begun:
            self._part(line.worker, died=not line.finished)
        else:
            self._begin()

    def _part(self, worker: int, died: bool) -> None:
        """Where workers fold among themselves, the others are to do so without this one."""
        if self._rendezvous is not None:
            if died:
                self._built().last_weights.died(worker)
            self._rendezvous.leave(worker, died, time.monotonic())

    # Beginning

    def _begin_is_late(self) -> None:
        """Training did not begin in time: say for whom everybody waits."""
        why = f"{self._opening.lacking()} did not get as far as prepare within {self._timeout_s:g} s"
        self._deciding.trouble(None, why, f"training did not begin: {why}; the others waited", "DeadlineError")

    def _begin(self) -> None:
        """Training is one step nearer; when every live worker is ready it begins."""
        self._opening.proceed(self._deciding.stopping)
        if not self._opening.complete or not self._deciding.begin():
            return
        built = self._built()
        if built.mirrored:
            answers = {line.worker: line.answer for line in self._opening.live()}
            self._rendezvous = Rendezvous(
                answers, built.board, self._say_to, self._progress, self._timeout_s, time.monotonic()
            )
        self._deciding.seat()
        self._snapshots.serve(built)

    def _say_to(self, worker: int, message: object) -> None:
        self._lines[worker].say(message)

    def _progress(self) -> tuple[int, int, bool]:
        return self._deciding.version, self._snapshots.mirrors_made, self._deciding.stopping

    # Ending

    def _finish(self) -> None:
        self._deciding.end()
        built = self._built() if self._deciding.begun else None
        if built is not None:
            self._snapshots.send(built, final=True)
        buffer = built.final_buffer(FINAL) if built else 0
        figures = self._deciding.close(buffer, self._lost_weights(built))
        self._tell_engine(figures, (built.ring_descriptor,) if built else ())

    def _lost_weights(self, built: Assembly | None) -> str:
        """Where workers fold among themselves, the weights end with the last of them."""
        version = self._deciding.version
        whole = built.last_weights.whole if built is not None else None
        handed_over = whole.version if whole is not None else 0
        if built is None or not built.mirrored or handed_over >= version:
            return ""
        died = f"the workers that held version {version} ended before they could hand it over"
        if not handed_over:
            return f"{died}, and with them the weights; steps longer than the time to stop have the same effect"
        self._deciding.trouble(None, f"{died}: the weights are those of version {handed_over}")
        return ""

    def _tell_engine(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        """While it is stopped (Ctrl-Z) training goes on: it is told later, and of progress not at all."""
        try:
            if isinstance(message, Final):
                self._engine.send(message, descriptors)
            elif self._engine.has_room or not isinstance(message, Progress):
                self._engine.send_in_time(message)
        except ChannelClosedError:
            raise SystemExit(0) from None


def main(arguments: bytes, descriptors: list[int], objects: dict[str, object]) -> None:
    """Entry of the server process. `descriptors`: engine, evaluator, journal, then channel, push, answer of each worker."""
    import torch

    config = msgspec.msgpack.decode(arguments, type=ServerConfig)
    torch.set_num_threads(config.threads)
    strategy = objects["strategy"]
    assert isinstance(strategy, Strategy)
    rest = iter(descriptors)
    engine: Channel[Stop] = Channel.attach(next(rest), Stop, "the engine")
    evaluator: Channel[SnapshotRequest] | None = None
    if config.evaluates:
        evaluator = Channel.attach(next(rest), SnapshotRequest, "the evaluator")
    writer = JournalWriter.begun(next(rest), config.keeping.journal) if config.journals else None
    lines = [Line.open(worker, config.incarnation, rest) for worker in range(config.workers)]
    Server(config, strategy, engine, evaluator, lines, writer).run()
