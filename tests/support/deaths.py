"""A process that is killed outright, between whatever two of its lines."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from plesio.system.recovery_log import RecoveryLog


def lines_of(do: Callable[[], None], where: Sequence[str], most: int = 1 << 60) -> int:
    """How many lines of these files `do` runs through; SIGKILL before the one after `most`."""
    ran = 0

    def traced(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal ran
        if what == "call":
            return traced if any(frame.f_code.co_filename.startswith(room) for room in where) else None
        ran += what == "line"
        if ran > most:
            os.kill(os.getpid(), signal.SIGKILL)
        return traced

    sys.settrace(traced)
    try:
        do()
    finally:
        sys.settrace(None)
    return ran


def dies(do: Callable[[], None]) -> None:
    """Have it done by another process, which is killed in it, or at its end."""
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return
    try:
        do()
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def goes_on(log: RecoveryLog, act: Callable[[Any], object], plan: Sequence[Any], rng: random.Random) -> int:
    """Take over from a process that died: act as far as the log reaches, and perhaps once more; how often."""
    log.recover()
    done = 0
    while log.next_turn() is not None:  # the last one is gone on with
        act(plan[done])
        done += 1
    if done < len(plan) and rng.random() < 0.5:
        act(plan[done])
        done += 1
    return done
