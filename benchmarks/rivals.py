"""Physical limits and rivals for exchange.py, each `(params, workers, seconds) -> steps/s of all workers together`.

One step: push a gradient of P float32 that lies ready, apply `w -= lr * g` at the owner, pull the parameters. Every
rival is given its best honest case: default options, no copy it does not need, one thread a process, a warm-up.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed import rpc

LR = 1e-9
SCALE = 1e-6

Rival = Callable[[int, int, float], float]


class RivalError(RuntimeError):
    """A rival's process died or did not end in time."""


# --- timing ----------------------------------------------------------------------------------------------------------


def steps_per_s(step: Callable[[], object], seconds: float) -> float:
    """Rate of `step` over about `seconds`, and over at least two steps.

    Uncounted steps before it warm up; uncounted ones after it keep the load on a neighbour that is still counting.
    """
    _repeat(step, 0.2 * seconds, least=1)
    start_s = time.perf_counter()
    count = _repeat(step, seconds, least=2)
    rate = count / (time.perf_counter() - start_s)
    _repeat(step, 0.1 * seconds, least=0)
    return rate


def _repeat(step: Callable[[], object], seconds: float, least: int) -> int:
    end_s = time.perf_counter() + seconds
    count = 0
    while count < least or time.perf_counter() < end_s:
        step()
        count += 1
    return count


# --- physical limits -------------------------------------------------------------------------------------------------


def memcpy(params: int, workers: int, seconds: float) -> float:
    """One thread copying P float32 twice, 8P bytes a step: bounds, on one core, what copies in and out."""
    owner, local, gradient, slot = (torch.ones(params) for _ in range(4))

    def step() -> None:
        local.copy_(owner)
        slot.copy_(gradient)

    with _one_thread():
        return steps_per_s(step, seconds)


def optimizer_pass(params: int, workers: int, seconds: float) -> float:
    """Bare `torch.optim.SGD` on one flat parameter, one thread: bounds a server that applies every push."""
    weights, optimizer = _owner(params)
    weights.grad = torch.full((params,), SCALE)
    with _one_thread():
        return steps_per_s(optimizer.step, seconds)


def _owner(params: int) -> tuple[Tensor, torch.optim.Optimizer]:
    weights = torch.nn.Parameter(torch.ones(params))
    return weights, torch.optim.SGD([weights], lr=LR)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- torch.distributed.rpc: an asynchronous parameter server ---------------------------------------------------------


def torch_rpc(params: int, workers: int, seconds: float) -> float:
    """Asynchronous parameter server in the shape of PyTorch's tutorial: one owner, called by `rpc_sync`."""
    return sum(together(_rpc_process, workers + 1, params, seconds))


class RpcOwner:
    """The owner's state. It lives in the server process; workers reach it by the module-level functions below."""

    lock = threading.Lock()
    weights: Tensor
    optimizer: torch.optim.Optimizer

    @classmethod
    def build(cls, params: int) -> None:
        cls.weights, cls.optimizer = _owner(params)


def push_and_pull(gradient: Tensor) -> Tensor:
    with RpcOwner.lock:
        RpcOwner.weights.grad = gradient
        RpcOwner.optimizer.step()
    # Not cloned: the answer may be torn by the next push, which is cheaper for the rival than being right.
    return RpcOwner.weights.detach()


def _rpc_process(rank: int, processes: int, rendezvous: str, params: int, seconds: float) -> float:
    if rank == 0:
        RpcOwner.build(params)
    rpc.init_rpc(
        "server" if rank == 0 else f"worker{rank}",
        rank=rank,
        world_size=processes,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=rendezvous),
    )
    rate = 0.0 if rank == 0 else _rpc_worker(params, seconds)
    rpc.shutdown()  # waits for everybody: the server serves until the last worker is done
    return rate


def _rpc_worker(params: int, seconds: float) -> float:
    gradient = torch.full((params,), SCALE)
    return steps_per_s(lambda: rpc.rpc_sync("server", push_and_pull, args=(gradient,)), seconds)


# --- DistributedDataParallel on gloo ---------------------------------------------------------------------------------


def ddp(params: int, workers: int, seconds: float) -> float:
    """DDP on gloo with one parameter of P elements: synchronous, and every worker applies the average itself."""
    return sum(together(_ddp_process, workers, params, seconds))


class _TrivialLoss(torch.autograd.Function):
    """A loss whose gradient lies ready: forward and backward cost nothing."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return weights.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class FlatModel(torch.nn.Module):
    """One flat parameter, and a loss of it with the gradient that lies ready."""

    def __init__(self, params: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(params))
        self.gradient = torch.full((params,), SCALE)

    def forward(self) -> Tensor:
        return _TrivialLoss.apply(self.weights, self.gradient)


def training_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A step with a backward pass of its own, which is where an all-reduce does its work."""

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    return step


def _ddp_process(rank: int, processes: int, rendezvous: str, params: int, seconds: float) -> float:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=processes)
    model = torch.nn.parallel.DistributedDataParallel(FlatModel(params))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    rate = lockstep_rate(training_step(model, optimizer), seconds)
    dist.barrier()  # nobody closes its connections while another still reads from them
    dist.destroy_process_group()
    return rate


