"""A worker process whose model has a table."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plesio.protocol.rows import RowsRequest
from plesio.tables.window import Rows
from torture.process import Process
from torture.sessions.session import News, Phase, Welcome
from torture.tables.desk import Desk
from torture.tables.judge import Made
from torture.tables.reborn import RebornRows
from torture.tables.server import RowServer

if TYPE_CHECKING:
    from torture.world import World

KEYS = 24
"""So few that workers meet in most rows."""
WITHOUT_ROWS, TWICE, UNTOUCHED = 0.1, 0.3, 0.2
"""Shares of contributions that pull none, of those that pull twice, and of rows pulled that get no gradient."""
POLL_S = 0.003


@dataclass(slots=True)
class Window:
    """The rows of one contribution: `request` is the last for them."""

    number: int
    keys: list[int]
    request: RowsRequest
    rows: Rows | None = None


class RowProcess(Process):
    """It pulls rows before it computes. Its requests travel in a pipe: in order, and behind what it sent before."""

    def __init__(self, world: World, *arguments: Any) -> None:
        assert world.rows is not None
        self._rows = world.rows
        self._desk: Desk
        self._life = 0  # of the server, whose places these are
        self._window: Window | None = None
        self._ahead: Window | None = None
        self._pushed = 0  # the last number sent
        self._due_s = 0.0
        self._pipe: deque[tuple[int, int, int, RowsRequest]] = deque()
        self._share_ahead = 0.0 if world.plan.strategy.adopt.late else world.rng.choice((0.0, 0.7))  # as `worker.ahead`
        self._awaits = False
        self._number = 0  # of what is computed
        super().__init__(world, *arguments)

    def _act(self, news: News, life: int) -> None:
        if isinstance(news, Welcome):
            self._desk, self._life = self.world.parts.desk(self._rows.slots[life], self.worker), life
            self._pushed = 0
        super()._act(news, life)

    def _drop(self) -> None:
        super()._drop()
        self._window = self._ahead = None
        self._awaits = False

    def _call_off(self) -> None:
        super()._call_off()
        self._awaits = False

    # Pulling

    def _begin(self) -> None:
        self._computing += 1
        self._busy = True
        in_flight = self.session.phase is Phase.WAITING
        self._began = self.session.version, in_flight
        number = self._number = self.session.number + in_flight
        ahead, self._ahead, self._window = self._ahead, None, None
        if ahead is not None and ahead.number == number:
            self._window = ahead
        elif self._random() >= WITHOUT_ROWS:
            keys = self._draw([])
            self._window = Window(number, keys, self._want(number, keys, 0, False))
        self._awaits = True
        self.served()

    def served(self) -> None:
        """Rows may have come."""
        window = self._window
        if not (self._awaits and self.alive) or (window is not None and not self._desk.has(window.request)):
            return
        if window is not None:
            start = 0 if window.rows is None else len(window.rows.values)
            window.rows = self._desk.take(window.number, len(window.keys), window.rows)
            if self._life == self.world.server.epoch:  # else the judge of that life is gone
                self._rows.judge.got(self.worker, window.request.serial, window.rows.values[start:])
            if not start and self._random() < TWICE:
                more = self._draw(window.keys)
                window.request = self._want(window.number, more, len(window.keys), False)
                window.keys += more
                return
        self._awaits = False
        agenda = self._agenda
        agenda.at(agenda.now_s + self.step_s * (0.5 + self._random()), self._computed, self._computing)
        if self._random() < self._share_ahead:
            number, keys = self._number + 1, self._draw([])
            self._ahead = Window(number, keys, self._want(number, keys, 0, True))

    def _draw(self, but: list[int]) -> list[int]:
        """Some distinct keys; the lower ones are everybody's."""
        drawn = {int(KEYS * self._random() ** 2) for _ in range(1 + int(4 * self._random()))} - {*but}
        return sorted(drawn) or [KEYS + len(but)]

    def _want(self, number: int, keys: list[int], start: int, ahead: bool) -> RowsRequest:
        judge = self._rows.judge
        request = self._desk.ask(number, keys, start, ahead, judge.serial())
        judge.asked(request.serial, start, keys)
        self.world.tally["pulls ahead" if ahead else "pulls"] += 1
        self.world.tell(f"worker {self.worker} wants rows {keys} for {number}{' ahead' if ahead else ''}")
        self._due_s = max(self._due_s, self._agenda.now_s + self.step_s * self._random() ** 2)
        self._agenda.at(
            self._due_s, self._arrives, (self.session.incarnation, self.session.epoch, self._pushed, request)
        )
        return request

    def _arrives(self, letter: tuple[int, int, int, RowsRequest], _: object) -> None:
        """A request is at the other end of the pipe, whoever is left at this one."""
        self._pipe.append(letter)
        self._read()

    def _read(self, _: object = None, __: object = None) -> None:
        """The server reads what was said before, first."""
        while self._pipe:
            incarnation, epoch, pushed, request = self._pipe[0]
            server = self.world.server
            assert isinstance(server, (RowServer, RebornRows))
            seat = server.sequencer.members.seat(self.worker, incarnation)
            if server.listens and epoch == server.epoch and seat is not None:
                if seat.arrived < pushed:
                    self._agenda.at(self._agenda.now_s + POLL_S, self._read)
                    return
                server.hear_rows(self.worker, incarnation, request)
            self._pipe.popleft()

    # Pushing

    def _hand_in(self, payload: int, finite: bool) -> bool:
        self._pushed = self.session.number
        window = self._window
        if window is None:
            return False
        assert window.rows is not None
        assert window.number == self.session.number
        touched = np.array([self._random() >= UNTOUCHED for _ in window.keys], np.uint8)
        gradient = (1.0, 1.0 + payload % 50) if finite else (np.nan, np.nan)
        gradients = np.broadcast_to(np.array(gradient, np.float32), (len(window.keys), 2))
        self._desk.give(window.number, window.rows, gradients, touched)
        self._rows.judge.made[payload] = Made(window.number, window.keys, gradients, touched)
        return True
