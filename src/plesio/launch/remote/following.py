"""How a worker connects with its head: wherever one is found; or, once it promised or voted for one, there and nowhere else.

    votes for a standby --> the line to the old head is cut --> it connects with the standby, and waits until that is head

So a worker is never answered by a head that it refuses as a voter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from plesio.launch.remote.addresses import Addresses
from plesio.launch.remote.head import HeadAddress
from plesio.launch.standby.voting import Voting, dials, new_name
from plesio.protocol.headship import Place
from plesio.transport.connect import connect
from plesio.transport.secure import Credentials
from plesio.transport.wire import ConnectionLostError, Wire


class Following:
    """One worker's.

    Args:
        find: where the head is, and what to prove there; it may be another by now.
        addresses: those that the worker was told of, where they are known beforehand.
        credentials: where the head gives none.
    """

    def __init__(
        self, find: Callable[[], HeadAddress], addresses: Addresses | None, credentials: Credentials | None
    ) -> None:
        self._find, self._addresses, self._credentials = find, addresses, credentials
        self._voting: Voting | None = None
        self._lock = threading.Lock()  # of what follows
        self._follows: Place | None = None
        self._wire: Wire | None = None
        self._at: Place | None = None  # where that goes

    def dial(self, ticket: bytes) -> Wire:
        """A new connection. Raises `OSError` or `ConnectionLostError` where nobody is."""
        head = self._find()
        if self._addresses is None or self._follows:
            addresses = Addresses([self._follows or (head.host, head.port)])
        else:
            addresses = self._addresses
        given = head.token, head.credentials or self._credentials, ticket
        wire = addresses.at_one(lambda host, port, timeout_s: connect(host, port, *given, timeout_s))
        with self._lock:
            if self._follows not in (None, addresses.now):
                wire.close()
                raise ConnectionLostError(f"this worker follows another head than that at {addresses} by now")
            self._wire, self._at = wire, addresses.now
        return wire

    def vote(self) -> None:
        """Vote on who is head from now on, in threads."""
        if self._voting is None:
            head = self._find()
            places = self._addresses.all if self._addresses is not None else [(head.host, head.port)]
            dial = dials(head.token, head.credentials or self._credentials)
            self._voting = Voting(new_name(), places, dial, self.follow)

    def follow(self, place: Place) -> None:
        """The head is there, or will be: go there, and nowhere else."""
        with self._lock:
            self._follows = place
            if self._wire is not None and self._at != place:
                self._wire.cut()

    def close(self) -> None:
        """Vote no more, once others do without."""
        if self._voting is not None:
            self._voting.leave()
