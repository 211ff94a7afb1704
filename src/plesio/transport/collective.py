"""Collectives among the workers: torch's gloo, in groups that can be replaced when somebody is gone.

A group is one *generation*: its members never change. They find each other by a key-value store that the server process
holds, on a port that the kernel chose. Nothing of it is encrypted.

When an operation fails, gloo leaves the group of no further use. So a failure is noted and does not raise, the step's other
operations do nothing, and the worker asks for the next generation.

A thread runs a group's operations one after the other. Two at a time would do no harm while all is well. But where one of
two fails, gloo goes on with the other, whose sends wait for a neighbour that waits for this worker in the first: neither
notices before the deadline. Even so gloo misses about one in a hundred deaths of a neighbour
(tests/integration/test_allreduce.py): the thread gives up an operation when others say that the group is broken.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.futures import Future

LOOPBACK = "127.0.0.1"
CONNECT_S, CONNECT_EACH_S = 0.5, 0.02
"""How long a member of a new group waits for each of the others at the first try, and how much longer for each in the
group. They come at once, or died meanwhile; gloo offers no way to be told which: it is what a death at that moment costs."""
LOOK_S = 0.4
"""How often a waiting member checks whether the group is known to be broken; at the second time it gives up."""
_abandoned: list[Any] = []
"""Groups with a stuck operation. They are never closed: that would wait for it."""


class Hosts(NamedTuple):
    """Addresses for a group: this host's, as the other members reach it, and that of the store."""

    own: str = LOOPBACK
    store: str = LOOPBACK


def rendezvous_store(host: str = LOOPBACK) -> TCPStore:
    """The key-value store by which members find each other. It listens on `host` only, on any free port."""
    listener = socket.create_server((host, 0), backlog=128)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def connected_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """A worker's connection to it; waits at most `timeout_s` for it to answer."""
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def gloo_among(store: Store, rank: int, size: int, patience: timedelta, host: str) -> Any:
    """torch's gloo with the others that come to `store`; this one is at the address `host`. RuntimeError: not everybody came."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = patience
    options._devices = [gloo.create_device(hostname=host)]
    return gloo(store, rank, size, options)


class Group:
    """The members of one generation, this one the `rank`-th of `size`; of one member, a group that has nothing to do.

    Args:
        store: where they meet.
        timeout_s: how long an operation may take.
        tries: how often members have tried in vain; each time they take twice as long.
        known_broken: whether another member said that the group is broken.
        host: this member's address.

    Raises:
        RuntimeError: not everybody came.
    """

    def __init__(
        self,
        store: Store | None,
        generation: int,
        rank: int,
        size: int,
        timeout_s: float,
        tries: int = 0,
        known_broken: Callable[[], bool] = lambda: False,
        host: str = LOOPBACK,
    ) -> None:
        self.generation = generation
        self.rank = rank
        self.size = size
        self.broken = ""
        self.done_s = 0.0
        self._timeout = timedelta(seconds=timeout_s)
        self._known_broken = known_broken
        self._operations: SimpleQueue[_Operation | None] = SimpleQueue()
        self._begun: list[Future[torch.Tensor]] = []
        self._gloo: Any = None
        if store is not None and size > 1:
            patience = timedelta(seconds=min(timeout_s, (CONNECT_S + CONNECT_EACH_S * size) * 2**tries))
            store.set_timeout(patience)
            self._gloo = gloo_among(PrefixStore(str(generation), store), rank, size, patience, host)
            threading.Thread(target=self._run, name=f"group {generation}", daemon=True).start()

    @property
    def works(self) -> bool:
        """Whether there are other members, and nothing failed yet."""
        return self._gloo is not None and not self.broken

    def mean(self, tensor: torch.Tensor) -> Future[torch.Tensor]:
        """`tensor` becomes its mean over the members; the future comes even if that failed."""
        if self.works:
            tensor.div_(self.size)
        return self.reduce(tensor)

    def reduce(self, tensor: torch.Tensor, largest: bool = False) -> Future[torch.Tensor]:
        """`tensor` becomes its sum (or its largest) over the members; the future comes even if that failed."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        options.timeout = self._timeout
        return self._begin(tensor, lambda gloo: gloo.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """`tensor` becomes what it is at member `root`; RuntimeError if somebody is gone."""
        if self.size == 1:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, self._timeout
        self._begin(tensor, lambda gloo: gloo.broadcast([tensor], options))
        if not self.finish():
            raise RuntimeError(self.broken)

    def share(self, data: bytes, root: int) -> bytes:
        """The bytes that member `root` has; RuntimeError if somebody is gone."""
        size = torch.tensor([len(data)])
        self.broadcast(size, root)
        body = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == root:
            body.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self.broadcast(body, root)
        return body.numpy().tobytes()

    def _begin(self, tensor: torch.Tensor, launch: Callable[[Any], Any]) -> Future[torch.Tensor]:
        if not self.works:
            return completed(tensor)
        future: Future[torch.Tensor] = Future()
        self._begun.append(future)
        self._operations.put((tensor, launch, future))
        return future

    def _run(self) -> None:
        while (operation := self._operations.get()) is not None:
            tensor, launch, future = operation
            try:
                if self.works:
                    self._wait(launch(self._gloo))
            except RuntimeError as error:
                self.fail(error)
            self.done_s = time.monotonic()
            future.set_result(tensor)

    def _wait(self, work: Any) -> None:
        suspected = False
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_S))
                return
            except RuntimeError:
                if work.is_completed():
                    raise
            if suspected:
                _abandoned.append((self._gloo, work))
                raise RuntimeError("a member reported that the group is broken")
            suspected = self._known_broken()

    def finish(self) -> bool:
        """Wait for what was begun; whether all of it, and everything before, came to its end."""
        begun, self._begun = self._begun, []
        for future in begun:
            future.wait()
        if self.broken:
            self._hang_up()  # so that members that still wait for this one notice
        return not self.broken

    def fail(self, error: RuntimeError) -> None:
        """An operation failed: the group is of no further use."""
        self.broken = self.broken or str(error).strip().split("\n")[0]

    def close(self) -> None:
        self.finish()
        self._hang_up()

    def _hang_up(self) -> None:
        self._operations.put(None)
        self._gloo = None


