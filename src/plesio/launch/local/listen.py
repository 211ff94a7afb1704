"""Where a run listens for workers that somebody else starts."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from plesio.errors import ConfigurationError
from plesio.launch.job import Listening
from plesio.transport.limits import BACKLOG
from plesio.transport.secure import unix_address


class DoorSockets(NamedTuple):
    """The sockets of one run: for workers of other hosts, and for those of this one."""

    listening: Listening
    sockets: tuple[socket.socket, ...]

    @classmethod
    def open(cls, listening: Listening) -> DoorSockets:
        """Listen; port 0 takes any that is free."""
        with ExitStack() as ours:
            try:
                family = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM)[0][0]
                far = ours.enter_context(
                    socket.create_server((listening.host, listening.port), family=family, backlog=BACKLOG)
                )
            except OSError as error:
                raise ConfigurationError(
                    f"cannot listen on {listening.host}:{listening.port}: {error.strerror or error}; give an address of this "
                    "host, and a port that is free (0 takes any)"
                ) from error
            listening = replace(listening, port=far.getsockname()[1])
            near = ours.enter_context(socket.socket(socket.AF_UNIX))
            near.bind(unix_address(listening.token, listening.port))
            near.listen(BACKLOG)
            ours.pop_all()
            return cls(listening, (far, near))
