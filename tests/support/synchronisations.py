"""Counts where the host waits for a device: what keeps a training loop from running ahead of its GPU.

    with Synchronisations() as waits:
        optimizer.step()
    assert waits.total == 0, waits.counts

It sees every operation that torch dispatches in this thread, and in a backward pass begun there: on a GPU, and on the lazy
device (`support.devices`), which every machine has. Waits for events and streams are seen where `torch.cuda` has them; a fake one
calls `waited`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"}
"""Operations whose result, or its shape, the host has to know."""
COPIES = {"copy_", "copy", "_to_copy", "_foreach_copy_"}


class Synchronisations(TorchDispatchMode):
    """Inside, waits are counted.

    Attributes:
        counts: by what was waited for: the operation's name, "device to host", "host to device", "Event.synchronize", ...
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._patches = ExitStack()

    @property
    def total(self) -> int:
        return self.counts.total()

    def waited(self, what: str) -> None:
        """The host waited."""
        self.counts[what] += 1

    def __enter__(self) -> Self:
        for holder, name in (
            (torch.cuda, "synchronize"),
            (torch.cuda.Stream, "synchronize"),
            (torch.cuda.Event, "synchronize"),
        ):
            self._patches.enter_context(patch.object(holder, name, self._counted(holder, name)))
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._patches.close()
        super().__exit__(*exception)

    def _counted(self, holder: Any, name: str) -> Any:
        theirs, what = getattr(holder, name), f"{holder.__name__.removeprefix('torch.')}.{name}"

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.waited(what)
            return theirs(*args, **kwargs)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in COPIES:
            for to, source in _copies(name, args, result):
                if to.device.type != source.device.type and _blocks(to, source, _non_blocking(name, args, kwargs)):
                    self.waited("device to host" if to.is_cpu else "host to device")
        elif (name in READS or (name == "index" and _has_mask(args[1]))) and _reads_a_device(args):
            self.waited(name)
        return result


def _copies(name: str, args: tuple[Any, ...], result: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors of a copy: where to, where from."""
    if name == "_to_copy":
        return [(result, args[0])]
    to, source = args[:2]
    return list(zip(to, source, strict=True)) if name == "_foreach_copy_" else [(to, source)]


def _non_blocking(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = args[2] if name != "_to_copy" and len(args) > 2 else kwargs.get("non_blocking")
    return bool(given)


def _blocks(to: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> bool:
    """CUDA copies from or to pageable memory by way of a buffer of its own, and waits, whatever it was asked for."""
    if not non_blocking:
        return True
    host = to if to.is_cpu else source
    return "cuda" in (to.device.type, source.device.type) and not host.is_pinned()


def _reads_a_device(args: tuple[Any, ...]) -> bool:
    return any(not one.is_cpu for one in tree_leaves(args) if isinstance(one, torch.Tensor))


def _has_mask(indices: Any) -> bool:
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)
