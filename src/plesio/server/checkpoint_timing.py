"""When a checkpoint that somebody asks for may be written.

Theory. The clock, a user, a stop and the end ask for checkpoints. A resumed run goes on from what is written, so two things are
waited for:

1. The order is *settled*. It is not while the run is drained for another phase, while somebody looks at a round, and while rows
   of tables have stepped by a contribution that waits for its fold.
2. Workers on a device have left what they hold (`plesio.transport.held`), which they do at their next exchange. One that is
   frozen is waited for as long as it may be silent; after a stop, in which nobody is late, for `LAST_STATE_S`.

| asked (again), while | idle             | waits            | waits for states                              |
| -------------------- | ---------------- | ---------------- | --------------------------------------------- |
| unsettled            | waits            | waits            | waits for states                              |
| workers lack states  | waits for states | waits for states | the same; at the end of patience: written     |
| neither              | written          | written          | written                                       |
| the run is stopped   | idle             | waits            | waits; patience begins anew                   |

Written is idle again. While it waits, every contribution, tick and round asks again. Whoever asks meanwhile is answered by the
same checkpoint. Where parameters are the workers' own, it is written when they are whole (`Program.when_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plesio.transport.held import CLOSE_S

LAST_STATE_S = 2 * CLOSE_S
"""Seconds after a stop in which workers on a device come to their next exchange, for the last checkpoint."""


class CheckpointTiming:
    """That of one run. Time is an argument of any monotonic clock.

    Args:
        every_s: how often a checkpoint is due.
        silence_s: how long a worker may be silent.

    >>> timing = CheckpointTiming(every_s=60.0, silence_s=5.0)
    >>> timing.asked(10.0, unsettled=True, lacking=list), timing.waits
    (None, True)
    >>> timing.asked(11.0, unsettled=False, lacking=lambda: [3]), timing.awaits_states
    (None, True)
    >>> timing.asked(16.0, unsettled=False, lacking=lambda: [3]), timing.waits
    ([3], False)
    """

    def __init__(self, every_s: float, silence_s: float) -> None:
        self.patience_s = silence_s
        """How long workers are waited for that have not left what they hold."""
        self.waits = False
        """Somebody asked, and it is not written."""
        self._every_s = every_s
        self._due_s = 0.0
        self._since_s: float | None = None  # it waits for what workers hold
        self._stopped = False

    def due(self, now_s: float) -> bool:
        """Whether the clock asks for one. One that is not written then (of a model that diverged) waits for the next time."""
        self._due_s = self._due_s or now_s + self._every_s
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._every_s
        return True

    def asked(self, now_s: float, unsettled: bool, lacking: Callable[[], Sequence[int]]) -> Sequence[int] | None:
        """Somebody asks, for the first time or again. None: it waits. Else it is to be written, without what these workers hold.
        `lacking`: who has not left it yet; to be asked for it they are told to."""
        self.waits = True
        if unsettled:
            return None
        without = lacking()
        if without:
            self._since_s = now_s if self._since_s is None else self._since_s
            if now_s - self._since_s < self.patience_s:
                return None
        self.waits, self._since_s = False, None
        return without

    def stopped(self) -> None:
        """The run is stopped: the last one is about to be asked for."""
        self._stopped, self._since_s, self.patience_s = True, None, LAST_STATE_S

    @property
    def awaits_states(self) -> bool:
        return self._since_s is not None

    @property
    def holds_up_end(self) -> bool:
        """Whether a run that is stopped waits for it."""
        return self._stopped and self.awaits_states

    @property
    def owed(self) -> bool:
        """Whether one is to be written when no worker is left: a stop asks for its own."""
        return self.waits or not self._stopped
