"""What the start of a run waits for: it is said when that takes more than a second."""

from __future__ import annotations

import time
from collections.abc import Callable

SAY_S = 1.0
IMPORTS = "importing torch, and what the training function needs"
PREPARES = "they run; training begins when all have called worker.prepare and the server is ready"


class Starting:
    """Tells `say`, once a second, what `workers` of a run wait for."""

    def __init__(self, workers: int, say: Callable[[str], None]) -> None:
        self._who = f"starting {workers} worker{'' if workers == 1 else 's'}"
        self._say = say
        self.words = f"{self._who}: {IMPORTS}"
        self._began_s = self._said_s = time.monotonic()

    def waits_for(self, what: str) -> None:
        now_s, self.words = time.monotonic(), f"{self._who}: {what}"
        if now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            self._say(f"{self.words} ({now_s - self._began_s:.0f} s)")
