"""A sparse table that all workers of a run train lock-free, beside a dense part trained by whatever strategy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from plesio.errors import ConfigurationError
from plesio.sparse.settings import number, one_of, whole
from plesio.system.memory import SharedBlock, TablePlace

OPTIMIZERS = ("adagrad", "sgd")
EPSILON = 1e-10
SPREAD = 0.1  # standard deviation of the rows at first


class SharedEmbedding(nn.Module):
    """An embedding whose table lies in memory that every worker process of a run writes, without locks.

    Make it outside the training function. Its table is no parameter: no strategy exchanges it. Instead `backward` steps the
    rows that were looked up, in place (Niu, Recht, Ré and Wright, 2011); in a run they step once the `optimizer.step()` that
    follows counts, so that data which is given to another worker steps them once. The rest of the model keeps step as the
    strategy says. For a row whose gradients in the batch sum to g:

        G += mean(g²);  row -= lr g / √G             "adagrad", by row (Duchi, Hazan and Singer, 2011)
        row -= lr g                                  "sgd"

    G is shared too. A gradient that is not finite is left out. After the run, the process that made the table has it trained.
    It is in the model's state_dict, in checkpoints and in `run.state_dict`, under the module's name and `_extra_state`. A copy
    of the module (`copy.deepcopy`, `AveragedModel`) is the same table.

    Args:
        rows, width: of the table.
        lr: the learning rate.
        optimizer: "adagrad" or "sgd".
        seed: of the first values, normal with a deviation of 0.1.

    Attributes:
        table: (rows, width) float32.
        squares: (rows,) float32, AdaGrad's state.

    Raises:
        ConfigurationError: a size below 1, a learning rate not above 0, an unknown optimizer, something of another type.
        SharedMemoryError: there is not that much memory, or the process that made the table is gone.

    >>> users = SharedEmbedding(1000, 8, lr=0.1)
    >>> before = users.table[3].clone()
    >>> users(torch.tensor([3, 5])).sum().backward()
    >>> (before - users.table[3]).tolist()[0]  # doctest: +ELLIPSIS
    0.1...
    """

    waiting: list[Callable[[], None]] | None = None
    """Steps that a run holds back until they count."""

    def __init__(self, rows: int, width: int, *, lr: float = 0.05, optimizer: str = "adagrad", seed: int = 0) -> None:
        super().__init__()
        self.rows, self.width = rows, width = whole("rows", rows, 1), whole("width", width, 1)
        self.lr, self.seed = number("lr", lr), whole("seed", seed, 0)
        self.optimizer = one_of("optimizer", optimizer, OPTIMIZERS)
        if not 0 < self.lr < float("inf"):
            raise ConfigurationError(f"lr={lr!r}: allowed is a finite number above 0.")
        what, nbytes = f"the table of {rows:,} rows of {width}", 4 * rows * (width + 1)
        block = SharedBlock.create(nbytes, what)
        made = os.fstat(block.fd)
        self.place = TablePlace(what, os.getpid(), block.fd, made.st_dev, made.st_ino, nbytes)
        self._map(block)
        self.reset()

    def reset(self) -> None:
        """Restore the initial values. In a run, one worker may call it, before its `worker.prepare`."""
        self.table.normal_(0, SPREAD, generator=torch.Generator().manual_seed(self.seed))
        self.squares.zero_()

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows, of shape (*indices.shape, width); in training, their gradients go into the table."""
        rows = F.embedding(indices, self.table)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_().register_hook(lambda gradient: self._wait_or_step(indices, gradient))  # type: ignore[no-untyped-call]
        return rows

    def _wait_or_step(self, indices: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.waiting is None:
            self._step(indices, gradient)
        else:  # by then the loop may have written into both
            self.waiting.append(partial(self._step, indices.clone(), gradient.clone()))

    @torch.no_grad()
    def _step(self, indices: torch.Tensor, gradient: torch.Tensor) -> None:
        if not torch.isfinite(gradient).all():
            return
        indices, gradient = indices.reshape(-1), gradient.reshape(-1, self.width)
        if self.optimizer == "sgd":
            self.table.index_add_(0, indices, gradient, alpha=-self.lr)
            return
        touched, places = torch.unique(indices, return_inverse=True)
        total = gradient.new_zeros(len(touched), self.width).index_add_(0, places, gradient)
        self.squares.index_add_(0, touched, total.square().mean(1))
        steps = self.lr / (self.squares[touched].sqrt() + EPSILON)
        self.table.index_add_(0, touched, total.mul_(steps[:, None]), alpha=-1)

    def get_extra_state(self) -> torch.Tensor:
        """The entry of `state_dict`: table and squares."""
        return self._numbers

    def set_extra_state(self, state: torch.Tensor) -> None:
        """From `load_state_dict`; every process has it then."""
        self._numbers.copy_(state)

    def extra_repr(self) -> str:
        """The text within the brackets of its `repr`."""
        return f"{self.rows}, {self.width}, lr={self.lr:g}, optimizer={self.optimizer!r}"

    def _map(self, block: SharedBlock) -> None:
        self._numbers = block.memory.view(torch.float32)
        self.table = self._numbers[: self.rows * self.width].view(self.rows, self.width)
        self.squares = self._numbers[self.rows * self.width :]
        weakref.finalize(self, block.close)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in any process is the same table, opened by the owner's descriptor, as its memory has no name."""
        left_out = ("table", "squares", "_numbers", "waiting")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._map(SharedBlock.at(self.place))
