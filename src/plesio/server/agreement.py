"""What the members of a round have to agree on, for their mean to mean something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from plesio.core.events import Fold, Member
from plesio.strategy import Strategy

TURNS = 6
"""Contributions kept per worker, to name the order of its optimizers in an error."""


class Agreement:
    """Looks at each fold of a round; `refuse` is told why it cannot be, and, if it is to end the run, so again.

    Attributes:
        came_late: a worker joined after training began, so that it may be at another optimizer than the others.
    """

    def __init__(self, strategy: Strategy, seats: int, refuse: Callable[[None, str, str, str], None]) -> None:
        self.came_late = False
        self._refuse = refuse
        self._gather = strategy.gather
        self._turns = [deque[int](maxlen=TURNS) for _ in range(seats)]  # of which optimizers its last contributions are
        self._by_turns = strategy.gather.in_rounds and not strategy.send.stepped
        self._by_samples = strategy.weigh.normalised and strategy.every.by_client

    @classmethod
    def of(cls, strategy: Strategy, seats: int, refuse: Callable[[None, str, str, str], None]) -> Agreement | None:
        """None where each contribution is folded as it is."""
        one = cls(strategy, seats, refuse)
        return one if one._by_turns or one._by_samples else None

    def came(self, worker: int, optimizer: int) -> None:
        """A contribution, by a step of that optimizer."""
        self._turns[worker].append(optimizer)

    def check(self, fold: Fold, workers: int) -> None:
        """Before it is folded, in a run of so many `workers`."""
        if self._by_turns:
            self._check_turns([member.worker for member in fold.members], workers)
        if self._by_samples:
            self._check_samples(fold.members)

    def _check_turns(self, members: Sequence[int], workers: int) -> None:
        """All are of the same optimizer. A worker that came late, or was called off, may be at another."""
        if len({self._turns[worker][-1] for worker in members}) == 1:
            return
        self._by_turns = False
        orders = (f"worker {worker}: {', '.join(str(1 + one) for one in self._turns[worker])}" for worker in members)
        why = (
            f"the workers step their optimizers in different orders ({'; '.join(orders)}, counted as prepare was given them): a "
            "round would take the mean of one's gradient and another's zeros; step them in the same order on every worker"
        )
        excused = self.came_late or self._gather.size(workers) < workers
        self._refuse(None, why, "" if excused else why, "ConfigurationError")

    def _check_samples(self, members: Sequence[Member]) -> None:
        """One that says its samples and one that does not weigh by different things."""
        silent = [str(one.worker) for one in members if not one.samples]
        if 0 < len(silent) < len(members):
            why = (
                f"worker {', '.join(silent[:5])} says no samples, and would weigh by steps where others weigh by samples: say "
                "worker.contribute(samples=...), or worker.count(...), on every worker or on none"
            )
            self._refuse(None, why, why, "ConfigurationError")