_Operation = tuple[torch.Tensor, Callable[[Any], Any], Future[torch.Tensor]]
"""What is reduced, what begins it, and what comes when it is over, well or not."""


class _Quiet(dist.Work):
    """The operations of a group as one that never fails: the group notes it. `came` is called when all is well."""

    def __init__(self, group: Group, came: Callable[[], None]) -> None:
        super().__init__()
        self._group = group
        self._came = came

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._group.finish():
            self._came()
        return True


class CurrentGroup(dist.ProcessGroup):
    """What DistributedDataParallel takes for its process group: whatever `group` is at the moment.

    Of the group's operations it uses one besides its communication hook: the sum, over all workers, of which parameters
    took part in the loss. `used` keeps what this worker put into that, added up since it was last set to None. Along with
    it goes `stamp`: `alike` is set to False, on every member, where theirs are not all the same.
    """

    def __init__(self, group: Group, stamp: Callable[[], int] = lambda: 0) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # the stub knows one of two
        self.group = group
        self.used: torch.Tensor | None = None
        self.silent = False
        self.alike = True
        self._stamp = stamp

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any = None) -> dist.Work:  # type: ignore[override]
        """Sum the one tensor over the group, unless this worker is `silent`."""
        (tensor,) = tensors
        mine = tensor.cpu()
        self.used = mine.clone() if self.used is None else self.used + mine
        group = self.group
        if self.silent or not group.works:
            return _Quiet(group, lambda: None)
        stamp = self._stamp()
        sums = torch.cat([mine.long(), torch.tensor([stamp, stamp * stamp])])

        def came() -> None:
            *_, total, squares = sums.tolist()
            self.alike = self.alike and total * total == group.size * squares  # so only where all are the same
            tensor.copy_(sums[: len(tensor)])

        group.reduce(sums)
        return _Quiet(group, came)

    def size(self) -> int:
        """1: it is the hook that divides, by the members there are."""
        return 1

    def getBackendName(self) -> str:
        return "plesio"


def completed(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """A future that holds `tensor` already."""
    future: Future[torch.Tensor] = Future()
    future.set_result(tensor)
    return future
