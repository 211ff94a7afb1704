"""How long does a worker train on its own between two exchanges (`Every`), and what does it send then (`Send`)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import COUNT, POSITIVE, Answer


@dataclass(frozen=True, slots=True)
class Steps(Answer):
    """Exchange after every `steps` optimizer steps (H). All do equal work, so all wait for the slowest.

    Raises:
        StrategyError: `steps` is no whole number of at least 1.

    >>> Steps(16).due(steps=15, seconds=0.3), Steps(16).due(steps=16, seconds=0.3)
    (False, True)
    """

    steps: Annotated[int, COUNT]

    def due(self, steps: int, seconds: float) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now."""
        return steps >= self.steps

    def __str__(self) -> str:
        return "every step" if self.steps == 1 else f"every {self.steps} steps"


@dataclass(frozen=True, slots=True)
class Seconds(Answer):
    """Exchange every `seconds`: each worker takes as many steps as fit, so a straggler does not set the pace.

    Raises:
        StrategyError: `seconds` is no finite number above 0.

    >>> Seconds(0.3).due(steps=2, seconds=0.1), Seconds(0.3).due(steps=5, seconds=0.28)
    (False, True)
    """

    seconds: Annotated[float, POSITIVE]

    def due(self, steps: int, seconds: float) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now.

        It does when another step as long as those would no longer fit: whoever overruns keeps the others waiting.
        """
        return seconds + seconds / steps > self.seconds

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


Every = Steps | Seconds


def span(text: str) -> Every:
    """As people write it.

    Raises:
        StrategyError: it is neither steps nor seconds.

    >>> span("16"), span("0.3s")
    (Steps(steps=16), Seconds(seconds=0.3))
    """
    try:
        return Seconds(float(text.removesuffix("s"))) if text.endswith("s") else Steps(int(text))
    except ValueError:
        raise StrategyError(
            f"every={text}: write whole steps, such as every=16, or seconds, such as every=0.3s"
        ) from None


@dataclass(frozen=True, slots=True)
class Gradient(Answer):
    """The gradient of the user's loss; the user's own optimizer runs at the server."""

    words: ClassVar[str] = "gradient"


@dataclass(frozen=True, slots=True)
class Parameters(Answer):
    """The parameters after the local steps; the user's optimizer, and its state, stay in the worker."""

    stepped: ClassVar[bool] = True
    words: ClassVar[str] = "parameters"


Send = Gradient | Parameters
