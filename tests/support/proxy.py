"""A network between workers and their head that can be cut."""

from __future__ import annotations

import selectors
import socket
import threading
import time


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
        self.passes = True
        """Whether bytes are; where they are not, nobody is told."""
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
            for key, _ in self._selector.select(0.02) if self.passes else ():
                try:
                    self._take(key.fileobj)
                except OSError:
                    self._drop(key.fileobj)
            if not self.passes:
                time.sleep(0.02)
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
            for one, other in ((near, far), (far, near)):
                self._other[one] = other
                self._selector.register(one, selectors.EVENT_READ)
        elif source in self._other:
            data = source.recv(1 << 16)
            if not data:
                self._drop(source)
            else:
                self._other[source].sendall(data)

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._other.get(one)):
            if end is not None and self._other.pop(end, None) is not None:
                self._selector.unregister(end)
                end.close()
