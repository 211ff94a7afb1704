"""What the members of a round have to agree on, for their mean to mean something."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from plesio.core.events import Fold, Member
from plesio.strategy import Strategy

TURNS = 6
"""Contributions kept per worker, to name the order of its optimizers in an error."""


class Agreement:
    """Looks at each fold of a round. `refuse` is told of what is wrong as `Program.trouble` is.

    Attributes:
        came_late: a worker joined after training began, so that it may be at another optimizer than the others.
        watches: whether folds are to be checked. As long as nobody steps a second optimizer, all take the same turns.
    """

    def __init__(self, strategy: Strategy, refuse: Callable[[None, str, str, str], None]) -> None:
        self.came_late = False
        self._refuse = refuse
        self._gather = strategy.gather
        self._turns = defaultdict[int, deque[int]](partial(deque, maxlen=TURNS))
        self._by_turns = strategy.gather.in_rounds and not strategy.send.stepped
        self._by_samples = self.watches = strategy.weigh.normalised and strategy.every.by_client

    def under(self, strategy: Strategy) -> Agreement:
        """The same under another strategy, from here on."""
        other = Agreement(strategy, self._refuse)
        other.came_late = self.came_late
        return other

    def came(self, worker: int, optimizer: int) -> None:
        """A contribution, by a step of that optimizer. Those of the first, before one of another, need not be told."""
        self.watches = True
        self._turns[worker].append(optimizer)

    def check(self, fold: Fold, workers: int) -> None:
        """Before it is folded, in a run of so many `workers`."""
        if self._by_turns:
            self._check_turns([member.worker for member in fold.members], workers)
        if self._by_samples:
            self._check_samples(fold.members)

    def _check_turns(self, members: Sequence[int], workers: int) -> None:
        """All are of the same optimizer. A worker that came late, or was called off, may be at another."""
        turns = {worker: self._turns[worker] or (0,) for worker in members}
        if len({own[-1] for own in turns.values()}) == 1:
            return
        self._by_turns = False
        orders = (f"worker {worker}: {', '.join(str(1 + one) for one in own)}" for worker, own in turns.items())
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
