"""When a run in virtual time ends before its workers do: exactly at a time, or with the contribution that makes a count full."""

from __future__ import annotations

import msgspec

from plesio.observe.summary import limit_reached


class Limits(msgspec.Struct, frozen=True):
    """When a run ends before its workers do: the first that is reached; steps, samples, contributions of all together."""

    seconds: float = float("inf")
    steps: float = float("inf")
    samples: float = float("inf")
    contributions: float = float("inf")

    def reached(self, steps: int, samples: int, contributions: int) -> str:
        """Which of the counts is, in words; empty if none."""
        if steps >= self.steps:
            return limit_reached("steps", self.steps)
        if samples >= self.samples:
            return limit_reached("samples", self.samples)
        if contributions >= self.contributions:
            return limit_reached("contributions", self.contributions)
        return ""


NO_LIMITS = Limits()
