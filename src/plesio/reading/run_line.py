"""A reader's questions: asked over its line with the run, or over another one if that is lost."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from plesio.errors import PlesioError, ServerLostError, error_class
from plesio.protocol import reading
from plesio.reading.line import Line, LineLostError
from plesio.reading.place import ReadingPlace
from plesio.transport.limits import LEASE_S

RETRY_S = 0.2
R = TypeVar("R")
ToReader = Line[reading.ToReader]


class RunLine:
    """The line of one reader, called `name`. `opened` is told what the run is like, of each line that is made; `over` says
    whether nobody need answer any more."""

    def __init__(
        self,
        place: ReadingPlace,
        name: str,
        timeout_s: float,
        opened: Callable[[reading.Opened, ToReader], object],
        over: Callable[[], bool],
    ) -> None:
        self._place, self._name, self._timeout_s = place, name, timeout_s
        self._opened, self._over = opened, over
        self._lock, self._closing = threading.Lock(), False
        self._line: ToReader | None = None

    def ask(self, ask: Callable[[ToReader], R]) -> R:
        """What `ask` comes to. It is called again for another line, if the one that it used is lost.

        Raises:
            ServerLostError: nobody answers for `timeout_s`, or the run is over.
        """
        end_s, where = time.monotonic() + self._timeout_s, self._place
        with self._lock:
            while True:
                try:
                    if self._line is None:
                        self._line = self._connected()
                    return ask(self._line)
                except (LineLostError, OSError) as error:
                    self._hang_up()
                    if self._closing:
                        raise ServerLostError(f"{where} is read no longer") from None
                    if self._over():
                        raise ServerLostError(f"{where} is over, and nobody answers any more") from None
                    if time.monotonic() >= end_s:
                        raise ServerLostError(
                            f"{where} cannot be reached: {error}, for {self._timeout_s:g} s"
                        ) from None
                    time.sleep(RETRY_S)

    def _connected(self) -> ToReader:
        line = self._place.dial()
        try:
            line.say(reading.Open(self._name, importlib.metadata.version("plesio")))
            self._opened(heard(line, reading.Opened, self._timeout_s), line)
        except BaseException:
            line.close()
            raise
        return line

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def close(self) -> None:
        """Hang up; the next question makes another line."""
        self._closing = True  # nobody tries to reach the run any more
        with self._lock:
            self._hang_up()
        self._closing = False


def heard(line: ToReader, kind: Any, within_s: float = 0.0) -> Any:
    """What a reader is told next, of this kind; what it is refused is raised."""
    told = line.hear(within_s + LEASE_S)
    if told is None:
        raise LineLostError(f"no answer within {within_s + LEASE_S:g} s")
    if isinstance(told, reading.Refused):
        raise (error_class(told.kind) or PlesioError)(told.why)
    if not isinstance(told, kind):
        raise LineLostError(f"{type(told).__name__} came out of turn")
    return told


def pieces(line: ToReader) -> list[reading.RowsGiven]:
    """Rows, which come in pieces."""
    got = [heard(line, reading.RowsGiven)]
    while got[-1].more:
        got.append(heard(line, reading.RowsGiven))
    return got
