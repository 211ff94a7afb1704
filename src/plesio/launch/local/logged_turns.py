"""Turns of a server that survives its death: its spare (`plesio.launch.local.spare`) goes on from its log.

What a turn did that could not be computed again is in the log: what was read, when, and what came of writing. So the spare takes
the same turns, in the order of the log, and is where the dead process was. It tells the engine when it wakes, which may decide
that this is in vain, and what happened when it is done.

A spare is forked anew when it would have many turns to take, and at once when the descriptors or the layout of the memory are
others than those that it has. Where a switch to another strategy has laid the memory out anew, nobody is heard before: the spare
could do the switch again, and no fold that comes after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import torch

from plesio.launch.local.spare import Spare
from plesio.launch.local.turns import OVER, TICK, Served, Turns
from plesio.observe.summary import Incident
from plesio.protocol.launcher import Reborn, Trouble
from plesio.system.recovery_log import RecoveryLog
from plesio.transport.remembered import RememberedChannel, say_anew
from plesio.transport.world import World

WENT_ON = -3
"""The turn in which a spare says that it is the server now."""


class LoggedTurns(Turns):
    """`engine`: its descriptor; `asked`: the user wants the server to survive, and hears of it when it cannot any more."""

    def __init__(self, engine: int, asked: bool) -> None:
        self.log = log = RecoveryLog()
        self.world = World(log.now_s, log.once, log.sent, log.read, partial(RememberedChannel.attached, log))
        self.is_old = True
        self._log = log
        self._spare = Spare(log, engine)
        self._asked = asked
        self._is_durable = True
        self._laid_out = 0  # how often the memory was that the spare knows
        self._settle: Callable[[], bool] | None = None

    def of(self, server: Served) -> Callable[[int, float], None]:
        return partial(self._take, server)

    def _take(self, server: Served, source: int, now_s: float) -> None:
        laid_out_anew = self._is_durable and server.program.memory.laid_out != self._laid_out
        if laid_out_anew and source != OVER:  # the poller tells of it again, but nobody of the end
            return
        self._log.turn(source, now_s)
        server.take(source, now_s)
        if source == TICK:
            self.is_old |= not self._spare.lives
        elif source == OVER:
            self._spare.dismiss()

    def rest(self, server: Served) -> None:
        is_worn, program = self._log.rest(), server.program
        if not (self._is_durable and program.begun):
            return
        if is_worn or self.is_old or program.memory.laid_out != self._laid_out:
            if why := server.why_not_durable():
                self._give_up(server, why)
            else:
                self._renew(server)
        elif self._settle is not None:
            while not server.handlers.poller.poll(0) and self._settle():
                pass

    def _renew(self, server: Served) -> None:
        self.is_old, self._laid_out = False, server.machine.laid_out
        self._settle = server.machine.folder.settle
        try:
            if self._spare.renew():
                self._go_on(server)
        except OSError as error:
            self._give_up(server, f"no spare can be forked ({error})")

    def _go_on(self, server: Served) -> None:
        """This was the spare: take the turns that are in the log, and tell of it."""
        torch.set_num_threads(1)  # the others were the dead process's
        log, self.is_old = self._log, True  # to be soon where a spare has little to do
        say_anew(server.engine, Reborn(os.getpid(), *log.place))
        while (turn := log.next_turn()) is not None:
            source, now_s = turn
            if source == WENT_ON:
                self._tell_of_it(server)
                continue
            server.take(source, now_s)
            if source == OVER:
                self._spare.dismiss()
        log.turn(WENT_ON, time.monotonic())
        self._tell_of_it(server)

    def _tell_of_it(self, server: Served) -> None:
        took_s, program = time.monotonic() - self._spare.woke_s, server.program
        what = f"the server died at version {program.version} and went on after {took_s:.2f} s; no update lost"
        server.tell_engine(Trouble(Incident(server.now_s() - program.meter.zero_s, None, what)))

    def _give_up(self, server: Served, why: str) -> None:
        self._is_durable = False
        self._log.give_up()
        self._spare.dismiss()
        if self._asked:
            server.program.trouble(None, f"a death of the server ends the run from here on: {why}")
