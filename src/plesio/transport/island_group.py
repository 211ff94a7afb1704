"""What the ranks of one island agree by: a few numbers that they add up, and what the first of them, the leader, tells the rest.

Each call is one or two operations of gloo, and all ranks make the same calls in the same order. So an answer is also a barrier:
when the leader has a total, every rank has done what came before.

When a rank ends, gloo raises a RuntimeError in those that wait for it (`broke`). Why it ended is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from plesio.errors import DeadlineError, PlesioError, error_class
from plesio.transport.collective import LOOPBACK, gloo_among

HEAD = 8  # bytes of a length
AT_ONCE = 512 - HEAD  # what goes with the length


class _Raised(msgspec.Struct, tag=True):
    kind: str
    why: str


class _Told(msgspec.Struct, tag=True):
    body: bytes


_decode = msgspec.msgpack.Decoder(_Raised | _Told).decode


class IslandGroup:
    """This one is the `rank`-th of `ranks`, which meet at `store`; `name` says in errors which island it is.

    Args:
        timeout_s: how long the others may take to come to an operation.
        host: this rank's address, as the others reach it.

    Raises:
        DeadlineError: not all ranks came to the store in time.
    """

    def __init__(self, store: Store, rank: int, ranks: int, timeout_s: float, name: str, host: str = LOOPBACK) -> None:
        self.rank, self.ranks, self.name = rank, ranks, name
        self._timeout_s = timeout_s
        patience = timedelta(seconds=timeout_s)
        try:
            self._gloo: Any = gloo_among(PrefixStore("island", store), rank, ranks, patience, host)
        except RuntimeError as error:
            if "timeout" not in str(error).lower():
                raise
            raise DeadlineError(
                f"{name}, rank {rank} of {ranks}: not all of its ranks came within {timeout_s:g} s; start as many "
                "processes as it has ranks"
            ) from error

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each of these over the ranks."""
        sums = torch.tensor(
            [*numbers, 0.0], dtype=torch.float64
        )  # gloo waits for nobody where there is nothing to add up
        self._wait(self._gloo.allreduce([sums]), "an exchange")
        return sums.tolist()[:-1]

    def rows(self, numbers: Sequence[int], what: str = "prepare") -> list[list[int]]:
        """The numbers of each rank, in order; all give as many. `what` it is for, in errors."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(mine) for _ in range(self.ranks)]
        self._wait(self._gloo.allgather([every], [mine]), what)
        return [one.tolist() for one in every]

    def told(self, call: Callable[[], bytes]) -> bytes:
        """What `call` returns at the leader, which alone calls it; a `PlesioError` that it raises is raised in every rank."""
        raised: PlesioError | None = None
        message = b""
        if self.is_leader:
            try:
                message = msgspec.msgpack.encode(_Told(call()))
            except PlesioError as error:
                raised = error
                message = msgspec.msgpack.encode(_Raised(type(error).__name__, str(error)))
        got = _decode(self._broadcast(message))
        if isinstance(got, _Told):
            return got.body
        raise raised or (error_class(got.kind) or PlesioError)(got.why)

    def spread(self, pieces: Sequence[Sequence[tuple[torch.Tensor, bool]]]) -> None:
        """`pieces`: by rank, tensors that become what they are in that rank, where they are wanted."""
        for root, own in enumerate(pieces):
            sizes = [view.nbytes for view, _ in own]
            flat = torch.empty(sum(sizes), dtype=torch.uint8)
            if root == self.rank and own:
                torch.cat([view.contiguous().view(-1).view(torch.uint8) for view, _ in own], out=flat)
            if len(flat):
                self._wait(self._gloo.broadcast(flat, root), "parts that all of them hold")
            for (view, wanted), came in zip(own, torch.split(flat, sizes), strict=True):
                if wanted and root != self.rank:
                    view.copy_(came.clone().view(view.dtype).view(view.shape))

    def _broadcast(self, message: bytes) -> bytes:
        head = torch.zeros(HEAD + AT_ONCE, dtype=torch.uint8)
        start = message[:AT_ONCE]
        head[: HEAD + len(start)] = torch.frombuffer(
            bytearray(len(message).to_bytes(HEAD, "little") + start), dtype=torch.uint8
        )
        self._wait(self._gloo.broadcast(head, 0), "what the first one tells")
        data = head.numpy().tobytes()
        size, data = int.from_bytes(data[:HEAD], "little"), data[HEAD:]
        if size <= AT_ONCE:
            return data[:size]
        rest = torch.zeros(size - AT_ONCE, dtype=torch.uint8)
        if self.is_leader:
            rest.copy_(torch.frombuffer(bytearray(message[AT_ONCE:]), dtype=torch.uint8))
        self._wait(self._gloo.broadcast(rest, 0), "what the first one tells")
        return data + rest.numpy().tobytes()

    def _wait(self, work: Any, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if not late(error):
                raise
            raise self._late(what) from error

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(
            f"{self.name}, rank {self.rank} of {self.ranks}: the other ranks did not come to {what} within "
            f"{self._timeout_s:g} s; all ranks of a worker take the same steps, and call collectives equally often"
        )


class RankLostError(RuntimeError):
    """Another process of the group ended."""


def late(error: RuntimeError) -> bool:
    """Whether a collective failed because not all came in time, as gloo says it."""
    words = str(error).lower()
    return broke(error) and ("timed out" in words or "timeout" in words)


def broke(error: BaseException) -> bool:
    """Whether a collective failed because another process of its group ended."""
    return isinstance(error, (dist.DistError, RankLostError)) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )
