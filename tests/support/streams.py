"""Streams that every machine has: what a stream of copies is given, it does as late as it may, or at once.

The model's own stream is this thread, which has always done all. So a copy that is late finds what the loop made of its source
since, and one that is early what the source was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from plesio.tensors.arena import CPU
from plesio.worker.replicas.copies import StreamedCopies


class FakeStream:
    """Does what it was given when somebody waits for it."""

    def __init__(self, name: str, streams: FakeStreams) -> None:
        self.name, self._streams = name, streams
        self.queue: list[Callable[[], object]] = []

    def wait_stream(self, stream: FakeStream) -> None:
        self._streams.log.append(f"{self.name} waits for {stream.name}")
        stream.drain()

    def drain(self) -> None:
        while self.queue:
            self.queue.pop(0)()


class FakeEvent:
    def __init__(self, streams: FakeStreams) -> None:
        self._streams = streams
        self._stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self._stream = stream

    def synchronize(self) -> None:
        assert self._stream is not None, "an event that was not recorded does not make anybody wait"
        self._streams.log.append(f"host waits for {self._stream.name}")
        self._streams.waited()
        self._stream.drain()


class FakeStreams:
    """In place of `torch.cuda`.

    Attributes:
        log: who waited for whom, and "copy".
        waited: called when the host waits.
    """

    def __init__(self, late: bool = True) -> None:
        self.late = late
        self.log: list[str] = []
        self.capturing = False
        self.waited: Callable[[], object] = lambda: None
        self._model = self._current = FakeStream("model", self)

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream("copies", self)

    def Event(self) -> FakeEvent:
        return FakeEvent(self)

    def current_stream(self, device: torch.device) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def do(self, work: Callable[[], object]) -> None:
        """Work for the current stream."""
        assert self._current is not self._model, "a copy is work for the stream of copies"
        if self.late:
            self._current.queue.append(work)
        else:
            work()


class FakeCopies(StreamedCopies):
    """Copies on fake streams."""

    def __init__(self, streams: FakeStreams, device: torch.device = CPU) -> None:
        super().__init__(device, streams, ())
        self.fakes = streams
        self.put_in: list[torch.Tensor] = []  # each place that something was copied to

    def put(self, to: torch.Tensor, source: torch.Tensor) -> None:
        self.put_in.append(to)
        super().put(to, source)

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        assert (to.dtype, to.stride()) == (source.dtype, source.stride()), "else torch takes a detour, and waits"
        self.fakes.log.append("copy")
        self.fakes.do(lambda: to.copy_(source, non_blocking=True))
