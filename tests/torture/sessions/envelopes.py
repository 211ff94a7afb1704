"""What a worker and the server tell each other: the core's events and effects, each in an envelope.

Every message names its sender's incarnation and the server's epoch, so that one that comes late is known for what it is.
A request also bears a serial number; its answer bears the same. Tensors travel beside the messages, not in them.

For a network that loses, repeats and reorders single messages, as the fault simulation's does. No run needs them: pipes and
TCP lose nothing but whole connections, which `plesio.transport.session` outlives.
"""

from __future__ import annotations

from enum import IntEnum

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


class Request(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A worker joins (serial 0; epoch 0 if it has not heard of the server yet), contributes, wants data or is done; `abandoned`:
    how many leased batches it dropped since the request before."""

    epoch: int
    event: Joined | Pushed | LeaseWanted | Left
    serial: int = 0
    abandoned: int = 0


class _Address(msgspec.Struct, frozen=True, gc=False):
    """Whose message it is, or for whom."""

    worker: int
    incarnation: int
    epoch: int
    serial: int


class Beat(_Address, frozen=True, tag=True):
    """A heartbeat of a worker that waits for the answer to request `serial` (or for none)."""


class Answer(_Address, frozen=True, tag=True):
    """What the sequencer decided of request `serial`; a contribution may also be called off unasked.

    `applied` and `durable` count this seat's contributions, of all incarnations, that are in the parameters and in the
    last checkpoint: what the two levels of acknowledgement cover.
    """

    applied: int
    durable: int
    effect: Grant | Leased | Cancel


class Received(_Address, frozen=True, tag=True):
    """Request `serial` is here and the answer will come: no need to send it again. Also the answer to `Left`."""


class Fenced(msgspec.Struct, frozen=True, tag=True, gc=False):
    """This incarnation is no member (any longer); `latest` is the highest known of its worker."""

    worker: int
    incarnation: int
    epoch: int
    latest: int


FromWorker = Request | Beat
FromServer = Answer | Received | Fenced
