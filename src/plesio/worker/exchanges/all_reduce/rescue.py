"""A member whose neighbours left a broken group may wait on in it: gloo itself does not always notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from plesio.transport.board import Board
from plesio.transport.collective import Group

RESCUE_S = 0.4
"""How often a worker looks whether it is stuck in a group known to be broken; at the second look it gives that up."""


def rescue(group: Callable[[], Group], board: Board) -> None:
    """From now on, give up what is stuck in `group()` (the one of the moment) if the board says that it is broken."""

    def watch() -> None:
        stuck: Group | None = None
        while True:
            time.sleep(RESCUE_S)
            now = group()
            suspect = now.busy and board.broken >= now.generation
            if suspect and now is stuck:
                now.abandon()
            stuck = now if suspect else None

    threading.Thread(target=watch, name="rescue", daemon=True).start()
