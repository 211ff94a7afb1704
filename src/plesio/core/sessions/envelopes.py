"""What a worker and the server tell each other: the core's events and effects, each in an envelope.

Every message names its sender's incarnation and the server's epoch, so that one that comes late is known for what it is.
A request also bears a serial number; its answer bears the same. Tensors travel beside the messages, not in them.

For connections between hosts. Until there is a transport for those, only the fault simulation (`tests/torture`) uses
them: processes of one host talk over pipes, which lose nothing (`plesio.transport.doorbell`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

import msgspec

from plesio.core.events import Cancel, Grant, Joined, Leased, LeaseWanted, Left, Pushed

UNASKED = -1
"""The serial of a message that answers no request, and of a heartbeat that waits for no answer."""


class Level(IntEnum):
    """What an acknowledged contribution survives; as a setting: what an answer to a push waits for."""

    RECEIVED = 0
    """Nothing: it is valid and in the server's hands. Said at once, by a message of its own; the answer follows."""
    APPLIED = 1
    """Any worker's death, any fault of the network. A server that crashes may go back, and says so to each worker."""
    DURABLE = 2
    """The server's crash too: the answer waits for a checkpoint that was begun after the contribution was taken."""


# From a worker

E = TypeVar("E")


class _Request(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """A worker's event, and how many leased batches it dropped since the request before."""

    epoch: int
    event: E
    serial: int = 0
    abandoned: int = 0


class Join(_Request[Joined], frozen=True, tag=True):
    """A request to become a member. `epoch` is 0 if this process has not heard of the server yet; the serial is 0."""


class Push(_Request[Pushed], frozen=True, tag=True):
    """A contribution."""


class Ask(_Request[LeaseWanted], frozen=True, tag=True):
    """A request for data."""


class Bye(_Request[Left], frozen=True, tag=True):
    """The training function returned."""


class _Address(msgspec.Struct, frozen=True, gc=False):
    """Whose message it is, or for whom."""

    worker: int
    incarnation: int
    epoch: int


class Beat(_Address, frozen=True, tag=True):
    """A heartbeat of a worker that waits for the answer to request `serial` (or for none)."""

    serial: int


# From the server


class _Answer(_Address, Generic[E], frozen=True):
    """What the sequencer decided.

    `applied` and `durable` count this seat's contributions, of all incarnations, that are in the parameters and in the
    last checkpoint: what the two levels of acknowledgement cover.
    """

    serial: int
    applied: int
    durable: int
    effect: E


class Go(_Answer[Grant], frozen=True, tag=True):
    """The answer to `Push` and `Join`."""


class Given(_Answer[Leased], frozen=True, tag=True):
    """The answer to `Ask`."""


class CalledOff(_Answer[Cancel], frozen=True, tag=True):
    """A contribution was answered before it came: said unasked, and as the answer to its `Push` if it comes yet."""


class Received(_Address, frozen=True, tag=True):
    """Request `serial` is here and the answer will come: no need to send it again. Also the answer to `Bye`."""

    serial: int


class Fenced(_Address, frozen=True, tag=True):
    """This incarnation is no member (any longer); `latest` is the highest known of its worker."""

    latest: int


Request = Join | Push | Ask | Bye
FromWorker = Request | Beat
Answer = Go | Given | CalledOff
FromServer = Answer | Received | Fenced
