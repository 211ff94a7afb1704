"""What every exchange can do: the step of a worker's optimizer."""

from __future__ import annotations

from typing import Protocol

from plesio.errors import StepCancelled

REPORT_S = 0.05
"""How often a worker reports its work where no server folds it."""


class Exchange(Protocol):
    """What happens between a worker and the others."""

    cancels: bool
    local: bool
    """Whether the user's optimizer steps in this process, with the state it has here."""

    def begin(self) -> None:
        """Wait for the beginning."""
        ...

    def step(self) -> None:
        """One step of the training loop."""
        ...

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        ...

    def abandon(self) -> None:
        """Drop it."""
        ...

    def report(self) -> None:
        """Tell the server what was done without it."""
        ...

    def end(self) -> None:
        """The training function returned."""
        ...


class WithoutServer:
    """What exchanges without a server have in common: the optimizer steps in the worker, and nobody calls work off."""

    cancels = False
    local = True

    def cancelled(self) -> bool:
        """Never."""
        return False

    def abandon(self) -> None:
        """Never asked for."""
        raise StepCancelled("nobody calls work off without a server")
