"""The optimizer's hyper-parameters where the server averages for `allreduce`: all workers use the same ones in each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from torch.optim import Optimizer

from plesio.tensors.optimizer_spec import hyper_parameters
from plesio.worker.warn import warn


class SharedSettings:
    """One worker's view of them. It sends its own with its gradient; where workers differ, the lowest worker's hold."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._told = b""
        self._agreed: list[dict[str, Any]] | None = None

    def news(self) -> bytes:
        """This worker's settings, for the server to compare; empty if they did not change."""
        before, self._told = self._told, self._mine()
        return self._told if self._told != before else b""

    def _mine(self) -> bytes:
        return msgspec.msgpack.encode(hyper_parameters(self._optimizer), enc_hook=repr)

    @property
    def differ(self) -> bool:
        """Whether another worker's hold in the next step."""
        return self._agreed is not None

    def hold(self, settings: bytes | None) -> None:
        """These hold in the next step, as the lowest worker told them; None where all workers have the same."""
        others = settings is not None and settings != self._told
        self._agreed = msgspec.msgpack.decode(settings) if settings is not None and others else None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The settings as they were agreed on, for one step."""
        groups = self._optimizer.param_groups
        changed = self._mine() != self._told
        if self._agreed is None and not changed:
            yield
            return
        if changed:
            warn(
                "a hyper-parameter of the optimizer changed between backward() and step(): under all-reduce it takes "
                "effect at the next step, when all workers know of it; change it before backward(), or after step()"
            )
        agreed = self._agreed or msgspec.msgpack.decode(self._told)
        kept = [dict(group) for group in groups]
        for group, theirs in zip(groups, agreed, strict=True):
            group.update({key: _setting(value) for key, value in theirs.items() if not isinstance(value, str)})
        try:
            yield
        finally:
            for group, before in zip(groups, kept, strict=True):
                group.update(before)


def _setting(value: Any) -> Any:
    """A hyper-parameter as optimizers have it: pairs are tuples."""
    return tuple(value) if isinstance(value, list) else value
