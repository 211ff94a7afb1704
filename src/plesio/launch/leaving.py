"""A worker's machine is to be taken away: a scheduler says so by SIGTERM, and the worker leaves in good order.

| what comes                       | what the worker does                                                          |
| -------------------------------- | ----------------------------------------------------------------------------- |
| SIGTERM; Ctrl-C, where it joined | `Worker.leave`: the step is made and sent, data and seat are given back       |
| a second one                     | ends at once, as by that signal: to the run a death                           |
| nothing more for `leave_s`       | the same: the process hangs, or its step takes longer than there is time      |

A handler that the script has set is called, too.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from plesio.launch.ctrl_c import end_at_once, handle_as, name_of

log = logging.getLogger("plesio")
SAY_S = 1.0  # how long the last word may take: whoever hangs may hold the lock of a log
LEAVE_S = 30.0
"""As long as Kubernetes gives a pod by default."""
ENDS_AT_ONCE = (signal.default_int_handler, end_at_once)
"""Handlers of Python and of `plesio join`, which no script has set."""


class LeavingBySignal:
    """Inside `with`, the first of these signals calls `leave`, between two steps of the interpreter.

    A signal keeps its handler where it is ignored, where something that is not Python's handles it, and in any thread but the
    main one.
    """

    def __init__(self, leave: Callable[[], object], leave_s: float, numbers: Sequence[int] = (signal.SIGTERM,)) -> None:
        self._leave, self._leave_s, self._numbers = leave, leave_s, numbers
        self._before: dict[int, Any] = {}
        self._told = False
        self._process = os.getpid()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:  # else the script has set another meanwhile
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        before = self._before[number]
        if os.getpid() != self._process:  # a process that the training function forked
            handle_as(number, before)
            return
        if self._told:
            handle_as(number, signal.SIG_DFL)
            return
        self._told = True
        self._leave()
        threading.Thread(target=self._end_late, args=(number,), name="plesio leaving", daemon=True).start()
        # last, for it fails or blocks where the signal came in the middle of a write to a full pipe
        log.info("%s: this worker leaves when its step is made", name_of(number))
        if callable(before) and before not in ENDS_AT_ONCE:
            before(number, frame)

    def _end_late(self, number: int) -> None:
        if not self._over.wait(self._leave_s):
            what = "this worker did not come to the end of its step within %g s (leave_s)", self._leave_s
            says = threading.Thread(target=log.warning, args=what, daemon=True)
            says.start()
            says.join(SAY_S)
            os._exit(128 + number)
