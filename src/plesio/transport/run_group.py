"""`torch.distributed` among the workers of a run: they are its default process group, so that what asks for it gets an answer.

It knows rank and size from the beginning. Its members meet when a collective first needs them, by a store that the server
holds from then on. While a worker waits in a collective it asks the server who is left: gloo does not always notice a death,
and cannot tell it from the end of a training function.

A collective is of all workers: one without a worker that died, or that has ended, raises. Who waits in one while the others
wait for its contribution makes way: they fold without it, and come.

`StepGroup.sum` is of those that still train, for what belongs to a step: the last step of uneven parts is not everybody's. A
sum in which a member is missing comes to its end for nobody, so all that are left repeat it without that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from plesio.errors import ConfigurationError, DeadlineError, PlesioError, StopRun, WorkerLostError
from plesio.protocol.worker import GroupGiven
from plesio.transport.batch_norm import synchronised
from plesio.transport.collective import LOOK_S, LOOPBACK, connected_store, gloo_among

MEET_S = 0.005
"""How often one that waits for the others to come looks for them."""
NOTICE_S = 5.0
"""How long the server may take to hear why an operation failed, and how long two may wait for each other."""
OPERATIONS = (
    *(
        "_allgather_base",
        "_reduce_scatter_base",
        "all_gather_single",
        "all_gather_single_coalesced",
        "all_to_all_single",
    ),
    *(
        "allgather",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
        "allreduce",
        "allreduce_coalesced",
        "alltoall",
    ),
    *("alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier", "recv", "recv_anysource", "reduce"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("scatter", "send"),
)
_abandoned: list[Any] = []
"""What has an operation that nobody ends: to let go of it would wait for that."""
_made: list[RunGroup] = []
"""A group on its way through torch."""


class _LaterStore(Store):
    """The store that the server holds, once something is asked of it."""

    def __init__(self, connected: Callable[[], Store]) -> None:
        super().__init__()
        self._connected = connected


def _passed_on(name: str) -> Callable[..., Any]:
    return lambda self, *args, **named: getattr(self._connected(), name)(*args, **named)


for _name in ("add", "append", "check", "compare_set", "delete_key", "get", "multi_get", "multi_set", "set", "wait"):
    setattr(_LaterStore, _name, _passed_on(_name))


class RunGroup(dist.ProcessGroup):
    """The workers of a run, this one the `rank`-th of `size`.

    Args:
        ask: the server, where members meet, and who is left.
        make_way: lets a round that waits for this worker go on without it; whether that was possible.
        timeout_s: how long a collective may take.
    """

    of_those_left = False
    """Whether an operation goes on without workers that have ended."""

    def __init__(
        self, rank: int, size: int, ask: Callable[[], GroupGiven], make_way: Callable[[], bool], timeout_s: float
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows one of two
        self._mine, self._all = rank, size
        self._ask = ask
        self._make_way = make_way
        self._timeout_s = timeout_s
        self._given = GroupGiven(0)
        self._gloo: Any = None
        self._tcp: Store | None = None
        self._what, self._began_s = "", 0.0  # the operation under way
        self.store = _LaterStore(self._connected)

    def rank(self) -> int:
        return self._mine

    def size(self) -> int:
        return self._all

    def getBackendName(self) -> str:
        return "gloo"

    def _connected(self) -> Store:
        self._tcp = self._tcp or connected_store(LOOPBACK, self._ask().port, self._timeout_s)
        return self._tcp

    def _do(self, name: str, *args: Any, **named: Any) -> Any:
        self._what, self._began_s = f"torch.distributed's {name.strip('_')} on worker {self._mine}", time.monotonic()
        try:
            if self._gloo is None:
                self._meet()
            work = getattr(self._gloo, name)(*args, **named)
            if work is not None and not name.startswith(("send", "recv")):
                self._wait(work)
            return work
        except RuntimeError:
            self._gloo = None  # which hangs up, so that others that wait for this one notice
            before, failed_s = self._given.ended, time.monotonic()
            while time.monotonic() - failed_s < NOTICE_S:
                self._look(before)
                time.sleep(MEET_S)
            raise

    def _meet(self) -> None:
        """Wait for the others to come here, too, and connect with them."""
        while True:
            self._look()
            members = [one for one in range(self._all) if one not in self._given.ended]
            among = PrefixStore(f"{type(self).__name__} {members}", self._connected())
            among.set(str(self._mine), "here")
            if among.check([str(one) for one in members]):
                break
            self._check_wait()
            time.sleep(MEET_S)
        rank, size = members.index(self._mine), len(members)
        gloo = gloo_among(among, rank, size, timedelta(seconds=self._timeout_s), LOOPBACK)
        self._gloo = dist.ProcessGroup(among, rank, size)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._gloo._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)

    def _wait(self, work: Any) -> None:
        before = self._given.ended
        try:
            while True:
                try:
                    work.wait(timedelta(seconds=LOOK_S))
                    return
                except RuntimeError:
                    if work.is_completed():
                        raise
                self._look(before)
                self._check_wait()
        except (PlesioError, _WithoutOne):
            _abandoned.append((self._gloo, work))
            self._gloo = None
            raise

    def _look(self, before: tuple[int, ...] | None = None) -> None:
        """Ask who is left, and whether that is enough. `before`: those that had ended when the operation began."""
        given = self._given = self._ask()
        if given.died:
            raise WorkerLostError(
                f"{self._what}: worker {', '.join(map(str, given.died))} died, and a collective is of all workers; resume "
                "from the run's last checkpoint, or start it again"
            )
        if self.of_those_left and before not in (None, given.ended):
            raise _WithoutOne
        if given.ended and not self.of_those_left:
            if given.stop:
                raise StopRun("the run is over")
            raise ConfigurationError(
                f"{self._what}: worker {', '.join(map(str, given.ended))} has come to the end of its training function, and a "
                "collective is of all workers; let all call it equally often (a part of an epoch may be one batch longer)"
            )

    def _check_wait(self) -> None:
        waited_s = time.monotonic() - self._began_s
        if waited_s > LOOK_S and self._given.awaited and not self._make_way() and waited_s > NOTICE_S:
            raise ConfigurationError(
                f"{self._what}: it waits for the other workers, and they wait for its contribution to a round; call it on all "
                "workers after equally many steps (a worker's part of an epoch may be one batch longer than another's)"
            )
        if waited_s > self._timeout_s:
            raise DeadlineError(
                f"{self._what}: not all workers came to it within {self._timeout_s:.0f} s; let all call it equally often"
            )


for _name in OPERATIONS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(RunGroup, _name, lambda self, *args, _name=_name, **named: self._do(_name, *args, **named))


class _WithoutOne(Exception):
    """A member has ended: without it once more."""


class StepGroup(RunGroup):
    """The workers that still train."""

    of_those_left = True

    def sum(self, tensor: torch.Tensor) -> None:
        """`tensor` becomes its sum over them."""
        mine = tensor.clone()
        while True:
            try:
                self._do("allreduce", [tensor])
                return
            except _WithoutOne:
                tensor.copy_(mine)


@contextmanager
def default_group(rank: int, size: int, *rest: Any) -> Iterator[None]:
    """Inside, workers are the default process group of `torch.distributed`; the arguments are those of `RunGroup`.

    So `dist.is_initialized()`, `dist.get_rank()`, collectives and `dist.new_group` (whose groups are gloo's own) work as under
    torchrun, and SyncBatchNorm takes the statistics of all workers' batches. Trainers ask `dist.is_initialized()`.
    """
    if not hasattr(dist.Backend, "PLESIO"):
        dist.Backend.register_backend("plesio", lambda *_: _made.pop(), devices=["cpu", "cuda"])
    group = RunGroup(rank, size, *rest)
    _made.append(group)
    timeout = timedelta(seconds=group._timeout_s)
    dist.init_process_group("plesio", store=group.store, rank=rank, world_size=size, timeout=timeout)
    dist.distributed_c10d._world.pg_map[group] = "gloo", group.store
    try:
        with synchronised(StepGroup(rank, size, *rest).sum):
            yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
