"""Copies between a model's device and the host's memory, which the server reads and writes.

A CUDA device works through queues (streams). Copies have one of their own beside the model's, so both go on at once:

    model's   | backward ...         optimizer's step       forward ...
    copies'   |   gradients, piece by piece |    version |
    host      |                             ^ waits here, once an exchange, and tells the server

- What is copied out waits for what the model's stream was given before (`behind`).
- What the model's stream is given after `bring` waits for the copy; the host does not.
- Before this worker says anything to the server, the host waits for all copies (`wait`, `settle`): the slot is complete then, and
  the version, which may be overwritten from then on, is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from plesio.system.pinned import Pinned
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, Layout
from plesio.worker.warn import warn

QUESTIONS_MAX = 4


class Copies:
    """Without streams: torch waits for the device at each copy.

    Attributes:
        overlap: whether copies go on while the device computes.
    """

    overlap = False

    def behind(self) -> AbstractContextManager[object]:
        """Inside, `put` copies what the device computed by now."""
        return nullcontext()

    def put(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copy from the device to the host."""
        to.copy_(source)

    def keep(self, source: torch.Tensor) -> None:
        """Its memory is not to be given to others before it is copied, even if the loop lets go of it."""

    def bringing(self) -> AbstractContextManager[object]:
        """Inside, what is copied without blocking comes from the host; the device computes with it afterwards."""
        return nullcontext()

    def bring(self, to: Arena, version: Arena, *kinds: Kind, part: int = ALL_PARTS) -> None:
        """Copy from the host to the device."""
        to.copy_from(version, *kinds, part=part)

    def wait(self, *questions: torch.Tensor) -> list[bool]:
        """Wait for all copies; what these tensors on the device, of one bool each, are."""
        return torch.stack(questions).tolist() if questions else []

    def settle(self) -> None:
        """Wait for what is not over yet."""

    def close(self) -> None:
        """Wait, and let go of the host's memory."""


class StreamedCopies(Copies):
    """On a stream of their own, from and to the host's `pieces` of memory, which are pinned. `streams` is `torch.cuda`."""

    def __init__(self, device: torch.device, streams: Any, pieces: Sequence[torch.Tensor]) -> None:
        self._device, self._streams = device, streams
        self._stream = streams.Stream(device)
        self._over = streams.Event()
        self._pending = False
        self._answers = torch.zeros(QUESTIONS_MAX, dtype=torch.bool)
        self._pinned: Pinned | None = None
        if device.type == "cuda":
            self._answers = self._answers.pin_memory()
            self._pinned = Pinned(pieces, device)
            if self._pinned.trouble:
                warn(
                    f"{self._pinned.trouble}: copies to and from {device} are slower, and none goes on while it computes"
                )
        self._pins = self._pinned is None or not self._pinned.trouble

    @property
    def overlap(self) -> bool:  # type: ignore[override]
        """A CUDA graph that is being recorded takes none."""
        return self._pins and not self._streams.is_current_stream_capturing()

    @contextmanager
    def behind(self) -> Iterator[None]:
        self._pending = True
        self._stream.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._stream):
            yield

    def put(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if source.dtype != to.dtype or source.stride() != to.stride():
            # Torch would copy into pageable memory, and on from there before it has come.
            source = torch.empty_like(to, device=source.device).copy_(source)
        self._copy(to, source)

    def keep(self, source: torch.Tensor) -> None:
        if source.is_cuda:
            source.record_stream(self._stream)

    @contextmanager
    def bringing(self) -> Any:
        with self.behind():
            yield
        self._streams.current_stream(self._device).wait_stream(self._stream)

    def bring(self, to: Arena, version: Arena, *kinds: Kind, part: int = ALL_PARTS) -> None:
        with self.bringing():
            for start, end in to.layout.stretches(kinds, part):
                self._copy(to.memory[start:end], version.memory[start:end])

    def wait(self, *questions: torch.Tensor) -> list[bool]:
        answers = self._answers[: len(questions)]
        with self.behind():
            if questions:
                self._copy(answers, torch.stack(questions))
            self._over.record(self._stream)
        self._over.synchronize()
        self._pending = False
        return answers.tolist()

    def settle(self) -> None:
        if self._pending:
            self.wait()

    def close(self) -> None:
        self.settle()
        if self._pinned is not None:
            self._pinned.close()

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)


def copies_for(device: torch.device, pieces: Sequence[torch.Tensor]) -> Copies:
    """Between a device and these pieces of the host's memory."""
    return StreamedCopies(device, torch.cuda, pieces) if device.type == "cuda" else Copies()


def arena_of(layout: Layout, tensors: Sequence[torch.Tensor]) -> Arena:
    """An arena on the tensors' device with what they hold. That waits on the host while they let go of their memory: the device
    never has the model twice."""
    host = Arena.private(layout)
    for tensor, view in zip(tensors, host.views, strict=True):
        view.copy_(tensor.detach())
        tensor.data = tensor.data.new_empty(0)
    arena = Arena.private(layout, tensors[0].device)
    arena.memory.copy_(host.memory)
    return arena
