"""The two halves of what travels with contributions and answers and is not the sequencer's."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from torch.optim import Optimizer


class Attachment:
    """The server's half, for a run of so many `workers`; `now_s`: when what it is told came."""

    name: ClassVar[str]
    """In messages and checkpoints."""
    said: ClassVar[Any]
    """Of which type is what a worker says."""
    now_s = 0.0

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def told(self, worker: int, value: Any) -> None:
        """This came with a contribution of `worker`.

        Raises:
            ConfigurationError: the run cannot go on with it.
        """
        raise NotImplementedError

    def answered(self, worker: int) -> None:
        """That contribution is dealt with: what came with it is not said again after a resume."""

    def again(self, worker: int) -> None:
        """Another process has this worker's seat."""

    def answer(self) -> Any:
        """What goes with each answer; None: nothing."""
        return None

    def beginning(self, worker: int) -> Any:
        """What goes with the first answer to a process; None: nothing."""
        return self.answer()

    def kept(self) -> Any:
        """What a checkpoint keeps: all that came, but with contributions that were not answered."""
        raise NotImplementedError

    def restore(self, kept: Any) -> None:
        """Go on from that; all workers are new processes."""
        raise NotImplementedError


class Pushing(Protocol):
    """What a worker sends a contribution of."""

    optimizer: Optimizer


class Half:
    """The worker's half."""

    heard: ClassVar[Any]
    """Of which type is what the server answers."""

    def take(self, pushing: Pushing) -> Any:
        """What goes with the contribution that is sent now; None: nothing."""
        return None

    def lost(self) -> None:
        """What went with the last one may be lost."""

    def hear(self, value: Any) -> None:
        """This came with an answer."""
