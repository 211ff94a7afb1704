"""What gpu.py holds plesio against: the link, and torch alone. Each in processes of its own, since who began with CUDA may not
fork, and one that hangs can be killed."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from _gpu_jobs import Job, place, step_ms

DEADLINE_S = 60.0


def apart(task: Callable[..., Any], *given: Any, ranks: int = 1) -> Any:
    """What `task(rank, *given)` returns at rank 0, in processes of their own; `RuntimeError`: one failed, or is too slow."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=(theirs, task, rank, *given))
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    try:
        results = [_taken(end) for end in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return results[0]


def _run(end: Connection, task: Callable[..., Any], *given: Any) -> None:
    try:
        end.send((task(*given), ""))
    except Exception:
        end.send((None, traceback.format_exc(limit=-2)))


def _taken(end: Connection) -> Any:
    if not end.poll(DEADLINE_S):
        raise RuntimeError(f"nothing came in {DEADLINE_S:.0f} s")
    try:
        result, error = end.recv()
    except EOFError:
        raise RuntimeError("its process died") from None
    if error:
        raise RuntimeError(error)
    return result


def described(rank: int) -> tuple[str, int]:
    """The GPU's name, and how many there are."""
    return torch.cuda.get_device_name(), torch.cuda.device_count()


def link(rank: int, nbytes: int, device: str) -> dict[str, float]:
    """GB/s of copies between the host's memory and the device, each way."""
    there = torch.ones(nbytes, dtype=torch.uint8, device=place(device, 0))
    rates = {}
    for kind in ("pageable", "pinned"):
        here = torch.ones(nbytes, dtype=torch.uint8, pin_memory=kind == "pinned" and device == "cuda")
        for way, to, source in (("in", there, here), ("out", here, there)):
            copy = partial(to.copy_, source, non_blocking=True)
            rates[f"{way}, {kind}"] = nbytes / step_ms(copy, 5, 2, device) / 1e6
    return rates


def torch_ms(rank: int, job: Job, how: str, steps: int, ranks: int, meeting: str) -> float:
    """Milliseconds a step takes in torch: `alone`, `ddp` or `fsdp`; `passes`: alone, without the optimizer's step."""
    if how in ("ddp", "fsdp"):
        if job.device == "cuda":
            torch.cuda.set_device(rank)
        backend = "nccl" if job.device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    model, compute = job.build(rank)
    model = WRAPPED.get(how, lambda model: model)(model)
    optimizer = job.optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        compute(model)
        if how != "passes":
            optimizer.step()

    took_ms = step_ms(step, steps, 5, job.device)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return took_ms


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in getattr(model, "blocks", ()):
        fully_shard(block)
    fully_shard(model)
    return model


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": nn.parallel.DistributedDataParallel,
    "fsdp": _sharded,
}


def torch_step_ms(job: Job, how: str, steps: int, ranks: int = 1) -> float:
    """That, of `ranks` processes together."""
    with tempfile.TemporaryDirectory() as folder:
        took_ms: float = apart(torch_ms, job, how, steps, ranks, f"{folder}/meeting", ranks=ranks)
    return took_ms