def lockstep_rate(step: Callable[[], None], seconds: float) -> float:
    """As `steps_per_s` where all must take equally many steps: rank 0 estimates how many fit, and tells the others."""
    step()  # DDP builds its buckets in the first step
    start_s = time.perf_counter()
    warm = _repeattogether(step, 0.2 * seconds)
    count = _from_rank_0(max(2, round(warm * seconds / (time.perf_counter() - start_s))))
    start_s = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - start_s)


def _repeattogether(step: Callable[[], None], seconds: float) -> int:
    """Repeat in spans that double, until rank 0 says that `seconds` are over: few extra messages, and no rank alone."""
    end_s = time.perf_counter() + seconds
    count, span = 0, 1
    while _from_rank_0(int(count == 0 or time.perf_counter() < end_s)):
        for _ in range(span):
            step()
        count += span
        span *= 2
    return count


def _from_rank_0(value: int) -> int:
    told = torch.tensor(value)
    dist.broadcast(told, src=0)
    return int(told.item())


# --- processes -------------------------------------------------------------------------------------------------------

_LOOPBACK = "lo0" if platform.system() == "Darwin" else "lo"
# Threads of the RPC pool do not inherit torch.set_num_threads: only the environment reaches them.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _LOOPBACK, "TP_SOCKET_IFNAME": _LOOPBACK}
_END_S = 30.0  # to end once the result is in

Body = Callable[[int, int, str, int, float], float]


def together(body: Body, processes: int, params: int, seconds: float) -> list[float]:
    """Run `body(rank, processes, rendezvous, params, seconds)` in as many new processes; their results by rank.

    They meet over a file, so no port has to be picked; the listeners they open take free ports of the loopback.
    """
    deadline_s = time.monotonic() + 60 + 5 * seconds + 2e-6 * params
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            with environment(ENVIRONMENT):
                for rank in range(processes):
                    started.append(_start(body, rank, processes, Path(folder), params, seconds))
            results = _receive([receiver for _, receiver in started], deadline_s)
            for process, _ in started:
                process.join(_END_S)
            late = [process.name for process, _ in started if process.exitcode != 0]
            if late:
                raise RivalError(f"not ended cleanly {_END_S:.0f} s after the result: {', '.join(late)}")
        except RivalError as error:
            raise RivalError(f"{getattr(body, 'func', body).__name__}: {error}\n{complaints(Path(folder))}") from None
        finally:
            _end(process for process, _ in started)
    return results


def _start(
    body: Body, rank: int, processes: int, folder: Path, params: int, seconds: float
) -> tuple[BaseProcess, Connection]:
    context = mp.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (rank, processes, f"file://{folder}/rendezvous", params, seconds)
    complaints = str(folder / f"stderr-{rank}")
    process = context.Process(
        target=_process_main, args=(body, arguments, complaints, sender), daemon=True, name=f"rank {rank}"
    )
    process.start()
    sender.close()  # so that a process that dies is seen as end-of-file
    return process, receiver


def _process_main(body: Body, arguments: tuple[int, int, str, int, float], complaints: str, sender: Connection) -> None:
    """Keep torch's notices off the terminal (they are shown if the process fails), then run the body."""
    with open(complaints, "w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    torch.set_num_threads(1)
    sender.send(body(*arguments))


def _receive(receivers: list[Connection], deadline_s: float) -> list[float]:
    """One result from each, taken as they come: the others of a process that died may wait for it for long."""
    results: dict[Connection, float] = {}
    while waiting := [receiver for receiver in receivers if receiver not in results]:
        ready = wait(waiting, timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise RivalError("no result before the deadline")
        for receiver in waiting:
            if receiver in ready:
                results[receiver] = _received(receiver)
    return [results[receiver] for receiver in receivers]


def _received(receiver: Connection) -> float:
    try:
        return float(receiver.recv())
    except EOFError:
        raise RivalError("a process died") from None


def _end(processes: Iterator[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def complaints(folder: Path) -> str:
    """The last lines each process wrote to stderr."""
    parts = []
    for path in sorted(folder.glob("stderr-*")):
        tail = path.read_text(errors="replace").splitlines()[-5:]
        parts.append("\n".join([f"[{path.name}]", *tail]))
    return "\n".join(parts)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- memory ----------------------------------------------------------------------------------------------------------


def private_bytes(pid: int) -> int:
    """Resident bytes that the process has for itself (Linux's RssAnon)."""
    return _status_bytes(pid, "RssAnon")


def shared_bytes(pid: int) -> int:
    """Resident bytes of shared memory the process has touched (Linux's RssShmem); others may count the same ones."""
    return _status_bytes(pid, "RssShmem")


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024  # "1234 kB", which are KiB
    raise ValueError(f"/proc/{pid}/status has no {field}: memory is measured on Linux only")


RIVALS: dict[str, Rival] = {"torch_rpc": torch_rpc, "ddp": ddp, "memcpy": memcpy, "optimizer_pass": optimizer_pass}
