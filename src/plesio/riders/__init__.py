"""What travels with contributions and answers and is not the sequencer's: each in a file of its own, with both of its halves.

A new one is a file, and a line in `RIDERS`. Its values travel in one field of messages, by name; what a worker says is checked by
the rider's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from plesio.protocol.coding import MALFORMED, ProtocolError, decoder_of, encode
from plesio.protocol.worker import Riding
from plesio.riders.counters import Counters, Counting
from plesio.riders.rider import Half, Pushing, Rider
from plesio.riders.schedules import Schedules, Scheduling
from plesio.riders.turns import ClientTurns, Turning

RIDERS: dict[type[Rider], type[Half]] = {Counters: Counting, Schedules: Scheduling, ClientTurns: Turning}
HALVES = {rider.name: half for rider, half in RIDERS.items()}
SAID: dict[str, Callable[[bytes], Any]] = {rider.name: decoder_of(rider.said) for rider in RIDERS}
HEARD = {name: msgspec.msgpack.Decoder(half.heard).decode for name, half in HALVES.items()}
H = TypeVar("H", bound=Half)


class Riders:
    """The server's halves, for a run with so many seats."""

    def __init__(self, seats: int) -> None:
        self._all = {rider.name: rider(seats) for rider in RIDERS}
        self._spoke: set[int] = set()  # whose contribution is not answered
        self.answer: Riding = {}
        """What goes with each answer."""

    def told(self, worker: int, said: Riding) -> None:
        """What came with a contribution.

        Raises:
            ProtocolError: it is nothing that a worker says.
            ConfigurationError: the run cannot go on with it.
        """
        self._spoke.add(worker)
        for name, value in said.items():
            if name not in self._all:
                raise ProtocolError(f"worker {worker} said {name!r}, which has no place in this run")
            self._all[name].told(worker, SAID[name](bytes(value)))
        self.answer = _packed({name: one.answer() for name, one in self._all.items()})

    def turns(self, worker: int) -> str:
        """Where what its clients are to keep lies, if that came with the contribution that is told now."""
        turns = self._all[ClientTurns.name]
        assert isinstance(turns, ClientTurns)
        return turns.taken(worker)

    def answered(self, worker: int) -> None:
        """The contribution of `worker` is dealt with."""
        if worker in self._spoke:
            self._spoke.discard(worker)
            for one in self._all.values():
                one.answered(worker)

    def again(self, worker: int) -> None:
        """Another process has this worker's seat."""
        for one in self._all.values():
            one.again(worker)

    def beginning(self, worker: int) -> Riding:
        """What goes with the first answer to a process."""
        return _packed({name: one.beginning(worker) for name, one in self._all.items()})

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: one.kept() for name, one in self._all.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from that; all workers are new processes."""
        self._spoke.clear()
        for name, one in self._all.items():
            one.restore(kept.get(name))
        self.answer = _packed({name: one.answer() for name, one in self._all.items()})


class Halves:
    """A worker's halves, of which each is there once it is asked for, or told something."""

    def __init__(self) -> None:
        self._all: dict[str, Half] = {}

    def of(self, kind: type[H]) -> H:
        found = self._named(next(rider.name for rider, half in RIDERS.items() if half is kind))
        assert isinstance(found, kind)
        return found

    def _named(self, name: str) -> Half:
        if name not in self._all:
            self._all[name] = HALVES[name]()
        return self._all[name]

    def take(self, pushing: Pushing) -> Riding:
        """What goes with the contribution that is sent now."""
        taken = {}
        for name, one in self._all.items():
            if (value := one.take(pushing)) is not None:
                taken[name] = msgspec.Raw(encode(value))
        return taken

    def lost(self) -> None:
        """What went with the last one may be lost."""
        for one in self._all.values():
            one.lost()

    def hear(self, told: Riding) -> None:
        """What came with an answer."""
        for name, value in told.items():
            try:
                self._named(name).hear(HEARD[name](value))
            except MALFORMED as error:
                raise ProtocolError(f"the server said no {name}: {error}") from None


def _packed(values: Mapping[str, Any]) -> Riding:
    return {name: msgspec.Raw(encode(value)) for name, value in values.items() if value is not None}
