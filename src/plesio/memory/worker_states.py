"""What workers hold of their own (an inner optimizer's state, what a codec left out), as they leave it for the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from plesio.memory.blocks import Blocks
from plesio.transport.held import Held

Once = Callable[[Callable[[], Any]], Any]
"""Has something done that whoever takes over is not to do again, and gives its result."""


class WorkerStates:
    """Where they leave nothing."""

    leaves = False
    """Whether they leave anything."""

    def of(self, worker: int, number: int) -> bytes | None:
        """What `worker` goes on with after its contribution `number`; None if it left nothing."""
        return None

    def left(self, worker: int, number: int) -> bytes | None:
        """What `worker` itself left after that."""
        return None

    def lacking(self, numbers: Mapping[int, int]) -> list[int]:
        """Which workers have not left yet what they held after the contribution of this number; as long as there are any, all are
        asked to."""
        return []

    def hand_to(self, worker: int, state: bytes | None) -> bool:
        """The next process of `worker` begins with this; None: with nothing. Whether it begins with it."""
        return False

    def give(self, numbers: Mapping[int, int], states: Mapping[int, bytes]) -> None:
        """Have those who wait, each after its contribution of this number, go on with its state of these, or with nothing."""


class LeftStates(WorkerStates):
    """What lies in `held`; `in_one_process`: it is left at every exchange."""

    leaves = True

    def __init__(self, held: Held, blocks: Blocks, in_one_process: bool, once: Once) -> None:
        self._held, self._blocks = held, blocks
        self._in_one_process = in_one_process
        self._once = once

    @property
    def _in_phase(self) -> bool:
        """Whether workers hold anything in this one."""
        blocks = self._blocks
        return len(blocks.phases) == 1 or blocks.strategy.keeps_own or blocks.seats == 1

    def of(self, worker: int, number: int) -> bytes | None:
        return self._held.get_all(worker, number) if self._in_phase else None

    def left(self, worker: int, number: int) -> bytes | None:
        return self._held.left(worker, number) if self._in_phase else None

    def lacking(self, numbers: Mapping[int, int]) -> list[int]:
        held, blocks = self._held, self._blocks
        if self._in_one_process or not blocks.strategy.keeps_own or len(blocks.phases) > 1:
            return []
        lacking: list[int] = self._once(lambda: [one for one, number in numbers.items() if not held.has(one, number)])
        held.asked = bool(lacking)
        return lacking

    def hand_to(self, worker: int, state: bytes | None) -> bool:
        handed: bool = self._once(partial(self._hand_to, worker, state))
        return handed

    def _hand_to(self, worker: int, state: bytes | None) -> bool:
        self._held.forget(worker)
        return state is not None and self._held.put_all(worker, 0, state)

    def give(self, numbers: Mapping[int, int], states: Mapping[int, bytes]) -> None:
        self._once(partial(self._give, numbers, states))

    def _give(self, numbers: Mapping[int, int], states: Mapping[int, bytes]) -> None:
        for worker in range(self._blocks.seats):
            if worker in numbers:
                self._held.give(worker, numbers[worker], states.get(worker, b""))
            else:
                self._held.forget(worker)
