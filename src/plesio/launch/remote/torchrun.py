"""torchrun: its agents keep a store for all workers, by which rank 0 tells the others where the head is.

The store is the agent's of the first host. It outlives restarts of the workers, so that a restarted rank 0 finds the head
that it started before. When that agent ends, the job is over, and so is the head.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from plesio.errors import DeadlineError, ServerLostError
from plesio.launch.remote.find import RunPlace, host_and_port
from plesio.launch.remote.head import START_S, HeadAddress


def tell_of_head(where: RunPlace, start: Callable[[], HeadAddress]) -> HeadAddress:
    """Rank 0: the head that is there already, or one that is started now; the others find it in the store."""
    store = _store(where)
    if store.check([_over(where)]):  # a process that was restarted begins no other run
        raise ServerLostError("the run of this torchrun is over, and its results are written: there is nothing to join")
    if store.check([where.key]):
        known = msgspec.json.decode(store.get(where.key), type=HeadAddress)
        if not known.has_ended() if known.is_ours else _listens(known):
            return known
    head = start()
    store.set(where.key, msgspec.json.encode(head))
    return head


def tell_of_end(where: RunPlace) -> None:
    """The head: the run is over."""
    with suppress(RuntimeError):  # torch's own are of this class: the agent has ended, too
        _store(where).set(_over(where), b"")


def head_in_store(where: RunPlace) -> HeadAddress:
    """What rank 0 put into the store."""
    try:
        store = _store(where)
        store.wait([where.key], timedelta(seconds=START_S))
        return msgspec.json.decode(store.get(where.key), type=HeadAddress)
    except RuntimeError as error:  # torch's own are of this class
        if "timeout" not in str(error).lower():  # the store is gone, and the agent with it
            raise ConnectionError(f"torchrun's store at {where.store}: {error}") from error
        raise DeadlineError(
            f"worker {where.rank} waited {START_S:g} s for rank 0 to start the run's head: it put no address into torchrun's "
            f"store at {where.store}"
        ) from error


def end_with_agent(store: str) -> None:
    """End this process, a head, in good order when the agent that keeps the store has ended."""
    connection = socket.create_connection(host_and_port(store), timeout=START_S)
    connection.settimeout(None)

    def wait() -> None:
        with suppress(OSError):
            connection.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="plesio torchrun", daemon=True).start()


def _over(where: RunPlace) -> str:
    return f"{where.key}/over"


def _store(where: RunPlace) -> Any:
    """Connect with it: each time anew, so that no process that the user forks has the connection, too."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = host_and_port(where.store, "MASTER_ADDR:MASTER_PORT=")
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=START_S))


def _listens(head: HeadAddress) -> bool:
    with suppress(OSError), socket.create_connection((head.host, head.port), timeout=2.0):
        return True
    return False
