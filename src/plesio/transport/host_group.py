"""What the ranks of an island on one host agree by: socket pairs between the leader and each of the others.

All that they say to each other fits into a few hundred bytes, for which a socket pair is several times faster than gloo.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import torch

from plesio.transport.doorbell import Lookout
from plesio.transport.island_group import HEAD, IslandGroup, RankLostError


class SocketLine:
    """One end of a socket pair: messages of any length, each with its length before it."""

    def __init__(self, end: socket.socket, timeout_s: float) -> None:
        end.settimeout(timeout_s)
        self._end, self._timeout_s = end, timeout_s
        poller = select.poll()
        poller.register(end, select.POLLIN)
        self._lookout = Lookout(poller)

    def send(self, message: bytes) -> None:
        try:
            self._end.sendall(len(message).to_bytes(HEAD, "little") + message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise RankLostError("the other rank is gone") from error

    def receive(self) -> bytes:
        """The next message; TimeoutError if it does not come in time."""
        if not self._lookout.wait(self._timeout_s):
            raise TimeoutError
        return self._exactly(int.from_bytes(self._exactly(HEAD), "little"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self._end.recv(size - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise RankLostError("the other rank is gone")
            data += more
        return data


class HostGroup(IslandGroup):
    """`ends`: the leader's to each of the others, in order, or another rank's to the leader."""

    def __init__(self, ends: Sequence[socket.socket], rank: int, ranks: int, timeout_s: float, name: str) -> None:
        self.rank, self.ranks, self.name = rank, ranks, name
        self._timeout_s = timeout_s
        self._lines = [SocketLine(end, timeout_s) for end in ends]

    def total(self, numbers: Sequence[float]) -> list[float]:
        mine = torch.tensor(numbers, dtype=torch.float64)
        return torch.stack(self._every(mine, "an exchange")).sum(0).tolist()

    def rows(self, numbers: Sequence[int], what: str = "prepare") -> list[list[int]]:
        return [one.tolist() for one in self._every(torch.tensor(numbers, dtype=torch.int64), what)]

    def _every(self, mine: torch.Tensor, what: str) -> list[torch.Tensor]:
        """This tensor of each rank, in order."""
        sent = mine.numpy().tobytes()
        try:
            if self.is_leader:
                together = sent + b"".join([line.receive() for line in self._lines])
                for line in self._lines:
                    line.send(together)
            else:
                self._lines[0].send(sent)
                together = self._lines[0].receive()
        except TimeoutError as error:
            raise self._late(what) from error
        if not together:
            return [mine] * self.ranks
        return list(torch.frombuffer(bytearray(together), dtype=mine.dtype).view(self.ranks, -1))

    def _broadcast(self, message: bytes) -> bytes:
        try:
            if not self.is_leader:
                return self._lines[0].receive()
            for line in self._lines:
                line.send(message)
        except TimeoutError as error:
            raise self._late("what the first one tells") from error
        return message
