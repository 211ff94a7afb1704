"""A network between workers and their head that can be cut."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable


class Proxy:
    """Passes bytes on between whoever connects and `port`, in a thread, until it is closed.

    >>> proxy = Proxy(0); proxy.close()
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.open = True
        """Whether new connections are passed on."""
        self.silent: frozenset[str] = frozenset()
        """The ways that no byte takes, and nobody is told: "up" to the head, "down" to the workers."""
        self.becomes: Callable[[bytes], bytes] = bytes
        """What is passed on in place of a piece, perhaps after a while, on connections in use."""
        self._up: set[socket.socket] = set()
        self.limits: list[int] = []
        """After how many bytes from the head the next connections end; those after them do not."""
        self.damages = 0
        """How many pieces are still to be damaged, of connections in use."""
        self._limit: dict[socket.socket, int] = {}
        self._passed: dict[socket.socket, int] = {}
        self._other: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wanted = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close all connections."""
        self._wanted = True
        while self._wanted:
            time.sleep(0.005)

    def close(self) -> None:
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.02):
                try:
                    self._take(key.fileobj)
                except OSError:
                    self._drop(key.fileobj)
            if self._wanted:
                for one in list(self._other):
                    self._drop(one)
                self._wanted = False
        for one in list(self._other):
            self._drop(one)
        self._listener.close()

    def _take(self, source: socket.socket) -> None:
        if source is self._listener:
            near, _ = source.accept()
            if not self.open:
                near.close()
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._target))
            self._limit[far] = self.limits.pop(0) if self.limits else 1 << 60
            self._up.add(near)
            for one, other in ((near, far), (far, near)):
                self._other[one] = other
                self._selector.register(one, selectors.EVENT_READ)
        elif ("up" if source in self._up else "down") in self.silent:
            time.sleep(0.005)  # it stays where it is
        elif source in self._other:
            came = source.recv(1 << 16)
            if data := self._spoilt(source, came):
                self._other[source].sendall(data)
            if not came or self._passed[source] >= self._limit.get(source, 1 << 60):
                self._drop(source)

    def _spoilt(self, source: socket.socket, data: bytes) -> bytes:
        """What becomes of a piece on its way."""
        before = self._passed.get(source, 0)
        data = data[: max(0, self._limit.get(source, 1 << 60) - before)]
        self._passed[source] = before + len(data)
        if data and self.damages and before > 1000:
            self.damages -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        return self.becomes(data) if data and before > 1000 else data

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._other.get(one)):
            if end is not None and self._other.pop(end, None) is not None:
                self._selector.unregister(end)
                end.close()
