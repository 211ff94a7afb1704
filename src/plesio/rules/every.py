"""How long does a worker go it alone between two exchanges?"""

from __future__ import annotations

from dataclasses import dataclass

from plesio.rules import check


@dataclass(frozen=True, slots=True)
class Steps:
    """`steps` optimizer steps (H): equal work for all, so everybody waits for the slowest."""

    steps: int

    def __post_init__(self) -> None:
        check.whole("Steps", "steps", self.steps, least=1)

    def due(self, steps: int, seconds: float) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now."""
        return steps >= self.steps

    def __str__(self) -> str:
        return "every step" if self.steps == 1 else f"every {self.steps} steps"


@dataclass(frozen=True, slots=True)
class Seconds:
    """As many steps as fit into `seconds`: each worker does what it can, a straggler does not set the pace."""

    seconds: float

    def __post_init__(self) -> None:
        check.number("Seconds", "seconds", self.seconds, above=0)

    def due(self, steps: int, seconds: float) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now.

        It does when another step like those would no longer fit: who goes over the time keeps the others waiting.
        """
        return seconds + seconds / steps > self.seconds

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"
