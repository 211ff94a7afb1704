"""Tests of DistributedDataParallel from torch's own suite, by a worker's prepared model in its place, on the CPU."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import plesio as ps

WORKERS = 2
REAL = {"randperm": torch.randperm, "to": torch.Tensor.to}


class InPlaceOfDDP(nn.Module):
    """What `DistributedDataParallel(module)` is replaced by: the module, prepared. `worker` is this process's."""

    worker: ps.Worker

    def __init__(self, module: nn.Module, device_ids: Any = None, **_: Any) -> None:
        super().__init__()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)  # these tests step by hand
        self.module, _ = self.worker.prepare(module, optimizer)
        torch.manual_seed(1)  # each worker's numbers are its own, and the tests count on the same

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)


def the_cpu(given: Any) -> Any:
    """The CPU in place of a GPU, by number or by name."""
    by_number = isinstance(given, int) and not isinstance(given, bool)
    return "cpu" if by_number or "cuda" in str(given) else given


def on_the_cpu() -> None:
    """Have a test that asks for GPUs run without: what is moved to one stays."""
    torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: WORKERS
    torch.Tensor.cuda = nn.Module.cuda = nn.Module.to = lambda self, *_, **__: self
    torch.Tensor.to = lambda self, *given, **named: REAL["to"](self, *map(the_cpu, given), **named)
    for name in ("rand", "randn", "ones", "zeros", "tensor", "empty"):
        setattr(torch, name, without_device(getattr(torch, name)))


def without_device(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *given, device=None, **named: make(*given, **named)


def ddp_test(worker: ps.Worker, name: str) -> str:
    """Run it as one of its two processes."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(WORKERS)}
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test

    warnings.simplefilter("ignore")
    InPlaceOfDDP.worker = worker
    nn.parallel.DistributedDataParallel = distributed_test.DistributedDataParallel = InPlaceOfDDP
    saved: list[Any] = []  # a model from a file would be another one, which no run trains
    torch.save, torch.load = lambda model, _: saved.append(model), lambda *_, **__: saved[-1]
    torch.randperm = lambda count: REAL["randperm"](count, generator=torch.Generator().manual_seed(count))
    on_the_cpu()
    tests = distributed_test.DistributedTest._DistTestBase
    own = {"rank": worker.rank, "world_size": WORKERS, "_barrier": lambda *_, **__: dist.barrier(), name: None}
    torch.manual_seed(0)
    inspect.unwrap(getattr(tests, name))(type("Case", (TestCase, tests), own)())
    return name


def names() -> list[str]:
    """Torch's tests that have to do with DistributedDataParallel."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(WORKERS)}
    from torch.testing._internal.distributed import distributed_test

    tests = distributed_test.DistributedTest._DistTestBase
    every = {
        name: inspect.getsource(inspect.unwrap(getattr(tests, name))) for name in dir(tests) if name[:5] == "test_"
    }
    about = re.compile("ddp|sync_bn|accumulate_gradients|DistributedDataParallel|SyncBatch", re.IGNORECASE)
    return [name for name, source in every.items() if about.search(name + source)]


if __name__ == "__main__":
    print(json.dumps(names()))
