"""What happens between a worker and the others: at the beginning, at each step of its optimizer, and at the end."""

from __future__ import annotations


class Exchange:
    """One way to exchange; these are the ways that differ in the least.

    Attributes:
        cancels: whether a step under way may be called off.
        local: whether the user's optimizer steps in this process, with the state it has here.
        shares_parameters: whether what one worker writes into its parameters is in everybody's.
    """

    cancels = False
    local = True
    shares_parameters = False

    def begin(self) -> None:
        """Wait for the beginning."""
        raise NotImplementedError

    def step(self) -> None:
        """Take one step of the training loop."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        return False

    def abandon(self) -> None:
        """Drop the step under way."""
        raise NotImplementedError

    def report(self) -> None:
        """Tell the server what was done without it."""

    def end(self) -> None:
        """The training function returned."""
        raise NotImplementedError
