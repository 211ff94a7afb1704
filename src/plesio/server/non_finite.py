"""A NaN or an infinity: in contributions, which are all counted, and in the model itself.

Contributions are finite when they are folded; a step that is too long makes a model infinite all the same. The model is
looked at where all of it is read anyway: for a snapshot, a checkpoint, the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from plesio.observe.summary import DIVERGED


class NonFinite:
    """Tells which contributions and models held a NaN or an infinity; `fatal`: the first one ends the run."""

    def __init__(self, trouble: Callable[[int | None, str, str, str], None], fatal: bool) -> None:
        self._trouble = trouble
        self._fatal = fatal
        self._contributions: Counter[int] = Counter()
        self._finite_at: int | None = None  # a model that never was is its user's affair
        self._diverged = False

    def discarded(self, worker: int, which: str) -> None:
        """A contribution of `worker` was. Its 1st, 2nd, 4th, 8th, ... get a line: a model that diverged sends thousands."""
        self._contributions[worker] += 1
        number = self._contributions[worker]
        if self._fatal or not number & (number - 1):
            what = f"{which} of worker {worker} held a NaN or an infinity"
            before = f", like {number - 1:,} before it" if number > 1 else ""
            self._tell(worker, what, f": discarded{before}")

    def allows(self, not_finite: str, version: int) -> bool:
        """Whether the parameters of `version`, of which the tensor `not_finite` is the first that is not finite, may be kept; the
        first time they may not, that is told."""
        if not not_finite:
            self._finite_at = version
            return True
        if self._finite_at is None:
            return True
        if not self._diverged:
            self._diverged = True
            self._tell(
                None,
                f"{DIVERGED}: {not_finite} holds a NaN or an infinity at version {version}, and "
                f"held none at version {self._finite_at}; no checkpoint is written of it, the last finite one is kept; "
                "lower the learning rate or clip the gradients",
            )
        return False

    def _tell(self, worker: int | None, what: str, then: str = "") -> None:
        if self._fatal:
            self._trouble(worker, what + then, f"{what}; on_nonfinite='raise'", "NonFiniteError")
        else:
            self._trouble(worker, what + then, "", "")
