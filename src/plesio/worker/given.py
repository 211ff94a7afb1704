"""What `prepare` was given, sorted, and what it was told."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import WHOLE
from plesio.tables.converted import convert, large_dense
from plesio.tables.module import named_tables
from plesio.tensors.after_step import Change
from plesio.tensors.model import OF_NO_MODULE, Models
from plesio.tensors.several import Several
from plesio.worker.clients.description import Clients
from plesio.worker.context import WorkerContext
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.own_part import OwnPart, Share
from plesio.worker.warn import listed, warn

ALLOWED = "torch's modules, optimizers, schedulers and loaders, in any order, such as worker.prepare(model, optimizer, loader)"


@dataclass(frozen=True, slots=True)
class How:
    """How `prepare` is to do it: what it was told by keyword."""

    after_step: Change | None
    frozen_too: bool
    share: Share | None
    lets_writes_go: bool
    tables: int | None


@dataclass(frozen=True)
class Given:
    """Modules, optimizers, loaders and schedulers, each in the order in which they were given."""

    modules: list[nn.Module]
    optimizers: list[Optimizer]
    schedulers: list[LRScheduler]
    loaders: list[Any]
    clients: list[Clients]

    @classmethod
    def sorted(cls, things: Sequence[Any]) -> Given:
        """Sort what `prepare` was given; None stands for nothing.

        Raises:
            ConfigurationError: something that it does not take, or the same object twice.
        """
        given = cls([], [], [], [], [])
        homes = (
            (nn.Module, given.modules),
            (Optimizer, given.optimizers),
            (LRScheduler, given.schedulers),
            (Clients, given.clients),
        )
        for place, one in enumerate(things):
            if one is None:
                continue
            if any(one is other for other in things[:place]):
                raise ConfigurationError(f"prepare was given the same {type(one).__name__} twice")
            home: list[Any] | None = next((home for kind, home in homes if isinstance(one, kind)), None)
            if home is None and not _is_data(one):
                what = one if isinstance(one, type) else f"a {type(one).__name__}"
                more = f". {OF_NO_MODULE}" if isinstance(one, Tensor) else ""
                raise ConfigurationError(f"prepare was given {what}; it takes {ALLOWED}, one by one{more}")
            (given.loaders if home is None else home).append(one)
        return given

    def check(self) -> None:
        """Raise `ConfigurationError` unless there is something to train, by schedules of what trains it."""
        for kind, found in ("model", self.modules), ("optimizer", self.optimizers):
            if not found:
                raise ConfigurationError(f"prepare was given no {kind}; it takes {ALLOWED}")
        if len(self.clients) > 1 or (self.clients and self.loaders):
            raise ConfigurationError("prepare takes one ps.Clients, and no loader beside it: its clients are the data")
        for schedule in self.schedulers:
            if not any(schedule.optimizer is one for one in self.optimizers):
                kind = type(schedule.optimizer).__name__
                raise ConfigurationError(
                    f"prepare was given a {type(schedule).__name__} of another {kind} than it was given: give it that one, too"
                )

    def convert(self, tables: int) -> list[Optimizer]:
        """Large embeddings become tables; the optimizers that hold nothing else have no part in the run, and are returned."""
        if not WHOLE.holds(tables):
            raise ConfigurationError(f"prepare(tables={tables!r}): {WHOLE.words}, of an embedding that becomes none")
        convert(self.model, self.optimizers, tables)
        if not named_tables(self.model) and (dense := large_dense(self.model, tables)):
            warn(f"prepare(tables={tables}): no embedding became a table, for {listed(dense)} lacks sparse=True")
        empty = [one for one in self.optimizers if not any(group["params"] for group in one.param_groups)]
        if len(empty) == len(self.optimizers):
            raise ConfigurationError(
                f"prepare(tables={tables}): only tables would be left to train, and a run needs a parameter, too; raise tables="
            )
        for one in empty:
            self.optimizers.remove(one)
        return empty

    def own_part(self, share: Share | None, context: WorkerContext) -> OwnPart | None:
        """What is not shared; it has a place where it lasts."""
        own = OwnPart.of(self.model, self.optimizer, share, bool(self.clients)) if share is not None else None
        names, ranks = list(own.tensors) if own is not None else [], context.process.island.ranks
        if names and ranks > 1:
            raise ConfigurationError(
                f"prepare(share=...) and ranks={ranks}: the ranks of a worker would step {listed(names)} apart; use ranks=1"
            )
        if names and any(one.state is None for one in self.clients):
            raise ConfigurationError(
                f"prepare(share=...) leaves {listed(names)} to each client, and nothing keeps that from one of its turns to the "
                "next; say ps.Clients(..., state='keep')"
            )
        return own

    def check_strategy(self, exchange: Exchange) -> None:
        """Clients are for strategies that exchange when one ends, and those are for clients, or for a loop's own data."""
        if self.clients and not exchange.by_client:
            raise ConfigurationError(
                "ps.Clients needs a strategy that exchanges when a client ends: fedavg, fedopt, fedprox, scaffold, fedbuff or "
                "fedasync"
            )
        if self.clients and exchange.late:
            raise ConfigurationError(
                "ps.Clients and overlap=True (training on while an answer travels): a client begins with the global parameters, "
                "and its worker waits for them; leave overlap out, or let the loop say worker.contribute(samples=...)"
            )
        if exchange.private and not self.clients and not exchange.secure:
            raise ConfigurationError(
                "privacy= bounds what each client of ps.Clients sends: give prepare that; a loop over own data is not clipped, "
                "but with secure="
            )
        if exchange.sums and not self.clients:
            raise ConfigurationError(
                "ps.scaffold is for clients that keep a control variate: give prepare ps.Clients(..., state='keep')"
            )
        if self.clients and exchange.secure:
            raise ConfigurationError(
                "ps.Clients and secure=: clients of one process cannot hide from it; secure sums are between sites, each with a "
                "loop over data of its own that says worker.contribute(samples=...)"
            )
        if self.loaders and exchange.by_client:
            raise ConfigurationError(
                "this strategy exchanges when a client ends: give prepare ps.Clients(...), or no loader and say "
                "worker.contribute(samples=...) in a loop over data of your own"
            )

    @property
    def once(self) -> list[Any]:
        """What the first call alone takes; a later one may be given the same."""
        return [*self.modules, *self.loaders, *self.clients]

    @property
    def model(self) -> nn.Module:
        """The model; of several, a list of them."""
        return self.modules[0] if len(self.modules) == 1 else Models(self.modules)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; of several, all as one."""
        return self.optimizers[0] if len(self.optimizers) == 1 else Several(self.optimizers)


def _is_data(one: Any) -> bool:
    if isinstance(one, (list, tuple)) and one and isinstance(one[0], Optimizer | nn.Module | LRScheduler):
        return False
    if isinstance(one, Tensor) and one.requires_grad:
        return False
    return isinstance(one, (DataLoader, dict)) or (hasattr(one, "__getitem__") and isinstance(one, Sized))
