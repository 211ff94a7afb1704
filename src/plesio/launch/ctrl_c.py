"""Signals that end a run: the first one asks it to end in good order, the second ends it at once.

Ctrl-C is one of them (SIGINT). Schedulers that pre-empt send SIGTERM, a terminal that closes sends SIGHUP.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from plesio.errors import RunInterrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(KeyboardInterrupt):
    """A signal that ends the run, or the program, at once: `number`. `doing`: what was being done, as far as that is known."""

    def __init__(self, number: int, doing: str = "") -> None:
        super().__init__()
        self.number = number
        self.doing = doing


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Within it that is being done: a signal that ends the program says so."""
    try:
        yield
    except EndedBySignal as stop:
        stop.doing = stop.doing or doing
        raise


def end_at_once(number: int, _: object = None) -> None:
    """Handle a signal as Python handles Ctrl-C: by raising."""
    raise EndedBySignal(number)


def stay_deaf() -> None:
    """Leave SIGTERM and SIGHUP to the launcher, also where they are sent to all processes of a run.

    What this process forks or executes hears them as usual: `multiprocessing` ends its processes with SIGTERM.
    """
    own = os.getpid()

    def handle(number: int, _: object) -> None:
        if os.getpid() != own:
            handle_as(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def handle_as(number: int, handler: Any) -> None:
    """Let this handler have the signal, as if there had been no other."""
    signal.signal(number, handler)
    signal.raise_signal(number)


class CtrlC:
    """Inside `with`, Ctrl-C, SIGTERM and SIGHUP are counted. The second of them raises `EndedBySignal`, unless it is SIGHUP.

    A signal keeps its handler where it is ignored (under nohup, or in a shell's background), where something that is not
    Python's handles it, and in any thread but the main one.
    """

    def __init__(self) -> None:
        self.pressed = 0
        self.first_s = 0.0  # on the monotonic clock
        self.number = int(signal.SIGINT)  # of the first
        self._first: Callable[[], object] | None = None
        self._before: dict[int, Any] = {}  # who handles them otherwise
        self._process = os.getpid()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self, doing: str = "") -> Iterator[None]:
        """Inside, the first one ends the run, for there is nothing to lose yet; `doing` says what was being done."""
        with told(doing), self.telling(lambda: end_at_once(self.number)):
            yield

    @contextmanager
    def telling(self, first: Callable[[], object]) -> Iterator[None]:
        """Inside, `first` is called at the first one, between two steps of the interpreter; if it came before, now."""
        self._first = first
        try:
            if self.pressed:
                first()
            yield
        finally:
            self._first = None

    def _handle(self, number: int, _: object) -> None:
        if os.getpid() != self._process:  # a process that the training function forked
            handle_as(number, self._before[number])
            return
        if self.pressed and number == signal.SIGHUP:
            return  # a terminal that closes may send it twice: to its session's leader and to the foreground's processes
        self.pressed += 1
        if self.pressed == 1:
            self.number, self.first_s = number, time.monotonic()
            if self._first is not None:
                self._first()
        elif self.pressed == 2:
            end_at_once(number)


def in_words(stop: EndedBySignal | RunInterrupted) -> str:
    """What a program says that it ends."""
    doing = f" while {stop.doing}" if isinstance(stop, EndedBySignal) and stop.doing else ""
    return f"ended by {name_of(stop.number)}{doing}{f': {stop}' if str(stop) else ''}"


def name_of(number: int) -> str:
    """How a user calls the signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
