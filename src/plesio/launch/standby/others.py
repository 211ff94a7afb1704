"""A head that is started again: whether a standby of its run leads by now. Its run folder says where they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from plesio.errors import ConfigurationError
from plesio.launch.job import Listening
from plesio.protocol.coding import ProtocolError, decoder_of
from plesio.protocol.headship import Place
from plesio.protocol.replication import Challenge
from plesio.transport.connect import connect
from plesio.transport.secure import STANDBY
from plesio.transport.wire import ConnectionLostError

NAME = "standbys.json"
"""In a run folder."""
CONNECT_S = 1.0
_decode: Callable[[bytes], Challenge] = decoder_of(Challenge)


def note(folder: Path, places: Iterable[Place]) -> None:
    """The run in this folder has standbys there."""
    written = folder / f".{NAME}"
    written.write_text(json.dumps(sorted(places)))
    written.replace(folder / NAME)  # at once: this host may die any moment


def refuse_if_led(folder: Path, listening: Listening) -> None:
    """Raise `ConfigurationError` if one of them is head of the run in this folder."""
    try:
        noted: list[list[str | int]] = json.loads((folder / NAME).read_text())
    except FileNotFoundError:
        return
    for host, port in noted:
        if _leads((str(host), int(port)), listening):
            raise ConfigurationError(
                f"the run in {folder} has another head by now, at {host}:{port}, which stood by when this one was lost: stand by "
                f"for it (plesio standby {host}:{port}); or end the run there first, to go on from what is here"
            )


def _leads(place: Place, listening: Listening) -> bool:
    """Whether a head answers there, which a standby does not."""
    with suppress(OSError, ConnectionLostError, ProtocolError):
        wire = connect(*place, listening.token, listening.credentials, STANDBY, CONNECT_S)
        with closing(wire):
            return (frame := wire.receive(CONNECT_S)) is not None and isinstance(_decode(frame.body), Challenge)
    return False
