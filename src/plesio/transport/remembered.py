"""A channel of a process that another one may go on from: what comes and goes is in its log (`plesio.system.recovery_log`).

Each message that it sends has a number: whoever goes on may send it again, and it is dropped there. Descriptors that came after
the other process was forked are lost with this one. In their place stand ends of lines whose other end is closed.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from plesio.protocol.coding import encode
from plesio.system.recovery_log import RecoveryLog
from plesio.transport.channel import DESCRIPTORS_MAX, NUMBERED_HEAD, Channel, ChannelClosedError, M


class RememberedChannel(Channel[M]):
    """As a `Channel`; it reads and writes by `log`."""

    def __init__(self, log: RecoveryLog, connection: socket.socket, kinds: type[M] | object, peer: str) -> None:
        super().__init__(connection, kinds, peer)
        self._log = log
        self._sent = 0
        self._came: list[int] = []  # descriptors of the message that is read

    @classmethod
    def attached(cls, log: RecoveryLog, descriptor: int, kinds: Any, peer: str) -> RememberedChannel[Any]:
        """The end behind a descriptor; takes the descriptor over."""
        return cls(log, socket.socket(fileno=descriptor), kinds, peer)

    @property
    def has_room(self) -> bool:
        return self._log.once(lambda: super(RememberedChannel, self).has_room)

    def _number(self) -> int:
        self._sent += 1
        return self._sent

    def _put(self, data: bytes, descriptors: Sequence[int]) -> None:
        if not self._log.once(partial(self._has_put, data, descriptors)):
            raise ChannelClosedError(self.peer)

    def _has_put(self, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            super()._put(data, descriptors)
        except ChannelClosedError:
            return False
        return True

    def _is_readable(self, timeout_s: float) -> bool:
        return self._log.once(lambda: super(RememberedChannel, self)._is_readable(timeout_s))

    def _begun(self, size: int) -> tuple[bytes, Sequence[int]]:
        self._came = []
        count = self._log.once(self._look_for_descriptors)
        head = self._log.read(self.fileno(), size)
        return head, self._came or [_of_nobody() for _ in range(count)]

    def _look_for_descriptors(self) -> int:
        """How many come with the next message. They are this process's from now on, though the message is still there."""
        numbers = array("i")
        with suppress(ConnectionResetError):
            _, beside, _, _ = self._socket.recvmsg(
                1, socket.CMSG_LEN(DESCRIPTORS_MAX * numbers.itemsize), socket.MSG_PEEK
            )  # `socket.recv_fds` does not pass flags on
            for _, _, data in beside:
                numbers.frombytes(data)
        self._came = list(numbers)
        return len(self._came)

    def _more(self, size: int) -> bytes:
        return self._log.read(self.fileno(), size)


def say_anew(channel: Channel[Any], message: object) -> None:
    """Send what is in no log: whoever has just woken is not the dead process."""
    body = encode(message)
    Channel._put(channel, NUMBERED_HEAD.pack(len(body), 0) + body, ())


def _of_nobody() -> int:
    """An end of a line whose other end is closed."""
    end, other = socket.socketpair()
    other.close()
    return end.detach()
