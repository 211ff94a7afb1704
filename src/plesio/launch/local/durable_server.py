"""A server process that survives its death: its spare (`plesio.launch.local.spare`) goes on from its log.

To deal with what came is a *turn*. What a turn did that could not be computed again is in the log: what was read, when, and
what came of writing. So the spare takes the same turns, in the order of the log, and is where the dead process was. It tells
the engine when it wakes, which may decide that this is in vain, and what happened when it is done.

A spare is forked anew when it would have many turns to take, and at once when the descriptors or the layout of the memory are
others than those that it has. Where a switch to another strategy has laid the memory out anew, nobody is heard before: the spare
could do the switch again, and no fold that comes after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from plesio.core.events import Switch
from plesio.host.recovery_log import RecoveryLog
from plesio.launch.job import Job
from plesio.launch.local.server_process import Server
from plesio.launch.local.spare import Spare
from plesio.memory.machine import Machine
from plesio.observe.summary import Incident
from plesio.protocol import launcher
from plesio.protocol.evaluator import Asked
from plesio.protocol.journal import JournalWriter
from plesio.protocol.launcher import Reborn, Trouble
from plesio.protocol.table_server import FromTableServer
from plesio.server.lines import Line
from plesio.transport.channel import Channel
from plesio.transport.doorbell import Located
from plesio.transport.remembered import RememberedChannel, say_anew
from plesio.transport.world import World

TICK, OVER, WENT_ON = -1, -2, -3
"""Turns that are not about a descriptor."""


def remembering(log: RecoveryLog) -> World:
    return World(log.now_s, log.once, log.read, partial(RememberedChannel.attached, log))


class DurableServer(Server):
    """As `Server`, whose descriptors are read and written by `log`."""

    def __init__(
        self,
        job: Job,
        engine: Channel[launcher.ToServer],
        evaluator: Channel[Asked] | None,
        lines: list[Line | None],
        writer: JournalWriter | None,
        tables: Sequence[Channel[FromTableServer]],
        world: World,
        log: RecoveryLog,
    ) -> None:
        super().__init__(job, engine, evaluator, lines, writer, tables, world, log)
        if writer is not None:
            writer.once = log.once
        self._log = log
        self._spare = Spare(log, engine.fileno())
        self._is_durable = True
        self._was_asked_for = job.config.durability == "process"
        self._spare_is_old = True
        self._has_finished = False
        self._is_laid_out_anew = False
        """Whether the memory is another than the one that the spare knows."""
        self._settle: Callable[[], bool] | None = None
        self._switch, self._program.actions[Switch] = self._program.actions[Switch], self._switched

    def _sent(self, line: Line, answer: Located) -> float:
        log = self._log
        sent_s = log.once(float) if log.recovering else log.enter(super()._sent(line, answer))
        log.turned_s = sent_s or log.turned_s
        return sent_s

    # The turns

    def _deal_with(self, descriptor: int) -> None:
        if self._is_laid_out_anew:  # the poller tells of it again
            return
        self._log.turn(descriptor, time.monotonic())
        super()._deal_with(descriptor)

    def _tick(self, now_s: float) -> None:
        if self._is_laid_out_anew:
            return
        self._log.turn(TICK, now_s)
        super()._tick(now_s)
        self._spare_is_old |= not self._spare.lives

    def _finish(self) -> None:
        if not self._has_finished:
            self._log.turn(OVER, time.monotonic())
            self._end()

    def _end(self) -> None:
        super()._finish()
        self._has_finished = True
        self._spare.dismiss()

    def _over(self) -> bool:
        return self._has_finished or super()._over()

    def _go_on(self) -> None:
        """This was the spare: take the turns that are in the log, and tell of it."""
        torch.set_num_threads(1)  # the others were the dead process's
        log, self._spare_is_old = self._log, True  # to be soon where a spare has little to do
        say_anew(self._engine, Reborn(os.getpid(), *log.place))
        while (turn := log.next_turn()) is not None:
            source, now_s = turn
            if source == TICK:
                super()._tick(now_s)
            elif source == OVER:
                self._end()
            elif source == WENT_ON:
                self._tell_of_it()
            else:
                super()._deal_with(source)
        log.turn(WENT_ON, time.monotonic())
        self._tell_of_it()

    def _tell_of_it(self) -> None:
        took_s = time.monotonic() - self._spare.woke_s
        what = f"the server died at version {self._program.version} and went on after {took_s:.2f} s; no update lost"
        self._tell_engine(Trouble(Incident(self.now_s() - self._meter.zero_s, None, what)))

    # The spare

    def _listen(self, line: Line) -> None:
        super()._listen(line)
        self._spare_is_old = True

    def _close(self, line: Line) -> None:
        super()._close(line)
        self._spare_is_old = True

    def _rest(self) -> None:
        is_worn = self._log.rest()
        if not (self._is_durable and self._program.begun):
            return
        if is_worn or self._spare_is_old or self._is_laid_out_anew or self._meeting.has_begun:
            if why := self._why_not():
                self._give_up(why)
            else:
                self._renew()
            return
        if (settle := self._settle) is not None:
            while not self._handlers.poller.poll(0) and settle():
                pass

    def _begun(self, machine: Machine, now_s: float) -> None:
        super()._begun(machine, now_s)
        self._is_laid_out_anew = self._is_durable

    def _switched(self, switch: Switch) -> None:
        self._switch(switch)
        self._is_laid_out_anew = self._is_durable

    def _why_not(self) -> str:
        """Why nobody could go on from what this process leaves; nothing if somebody could."""
        if self._meeting.has_begun:
            return "the workers have met for collectives of torch.distributed, by a store in its own memory"
        return self._machine.why_not_durable

    def _renew(self) -> None:
        self._spare_is_old = self._is_laid_out_anew = False
        self._settle = self._machine.folder.settle
        try:
            if self._spare.renew():
                self._go_on()
        except OSError as error:
            self._give_up(f"no spare can be forked ({error})")

    def _give_up(self, why: str) -> None:
        self._is_durable = self._is_laid_out_anew = False
        self._log.give_up()
        self._spare.dismiss()
        if self._was_asked_for:
            self._program.trouble(None, f"a death of the server ends the run from here on: {why}")
