"""What does a worker send in one exchange?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of the user's loss; the user's own optimizer runs at the server."""

    stepped: ClassVar[bool] = False

    def __str__(self) -> str:
        return "gradient"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters after the local steps; the user's optimizer, and its state, stay in the worker."""

    stepped: ClassVar[bool] = True

    def __str__(self) -> str:
        return "parameters"


Send = Gradient | Parameters
