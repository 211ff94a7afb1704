"""Where parameters are the workers' own (`strategy.gives_back_mean`): when the server sees them whole, and what is done then.

| a worker                                | its parameters                                                        |
| --------------------------------------- | --------------------------------------------------------------------- |
| computes, or steps                      | may be half written                                                   |
| has come to its exchange                | are those of the current version                                      |
| has ended, or died in its exchange      | are those of the version that it ended with                           |
| of this process, whatever it does       | are those of the current version: it runs from one request to the next |

So checkpoints, evaluations and workers that come late wait until one comes to an exchange. Replicas are the same on all
workers: whoever comes late begins with what the one that was seen holds.
"""

from __future__ import annotations

from collections.abc import Callable

from plesio.core.events import Fold
from plesio.core.sequencer import Sequencer
from plesio.server.assembly import Assembly
from plesio.transport.held import EVERYBODY

UNEVEN = (
    "the workers do not call backward() equally often for each step(), and a round would take the mean of one's first pass and "
    "another's second. If one step() is for several batches, count them on from epoch to epoch (a worker's part of an epoch may "
    "be one batch longer than another's), or leave out batches until the workers' number divides an epoch. If only some workers "
    "call backward() on one more loss, let all do it, on that loss times 0 where it is not wanted"
)
DIFFER = (
    "ended with other weights than another worker did, though both stepped by the same gradients: what a script writes into "
    "weights, gradients and the optimizer is to be the same on every worker; the result is that of the lowest-numbered worker"
)


class WholeParameters:
    """When the parameters in `memory` are whole, as `sequencer` tells; `begun`: the version that the run begins with."""

    def __init__(self, memory: Assembly, begun: int) -> None:
        self._memory = memory
        self._wanted: list[tuple[Callable[[], None], bool]] = []  # what to do, and whether with what a worker holds
        self._settings: dict[int, bytes] = {}  # of each worker's optimizer
        self._holds: bytes | None = None  # what the worker that was seen last holds of its own
        self.go_back(begun)

    def go_back(self, version: int) -> None:
        """The run begins, or goes on, with `version`: parameters in memory."""
        self.begun = version
        self._memory.seen = version, 1

    def when_seen(self, do: Callable[[], None], held: bool) -> None:
        """Do this when a worker comes to its next exchange; `held`: and left what it holds of its own."""
        self._wanted.append((do, held))
        self._memory.board.mirror_wanted = max(self._memory.board.mirror_wanted, 1 + held)

    def came(self, worker: int, number: int, version: int) -> None:
        """`worker`, a member, comes to exchange `number`."""
        if not self._wanted:
            return
        assert self._memory.held is not None, "workers that step have one"
        self._holds = self._memory.held.get(worker, number - 1)
        ready = [one for one in self._wanted if self._holds is not None or not one[1]]
        self._wanted = [one for one in self._wanted if one not in ready]
        self._memory.board.mirror_wanted = 2 if self._wanted else 0
        self._memory.look_at(worker, version)
        for do, _ in ready:
            do()

    def hand_on(self, worker: int) -> None:
        """`worker` begins with what the one that was seen holds."""
        if self._holds and self._memory.held is not None:
            self._memory.held.put(worker, 0, self._holds)

    def look(self, sequencer: Sequencer) -> None:
        """Show what the workers of this process have."""
        if seats := sequencer.members.seats:
            self._memory.look_at(min(seats), sequencer.version)

    def left(self, worker: int, incarnation: int, died: bool, sequencer: Sequencer) -> str:
        """A worker is about to be a member no longer; what is wrong with what it leaves."""
        seat = sequencer.members.seat(worker, incarnation)
        if seat is None:
            return ""
        if not died:
            return "" if self._memory.ended_alike(worker, sequencer.version) else DIFFER
        if self._memory.in_one_process or seat.waiting is not None:
            self._memory.look_at(worker, sequencer.version)
        return ""

    def nobody_left(self) -> None:
        """Nobody comes to an exchange any more."""
        self._holds = None
        wanted, self._wanted = self._wanted, []
        for do, _ in wanted:
            do()

    def told(self, worker: int, settings: bytes) -> None:
        """These are the settings of its optimizer."""
        self._settings[worker] = settings

    def fold(self, fold: Fold) -> str:
        """Where the settings of the members' optimizers differ, the lowest worker's hold for all. What is wrong with the fold."""
        told = [self._settings.get(member.worker, b"") for member in fold.members]
        if any(one != told[0] for one in told):
            assert self._memory.held is not None, "workers that step have one"
            self._memory.held.put(EVERYBODY, fold.version, told[0])
        return UNEVEN if len({member.steps for member in fold.members}) > 1 else ""

    def lost(self, version: int) -> str:
        """What is lost where those that had `version` died."""
        seen, _ = self._memory.seen
        if seen == version:
            return ""
        return f"the workers that had version {version} died: the weights are those of version {seen}"
