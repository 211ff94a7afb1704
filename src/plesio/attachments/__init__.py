"""What travels with contributions and answers and is not the sequencer's: each in a file of its own, with both of its halves.

A new one is a file, and a line in `ATTACHMENTS`. Its values travel in one field of messages, by name; what a worker says is
checked by the attachment's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.attachments.counters import Counters, Counting
from plesio.attachments.orders import Drawn, Ordering, Orders
from plesio.attachments.schedules import Schedules, Scheduling
from plesio.attachments.speeds import Sharing, Speeds
from plesio.attachments.turns import ClientTurns, Turning
from plesio.protocol.coding import MALFORMED, ProtocolError, decoder_of, encode
from plesio.protocol.worker import Attached

BOTH = (Counters, Counting), (Schedules, Scheduling), (ClientTurns, Turning), (Speeds, Sharing), (Orders, Ordering)
ATTACHMENTS: dict[type[Attachment], type[Half]] = dict(BOTH)
HALVES = {attachment.name: half for attachment, half in ATTACHMENTS.items()}
SAID: dict[str, Callable[[bytes], Any]] = {attachment.name: decoder_of(attachment.said) for attachment in ATTACHMENTS}
HEARD = {name: msgspec.msgpack.Decoder(half.heard).decode for name, half in HALVES.items()}
H = TypeVar("H", bound=Half)


class Attachments:
    """The server's halves, for a run with so many seats."""

    def __init__(self, seats: int) -> None:
        self._all = {attachment.name: attachment(seats) for attachment in ATTACHMENTS}
        self._spoke: set[int] = set()  # whose contribution is not answered
        self.answer: Attached = {}
        """What goes with each answer."""

    def told(self, worker: int, said: Attached, now_s: float = 0.0) -> None:
        """What came with a contribution, at that time.

        Raises:
            ProtocolError: it is nothing that a worker says.
            ConfigurationError: the run cannot go on with it.
        """
        self._spoke.add(worker)
        for name, value in said.items():
            if name not in self._all:
                raise ProtocolError(f"worker {worker} said {name!r}, which has no place in this run")
            self._all[name].now_s = now_s
            self._all[name].told(worker, SAID[name](bytes(value)))
        self.answer = _packed({name: one.answer() for name, one in self._all.items()})

    def turns(self, worker: int) -> str:
        """Where what its clients are to keep lies, if that came with the contribution that is told now."""
        turns = self._all[ClientTurns.name]
        assert isinstance(turns, ClientTurns)
        return turns.taken(worker)

    @property
    def order(self) -> Drawn | None:
        """From what another process drew the pass of a run's only worker, for one that is new."""
        orders = self._all[Orders.name]
        assert isinstance(orders, Orders)
        return orders.now

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

    def beginning(self, worker: int) -> Attached:
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
        found = self._named(next(attachment.name for attachment, half in ATTACHMENTS.items() if half is kind))
        assert isinstance(found, kind)
        return found

    def _named(self, name: str) -> Half:
        if name not in self._all:
            self._all[name] = HALVES[name]()
        return self._all[name]

    def take(self, pushing: Pushing) -> Attached:
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

    def hear(self, told: Attached) -> None:
        """What came with an answer."""
        for name, value in told.items():
            try:
                self._named(name).hear(HEARD[name](value))
            except MALFORMED as error:
                raise ProtocolError(f"the server said no {name}: {error}") from None


def _packed(values: Mapping[str, Any]) -> Attached:
    return {name: msgspec.Raw(encode(value)) for name, value in values.items() if value is not None}
