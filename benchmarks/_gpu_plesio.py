"""What a worker of gpu.py does: it times its steps, or watches what each of them waits for and copies."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

import plesio as ps
from _gpu_jobs import Job, step_ms, wait_for

WAITS = re.compile(r"cuda(Stream|Event)Synchronize|cudaMemcpy(2D|3D)?")
COPIES = {"out": "Memcpy DtoH", "in": "Memcpy HtoD"}
TIMEOUT_S = 45.0


def prepared(worker: ps.Worker, job: Job) -> Callable[[], None]:
    """One step of this worker."""
    model, compute = job.build(worker.rank)
    optimizer = job.optimizer(model)
    model, optimizer, _ = worker.prepare(model, optimizer, None)

    def step() -> None:
        optimizer.zero_grad()
        compute(model)
        optimizer.step()

    return step


def timed(worker: ps.Worker, job: Job, steps: int, warm_up: int) -> None:
    """Log how long a step takes."""
    worker.log(step_ms=step_ms(prepared(worker, job), steps, warm_up, job.device))


def watched(worker: ps.Worker, job: Job, steps: int, warm_up: int) -> None:
    """Log what local steps wait for, and what those do that exchange."""
    step = prepared(worker, job)
    for _ in range(warm_up):
        step()
    kinds: dict[str, list[Counter[str]]] = {"local": [], "exchange": []}
    for _ in range(steps):
        before = worker.version
        seen = look_at(step, job.device)
        kinds["exchange" if worker.version != before else "local"].append(seen)
    found = {}
    for kind, all_seen in kinds.items():
        for name in {name for seen in all_seen for name in seen} if all_seen else ():
            found[f"{kind}, {name}"] = float(median(seen[name] for seen in all_seen))
    worker.log(found)


def look_at(step: Callable[[], None], device: str) -> Counter[str]:
    """What one step waits for: by torch's own warnings, by the calls to CUDA; and microseconds of its copies."""
    seen: Counter[str] = Counter(warnings=0, waits=0, pageable=0)
    if device != "cuda":
        step()
        return seen
    wait_for(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            step()
            torch.cuda.set_sync_debug_mode("default")
        wait_for(device)  # by another call than those that are counted
    seen["warnings"] = sum("synchroniz" in str(one.message) for one in said)
    for event in profiler.events() or ():
        seen["waits"] += WAITS.fullmatch(event.name) is not None
        seen["pageable"] += event.name.startswith("Memcpy") and "Pageable" in event.name
        for way, name in COPIES.items():
            seen[f"{way}_us"] += int(event.time_range.elapsed_us()) if event.name.startswith(name) else 0
    return seen


def run(strategy: ps.Strategy, do: Callable[..., None], job: Job, steps: int, warm_up: int, workers: int = 1) -> ps.Run:
    """A run in which each worker does that."""
    task = partial(do, job=job, steps=steps, warm_up=warm_up)
    threads = 1 if job.device == "cpu" else None
    return ps.run(task, strategy, workers=workers, timeout_s=TIMEOUT_S, threads=threads, progress=False)


def figures(run: ps.Run, name: str) -> list[float]:
    """What the workers logged under this name."""
    return [one.metrics[name] for one in run.summary.logged if name in one.metrics]
