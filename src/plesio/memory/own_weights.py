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
from functools import partial

from xxhash import xxh3_64_intdigest

from plesio.core.events import Fold
from plesio.errors import ConfigurationError
from plesio.memory.blocks import MEANS, Blocks
from plesio.memory.capability import MemoryCapability
from plesio.memory.worker_states import Once
from plesio.protocol.worker import Contribution
from plesio.tensors.arena import Arena, Kind
from plesio.transport.held import EVERYBODY

UNEVEN = (
    "the workers do not call backward() equally often for each step(), and a round would take the mean of one's first pass and "
    "another's second. If one step() is for several batches, count them on from epoch to epoch (a worker's part of an epoch may "
    "be one batch longer than another's), or leave out batches until the workers' number divides an epoch. If only some workers "
    "call backward() on one more loss, let all do it, on that loss times 0 where it is not wanted"
)
SILENT = "a round weighs by samples, and some workers say theirs and others do not: say worker.count on every worker or on none"
DIFFER = (
    "ended with other weights than another worker did, though both stepped by the same gradients: what a script writes into "
    "weights, gradients and the optimizer is to be the same on every worker; the result is that of the lowest-numbered worker"
)


class OwnWeights(MemoryCapability):
    """The parameters as they were seen last, and when they are whole.

    Args:
        blocks: the run's; `homes` are where workers have their parameters.
        in_one_process: workers run from one request to the next.
        once: has something done that whoever takes over is not to do again, and gives its result.
    """

    def __init__(self, blocks: Blocks, in_one_process: bool, once: Once) -> None:
        self.parameters = blocks.ring[MEANS]
        self._board = blocks.board
        self._homes = blocks.homes
        assert blocks.held is not None, "workers that step have one"
        self._held = blocks.held
        self._in_one_process = in_one_process
        self._once = once
        self._wanted: list[tuple[Callable[[], None], bool]] = []  # what to do, and whether with what a worker holds
        self._settings: dict[int, bytes] = {}  # of each worker's optimizer
        self._holds: bytes | None = None  # what the worker that was seen last holds of its own
        self._seen = -1, 0  # of which version the parameters are, and minus whose
        self._ended = -1, 0  # of which version a worker's were that ended, and their digest

    def begun(self, blocks: Blocks, version: int) -> None:
        self.go_back(version)

    def go_back(self, version: int) -> None:
        """The run begins, or goes on, with `version`: parameters are here."""
        self._seen = version, 1

    def look_at(self, worker: int, version: int) -> None:
        """The parameters of `version` are those that `worker` has, or one with a lower number."""
        if (version, -worker) >= self._seen:
            self._seen = version, -worker
            self._once(partial(self.parameters.copy_from, self._homes[worker]))

    def when_seen(self, do: Callable[[], None], held: bool) -> None:
        """Do this when a worker comes to its next exchange; `held`: and left what it holds of its own."""
        self._wanted.append((do, held))
        self._board.mirror_wanted = max(self._board.mirror_wanted, 1 + held)

    def came(self, worker: int, number: int, version: int) -> None:
        """`worker`, a member, comes to exchange `number`."""
        if not self._wanted:
            return
        self._holds = self._held.get(worker, number - 1)
        holds = self._once(lambda: self._holds is not None)
        ready = [one for one in self._wanted if holds or not one[1]]
        self._wanted = [one for one in self._wanted if one not in ready]
        self._board.mirror_wanted = 2 if self._wanted else 0
        self.look_at(worker, version)
        for do, _ in ready:
            do()

    def joins(self, worker: int) -> None:
        """It begins with what the one that was seen holds."""
        self._once(partial(self._hand_on, worker))

    def _hand_on(self, worker: int) -> None:
        if self._holds:
            self._held.put(worker, 0, self._holds)

    def left(self, worker: int, died: bool, waiting: bool, version: int) -> str:
        """A worker is about to be a member no longer; what is wrong with what it leaves."""
        if not died:
            self.look_at(worker, version)
            before, self._ended = self._ended, (version, self._once(partial(_digest, self._homes[worker])))
            return "" if before[0] != version or before == self._ended else DIFFER
        if self._in_one_process or waiting:
            self.look_at(worker, version)
        return ""

    def nobody_left(self) -> None:
        """Nobody comes to an exchange any more."""
        self._holds = None
        wanted, self._wanted = self._wanted, []
        for do, _ in wanted:
            do()

    def told(self, worker: int, made: Contribution) -> None:
        if made.settings:
            self._settings[worker] = made.settings

    def folding(self, fold: Fold) -> Fold:
        """Where the settings of the members' optimizers differ, the lowest worker's hold for all."""
        told = [self._settings.get(member.worker, b"") for member in fold.members]
        if any(one != told[0] for one in told):
            self._once(partial(self._held.put, EVERYBODY, fold.version, told[0]))
        if len({member.steps for member in fold.members}) > 1:
            raise ConfigurationError(UNEVEN)
        if 0 < sum(member.samples > 0 for member in fold.members) < len(fold.members):
            raise ConfigurationError(SILENT)
        return fold

    def lost(self, version: int) -> str:
        """What is lost where those that had `version` died."""
        seen, _ = self._seen
        if seen == version:
            return ""
        return f"the workers that had version {version} died: the weights are those of version {seen}"


def _digest(arena: Arena) -> int:
    """Of the parameters."""
    ((_, end),) = arena.layout.stretches((Kind.TRAINED, Kind.FROZEN))
    return xxh3_64_intdigest(arena.memory[:end].numpy().data)
