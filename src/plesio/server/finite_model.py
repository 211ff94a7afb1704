"""Whether the model itself is finite: looked at where all of it is read anyway, for a snapshot, a checkpoint, the end."""

from __future__ import annotations

from collections.abc import Callable

from plesio.tensors.arena import Arena, Kind
from plesio.tensors.finite import are_finite


class FiniteModel:
    """Tells once that trained parameters became non-finite, and between which versions.

    Contributions are finite when they are folded; a step that is too long makes a model infinite all the same.

    Args:
        tell: called with what happened, in words.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._finite_at: int | None = None  # a model that never was is its user's affair
        self._told = False

    def check(self, parameters: Arena, version: int) -> bool:
        """Whether `parameters`, which are of `version`, may be kept."""
        if are_finite(parameters.of_kind(Kind.TRAINED)):
            self._finite_at = version
        elif self._finite_at is not None:
            if not self._told:
                self._told = True
                self._tell(
                    f"the model diverged: {_first_not_finite(parameters)} holds a NaN or an infinity at version {version}, and "
                    f"held none at version {self._finite_at}; no checkpoint is written of it, the last finite one is kept; "
                    "lower the learning rate or clip the gradients"
                )
            return False
        return True


def _first_not_finite(parameters: Arena) -> str:
    specs = zip(parameters.layout.specs, parameters.views, strict=True)
    return next(spec.name for spec, view in specs if spec.kind is Kind.TRAINED and not are_finite([view]))
