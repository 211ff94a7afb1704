"""When it is in vain that a spare goes on from a dead server: the next one would die of the same."""

from __future__ import annotations

from collections import deque

DEATHS_MAX = 3
WITHIN_S = 60.0


class Rebirths:
    """The deaths of one run's server, but for those that it was asked for (`expected`)."""

    def __init__(self) -> None:
        self.expected = 0
        self._at_s: deque[float] = deque(maxlen=DEATHS_MAX)
        self._turn = 0, 0

    def why_not(self, generation: int, turn: int, now_s: float) -> str:
        """The server died in this turn of its log (0: in none): why its spare is not to go on, or nothing."""
        if self.expected:
            self.expected -= 1
            return ""
        again = turn > 0 and (generation, turn) == self._turn
        self._turn = generation, turn
        self._at_s.append(now_s)
        if again:
            return "its successor had died of the same message, or was killed in the middle of it"
        if len(self._at_s) == DEATHS_MAX and now_s - self._at_s[0] < WITHIN_S:
            return f"{DEATHS_MAX} died within {now_s - self._at_s[0]:.0f} s"
        return ""
