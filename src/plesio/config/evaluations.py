"""How often a run is evaluated: by its rounds, its steps, or the clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from plesio.strategy.answers.answer import COUNT, Answer
from plesio.strategy.answers.work import Seconds, Steps


@dataclass(frozen=True, slots=True)
class Rounds(Answer):
    """For `evaluate_every`: each version whose number is a multiple of `rounds`, and the last. A round makes a version.

    >>> def evaluate(model):
    ...     return {"bias": float(model.bias)}
    >>> simulated = ps.Simulated("uniform")
    >>> run = ps.run(train, "sync_sgd", workers=2, evaluate=evaluate, evaluate_every=ps.Rounds(4), engine=simulated)
    >>> [one.version for one in run.history]
    [0, 4, 8, 10]
    """

    rounds: Annotated[int, COUNT]

    def __str__(self) -> str:
        return f"every {self.rounds} rounds"


Every = Rounds | Steps | Seconds


class Due:
    """Whether another evaluation is due, and the first.

    >>> due = Due(Rounds(2))
    >>> [due(version, steps=0) for version in (0, 1, 2, 2, 5)]
    [True, False, True, False, True]
    """

    def __init__(self, every: Every) -> None:
        self._rounds, self._steps = getattr(every, "rounds", 0), getattr(every, "steps", 0)
        self._made = -1

    def __call__(self, version: int, steps: int) -> bool:
        if not self._rounds and not self._steps:
            return True  # whoever asks waits by the clock
        made = version // self._rounds if self._rounds else steps // self._steps
        due, self._made = made > self._made, made
        return due


def pause_s(every: Every) -> float:
    """Seconds between two evaluations; infinite where rounds or steps say when."""
    return float(getattr(every, "seconds", inf))
