"""Ctrl-C while a run is under way: the first one asks it to end in good order, the second ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Self


class CtrlC:
    """Inside `with`, Ctrl-C is counted, and raises `KeyboardInterrupt` only the second time.

    Further ones change nothing: everything is being ended by then. Nothing is changed at all in another thread than the
    main one, where something that is not Python's handles the signal, or where it is ignored (in a shell's background).

    Args:
        first: called at the first one, between two steps of the interpreter.

    Attributes:
        pressed: how often.
        first_s: when for the first time, on the monotonic clock.
    """

    def __init__(self, first: Callable[[], object] | None = None) -> None:
        self.pressed = 0
        self.first_s = 0.0
        self._first = first
        self._before: Any = None  # who handles it otherwise

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        self.pressed += 1
        if self.pressed == 1:
            self.first_s = time.monotonic()
            if self._first is not None:
                self._first()
        elif self.pressed == 2:
            raise KeyboardInterrupt
