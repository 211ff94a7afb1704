"""The server's ends of what connects it with the workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from plesio.protocol.worker import Hello, ToServer
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly
from plesio.transport.doorbell import MessageReader
from plesio.transport.world import DIRECT, World


@dataclass(slots=True)
class Line:
    """Everything between the server and one worker process."""

    worker: int
    incarnation: int
    channel: Channel[ToServer]
    messages: MessageReader
    answer: int
    answers: int = 0  # so far
    hello: Hello | None = None
    late: bool = False  # the others' models were known when it came
    welcomed: bool = False
    ready: bool = False
    leaving: bool = False  # it is told to end, with its next answer
    finished: bool = False
    early: bool = False  # it left before its training function was over
    gone: bool = False

    @classmethod
    def open(cls, worker: int, incarnation: int, descriptors: Iterator[int], world: World = DIRECT) -> Line:
        """The line to `worker` over the next three descriptors: channel, push, answer."""
        line = cls(
            worker=worker,
            incarnation=incarnation,
            channel=world.attach(next(descriptors), ToServer, f"worker {worker}"),
            messages=MessageReader(next(descriptors), world.read),
            answer=next(descriptors),
        )
        os.set_blocking(line.answer, False)
        return line

    def say(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        """Send on the channel; that the worker is gone is told by its doorbell."""
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(message, descriptors)

    def close(self) -> None:
        self.gone = True
        close_quietly(self.messages.descriptor, self.answer)
        self.channel.close()
