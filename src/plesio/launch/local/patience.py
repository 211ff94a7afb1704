"""How long the launcher waits for whom: a grace after a stop, and deadlines for a silent server and for the last evaluation.

After Ctrl-C everything is to end within 5 s, with what is written then. The time in which the server writes a checkpoint does not
count: it hears of nothing meanwhile, and the workers wait for it. During training that has an end, for the disk or the server may
hang. It comes before the workers' own patience does, so that a spare has the time to answer them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from plesio.launch.ctrl_c import CtrlC, name_of

START_S = 60.0
"""How much longer than `timeout_s` a server may be silent before training begins: it says after `timeout_s` who is late."""
GRACE_S = 3.0  # how long processes that were asked to end may take before they are killed
INTERRUPT_GRACE_S = 2.0  # the same after Ctrl-C
INTERRUPT_S = 2.5  # how long after Ctrl-C the launcher waits for anybody
STALLED, LONGEST = 1.25, 1.75
"""For so many times `timeout_s` a server that writes a checkpoint may get no further, and may write. Workers wait for twice."""
JUDGE_S = 30.0
"""How long the last evaluation may take once the run was asked to stop. If nobody asked, `timeout_s`."""


class Patience:
    """The times of one run, on the monotonic clock; `timeout_s`: how long a process may wait for another."""

    def __init__(self, timeout_s: float, ctrl_c: CtrlC) -> None:
        self._timeout_s = timeout_s
        self._ctrl_c = ctrl_c
        self.started_s = self._worked_s = time.monotonic()
        self.judged_s = self.started_s  # when the evaluator last returned, or training ended
        self.heard_s = self.started_s  # when the server last said something
        self.begun_s: float | None = None
        self.asked = self.writing = False  # to stop; a checkpoint
        self._silent = self._hangs = False
        self._asked_s = self._written_s = 0.0
        self._got_to, self._got_on_s = "", 0.0  # the writing of a checkpoint

    def ask(self) -> None:
        self.asked, self._asked_s = True, time.monotonic()

    def writes(self, under_way: bool) -> None:
        """The server begins to write a checkpoint, or has written it."""
        self.writing, self._written_s = under_way, time.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether the run is to end anyway."""
        return self.asked or self._ctrl_c.pressed > 0

    def left_s(self) -> float:
        """How much longer the launcher waits for anybody."""
        if not self._ctrl_c.pressed:
            return GRACE_S
        return max(0.0, INTERRUPT_S - self._waited_s(self._ctrl_c.first_s)) if self._ctrl_c.pressed == 1 else 0.0

    @property
    def grace(self) -> str:
        """How long workers have to end, in words."""
        if self._ctrl_c.pressed:
            return f"{INTERRUPT_GRACE_S:g} s of {name_of(self._ctrl_c.number)}"
        return f"{GRACE_S:g} s of being asked to"

    def workers_are_late(self) -> bool:
        """Whether workers that were asked to end had time enough for it."""
        allowed_s = INTERRUPT_GRACE_S if self._ctrl_c.pressed else GRACE_S
        return self.asked and self._waited_s(self._asked_s) > allowed_s

    def evaluation_is_late(self) -> str:
        """Once training has ended: why nobody waits for the last evaluation any more, or nothing."""
        if self._ctrl_c.pressed and not self.left_s():
            return f"after {name_of(self._ctrl_c.number)} nobody waited for it"
        waited_s, allowed_s, of = time.monotonic() - self.judged_s, self._timeout_s, "(timeout_s)"
        if self.asked:
            waited_s, allowed_s, of = self._waited_s(self._asked_s), JUDGE_S, "of the run being asked to stop"
        return f"evaluate did not return within {allowed_s:g} s {of}" if waited_s > allowed_s else ""

    def silence_s(self, workers_left: bool) -> float | None:
        """How long the server was silent, if that is too long. Once training has begun it reports several times a second."""
        now_s = time.monotonic()
        if workers_left:
            self._worked_s = now_s
        if self.begun_s is None:  # workers may be still to come
            allowed_s = START_S + self._timeout_s
        else:  # workers who wait for it say so after twice the time; there are those that never do
            allowed_s = GRACE_S + self._timeout_s * (2 if workers_left and not self.asked else 1)
        since_s = self.heard_s if workers_left else max(self.heard_s, self._worked_s)
        return allowed_s if now_s - since_s > allowed_s else None

    def server_fell_silent(self, allowed_s: float) -> bool:
        """Whether it has, during training, said nothing for that long; once a silence."""
        silent = self._is_silent(allowed_s)
        fell, self._silent = silent and not self._silent, silent
        return fell

    def server_hangs(self, pid: int) -> bool:
        """Whether it has, during training, said nothing for as long as a process may wait for another; once a silence. Workers
        wait for it twice as long."""
        hangs = self._is_silent(self._timeout_s) or self._writing_hangs(pid)
        began, self._hangs = hangs and not self._hangs, hangs
        return began

    def _writing_hangs(self, pid: int) -> bool:
        """Whether that process writes a checkpoint during training, and gets no further."""
        if self.begun_s is None or not self.writing or self.asked:
            return False
        now_s = time.monotonic()
        if (got_to := progress_of(pid)) != self._got_to:
            self._got_to, self._got_on_s = got_to, now_s
        silent_s, stalled_s = now_s - self.heard_s, now_s - max(self.heard_s, self._got_on_s)
        return stalled_s > STALLED * self._timeout_s or silent_s > LONGEST * self._timeout_s

    def _is_silent(self, allowed_s: float) -> bool:
        return self.begun_s is not None and not self.writing and time.monotonic() - self.heard_s > allowed_s

    def _waited_s(self, asked_s: float) -> float:
        """How long those who were asked to end at that time had for it."""
        return 0.0 if self.writing else time.monotonic() - max(asked_s, self._written_s)


def progress_of(pid: int) -> str:
    """What a process has read and written so far; empty where the system does not say."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/io").read_text()
    return ""
