"""Another strategy in flight: which phase of its strategy a run is in, and when it goes over to another.

Theory. The plan of a strategy says at which versions its phases begin; `Switched` says it of one that begins when it is asked
for. The run is then drained, and begins anew where it is:

1. From then on nobody is granted. What comes is concluded under the rules of before: folded, held, or discarded. Nothing is
   called off. Who joins waits, too.
2. When every member waits, or has left, what is pending is folded, however much of it there is.
3. The sequencer takes over the rules of the new phase (`Switch`). Version, members, leases and numbers go on, and clocks begin
   at 0.
4. All members are shown that version, and answered.

Promise: another phase begins when every member waits, and nothing is pending.

So a member waits once, for the slowest; as elsewhere one that is silent for too long is evicted. A phase that begins at a version
begins with exactly that one where everybody waits for each fold. Elsewhere the work that was under way is folded first.
"""

from __future__ import annotations

from plesio.core.events import Switch
from plesio.strategy import Strategy


class Switching:
    """Of one run.

    Attributes:
        now: the phase that it is in.
        following: the one that it is drained for; None: it is not.
        due_at: the version at which another begins.

    >>> from plesio.strategy.recipes import async_sgd, phases, sync_sgd
    >>> one = Switching(phases(sync_sgd(), (100, async_sgd())))
    >>> one.due_at, one.strategy.name, one.following
    (100, 'sync_sgd', None)
    >>> one.due(100, now_s=5.0), one.following
    (True, 1)
    >>> one.begin(now_s=6.0), one.strategy.name, one.due_at
    ((Switch(phase=1, waited_s=1.0),), 'async_sgd', inf)
    """

    def __init__(self, strategy: Strategy, now: int = 0, version: int = 0) -> None:
        self.whole = strategy
        self.now = now
        self.following: int | None = None
        self.due_at = strategy.next_phase_at(version)
        self._since_s = 0.0

    @property
    def strategy(self) -> Strategy:
        """The one whose rules hold."""
        return self.whole.phases[self.now]

    def due(self, version: int, now_s: float) -> bool:
        """There is the version at which another phase begins. Whether the run is to be drained."""
        self.due_at = self.whole.next_phase_at(version)
        return self.ask(self.whole.phase_at(version), now_s)

    def ask(self, phase: int, now_s: float) -> bool:
        """The run is to go over to `phase`; if it is drained already, to this one instead. Whether it is to be drained."""
        assert 0 <= phase < len(self.whole.phases), "there is such a phase"
        if self.following is not None:
            self.following = phase
        elif phase != self.now:
            self.following, self._since_s = phase, now_s
        return self.following is not None

    def begin(self, now_s: float) -> tuple[Switch, ...]:
        """It is drained, and goes on in the phase that follows, if that is another one by now."""
        assert self.following is not None, "it is drained for one"
        was, self.now, self.following = self.now, self.following, None
        return (Switch(self.now, now_s - self._since_s),) if self.now != was else ()
