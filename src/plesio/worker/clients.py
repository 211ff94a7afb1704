"""Federated rounds: clients are units of data, lent to workers as batches are.

A round is an epoch of the data's leases with `per_round` items, and an item is a client, drawn from (seed, round) alone. So each
is trained once, whoever dies; a fast worker trains more of them; a resumed run goes on in the round that it was in. What a
client draws at random depends on (seed, client, round), not on the worker.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from plesio.cluster.steps import Law, StepTime
from plesio.errors import ConfigurationError, as_utf8
from plesio.observe.clients import Visit
from plesio.protocol.worker import LeaseReply
from plesio.strategy.answers import Privacy
from plesio.worker.accountant import Accountant
from plesio.worker.context import WorkerContext
from plesio.worker.data_use import DataUse
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.seeding import seed_step, step_seed
from plesio.worker.warn import warn

Evaluate = Callable[[nn.Module, Iterator[Any]], Mapping[str, float]]
CLIENTS = 1 << 32
"""Added to a client's number where a worker's would stand in a seed, so that no two streams are the same."""


class Clients:
    """A data set that is divided among clients, for a strategy of federated rounds (`ps.fedavg()` and others).

    The loop ends after `rounds`, or with the run. In a round each of `per_round` clients is trained once, by any of the workers.

    Args:
        dataset: items by index: a torch data set, a list, an array.
        split: for each client the indices of its samples (`plesio.splits`).
        per_round: how many clients take part in a round.
        rounds: how many there are.
        epochs: passes of a client over its data.
        batch_size: samples of a batch; the last one of an epoch may be smaller.
        shuffle: whether each epoch has an order of its own.
        collate: makes a batch of a list of items; as in a DataLoader by default.
        available: the share of clients that can be drawn in a round, or `available(client, round)`.
        held_out: the share of each client's samples, the last ones of its part, that is not trained on.
        evaluate_clients: `f(model, batches)` -> metrics on what is held out, before and after a client trains; every
            `evaluate_every` rounds.
        speeds: simulated only: the law by which each client draws how long its steps take (`plesio.cluster.LogNormal(.1, 1)`),
            whichever worker trains it.

    Raises:
        ConfigurationError: a setting that is not allowed, a client without samples, or an index that the data do not have.

    >>> data = [(torch.ones(2), k % 2) for k in range(60)]
    >>> def train(worker):
    ...     model = torch.nn.Linear(2, 2)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     clients = ps.Clients(data, ps.splits.iid(60, 20), per_round=5, rounds=3)
    ...     model, optimizer, clients = worker.prepare(model, optimizer, clients)
    ...     for client in clients:  # each begins with the global parameters, and a fresh optimizer
    ...         for inputs, labels in client:  # its local epochs
    ...             optimizer.zero_grad()
    ...             loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    ...             loss.backward()
    ...             optimizer.step()
    ...         client.log(loss=loss.item())  # by client in the report
    >>> ps.run(train, ps.fedavg(), workers=2, engine=ps.Simulated("uniform")).version
    3
    """

    def __init__(
        self,
        dataset: Any,
        split: Sequence[Sequence[int]],
        *,
        per_round: int,
        rounds: int = 100,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] = default_collate,
        available: float | Callable[[int, int], bool] = 1.0,
        held_out: float = 0.0,
        evaluate_clients: Evaluate | None = None,
        evaluate_every: int = 1,
        speeds: StepTime | None = None,
    ) -> None:
        counts = {"per_round": per_round, "rounds": rounds, "epochs": epochs, "batch_size": batch_size}
        for name, value in (counts | {"evaluate_every": evaluate_every}).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"Clients({name}={value!r}): a whole number of at least 1")
        if not 0 <= held_out < 1:
            raise ConfigurationError(f"Clients(held_out={held_out!r}): a number of at least 0 and below 1")
        if not callable(available) and not 0 < available <= 1:
            raise ConfigurationError(f"Clients(available={available!r}): a number above 0 and at most 1, or a function")
        if evaluate_clients is not None and not held_out:
            raise ConfigurationError("Clients(evaluate_clients=...) has nothing to evaluate on; say held_out=0.2, too")
        if speeds is not None and not isinstance(speeds, Law):
            raise ConfigurationError(
                f"Clients(speeds={speeds!r}): a law of plesio.cluster, such as LogNormal(0.1, 1.0)"
            )
        self.dataset = dataset
        self.split = [np.asarray(part, dtype=np.int64) for part in split]
        self.per_round, self.rounds, self.epochs, self.batch_size = per_round, rounds, epochs, batch_size
        self.shuffle, self.collate, self.available = shuffle, collate, available
        self.held_out, self.evaluate_clients, self.evaluate_every = held_out, evaluate_clients, evaluate_every
        self.speeds = speeds
        self._check_split()

    def _check_split(self) -> None:
        if self.per_round > len(self.split):
            raise ConfigurationError(
                f"Clients(per_round={self.per_round}): there are {len(self.split)} clients; give 1 to {len(self.split)}"
            )
        empty = [str(client) for client, part in enumerate(self.split) if not len(self.trained(client))]
        if empty:
            named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
            raise ConfigurationError(
                f"Clients: client {named} has no sample to train on; drop such clients with plesio.splits.nonempty(split), or "
                "divide the data more evenly"
            )
        samples, every = len(self.dataset), np.concatenate(self.split)
        if every.min() < 0 or every.max() >= samples:
            raise ConfigurationError(
                f"Clients: the split has the index {int(every.min() if every.min() < 0 else every.max())}, and the data set has "
                f"{samples} samples"
            )
        distinct = len(np.unique(every))
        if distinct < len(every):
            warn(f"Clients: {len(every) - distinct} samples are in more than one place of the split: clients overlap")
        if distinct < samples:
            warn(f"Clients: {samples - distinct} of {samples} samples are no client's")

    def trained(self, client: int) -> Any:
        """The indices that a client trains on."""
        part = self.split[client]
        return part[: len(part) - int(self.held_out * len(part))]

    def drawn(self, seed: int, round: int, alike: bool = False) -> list[int]:
        """The clients of a round; fewer than `per_round` where no more are available. `alike`: each takes part with the same
        chance, on its own, so that `per_round` is what is expected."""
        rng = np.random.default_rng((seed, round))
        there = np.arange(len(self.split))
        if alike:
            return [int(one) for one in rng.permutation(there[rng.random(len(there)) < self.per_round / len(there)])]
        if callable(self.available):
            there = np.array([one for one in there if self.available(int(one), round)], dtype=np.int64)
        elif self.available < 1:
            there = there[rng.random(len(there)) < self.available]
        return [int(one) for one in rng.permutation(there)[: self.per_round]]

    def digest(self, seed: int) -> int:
        """A number that tells these clients from others'."""
        found = zlib.crc32(repr((seed, self.per_round, self.epochs, self.batch_size, len(self.split))).encode())
        for part in self.split:
            found = zlib.crc32(part.tobytes(), found)
        return found or 1

    def batch(self, indices: Any) -> Any:
        """The samples with these indices."""
        if isinstance(self.dataset, TensorDataset):
            return [tensor[indices] for tensor in self.dataset.tensors]
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(indices.tolist()))
        return self.collate([self.dataset[index] for index in indices.tolist()])


class Client:
    """One client's turn: iterate it for its batches, through all of its epochs.

    Attributes:
        id: its number in the split.
        round: that it was drawn for.
    """

    def __init__(self, clients: Clients, client: int, round: int, seed: int, used: DataUse) -> None:
        self.id = client
        self.round = round
        self._clients = clients
        self._seed = step_seed(seed, CLIENTS + client, round)
        self._used = used
        self.samples = 0
        """How many samples it has trained on, over all epochs so far."""
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def __len__(self) -> int:
        """How many batches it has, over all epochs."""
        return self._clients.epochs * -(-len(self._clients.trained(self.id)) // self._clients.batch_size)

    def __iter__(self) -> Iterator[Any]:
        mine = self._clients.trained(self.id)
        for epoch in range(self._clients.epochs):
            order = mine
            if self._clients.shuffle:
                generator = torch.Generator().manual_seed(step_seed(self._seed, epoch, 0))
                order = mine[torch.randperm(len(mine), generator=generator).numpy()]
            yield from self._batches(order)

    def _batches(self, order: Any) -> Iterator[Any]:
        for start in range(0, len(order), self._clients.batch_size):
            indices = order[start : start + self._clients.batch_size]
            self.samples += len(indices)
            self._used.samples += len(indices)
            yield self._clients.batch(indices)

    @property
    def holds_out(self) -> int:
        """How many samples it does not train on."""
        return len(self._clients.split[self.id]) - len(self._clients.trained(self.id))

    def held_out(self) -> Iterator[Any]:
        """The batches that it does not train on."""
        rest = self._clients.split[self.id][len(self._clients.trained(self.id)) :]
        for start in range(0, len(rest), self._clients.batch_size):
            yield self._clients.batch(rest[start : start + self._clients.batch_size])

    def log(self, **metrics: Any) -> None:
        """Record numbers of this client: the first and the last of each name are in the report."""
        for name, value in metrics.items():
            try:
                number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"client.log({name}=...): {type(value).__name__} is not one number ({error})"
                ) from error
            self.first.setdefault(as_utf8(name), number)
            self.last[as_utf8(name)] = number


class LeasedClients:
    """This worker's clients, round after round."""

    def __init__(
        self, clients: Clients, context: WorkerContext, exchange: ServerExchange, used: DataUse, model: nn.Module
    ) -> None:
        self._clients = clients
        self._context = context
        self._exchange = exchange
        self._used = used
        self._model = model
        self._privacy = exchange.strategy.send.privacy
        self._places, self._rounds, self._accountant = clients.per_round, clients.rounds, None
        if self._privacy is not None:
            self._accountant = self._account(self._privacy)
        self._digest = clients.digest(context.seed)
        self._drawn: tuple[int, list[int]] = (-1, [])
        self._visits: list[Visit] = []  # of the round
        self._open: tuple[Client, float] | None = None  # whose turn it is, and since when
        self._round: int | None = None
        self._over = False
        self.looped = False
        """Whether anybody looped over it."""
        if context.rank == 0 and clients.per_round < context.workers:
            warn(
                f"Clients(per_round={clients.per_round}) with {context.workers} workers: some have no client in a round, and wait"
            )

    def _account(self, privacy: Privacy) -> Accountant:
        """Of whom epsilon is asked; no more rounds than it allows."""
        clients = self._clients
        if privacy.per_round != clients.per_round:
            raise ConfigurationError(
                f"Clients(per_round={clients.per_round}) and Privacy(per_round={privacy.per_round}) are to be the same"
            )
        if callable(clients.available) or clients.available < 1:
            raise ConfigurationError("privacy= counts on each client's chance to be drawn; leave available= out")
        if self._context.rank == 0 and self._context.seed == 0:
            warn(
                "privacy= counts on nobody knowing which clients were drawn, and seed 0 is easily guessed: run with "
                "seed=secrets.randbits(62), and keep it and the run's journal to yourself"
            )
        accountant = Accountant(privacy, len(clients.split))
        self._places = min(len(clients.split), clients.per_round + ceil(8 * clients.per_round**0.5) + 8)
        if privacy.epsilon is not None:
            self._rounds = accountant.allowed(privacy.epsilon, clients.rounds)
            if not self._rounds:
                raise ConfigurationError(
                    f"Privacy(epsilon={privacy.epsilon:g}): one round spends {accountant.epsilon(1):.3g} at delta "
                    f"{privacy.delta:g}; allow more, or give more noise, more clients or fewer of them a round"
                )
        return accountant

    def _tell_epsilon(self) -> None:
        """What the versions made have spent."""
        if self._accountant is None or self._privacy is None or self._context.rank:
            return
        spent = self._accountant.epsilon(self._context.state.version)
        self._context.logged(0, {"epsilon": spent})
        if self._rounds < self._clients.rounds:
            self._context.stop(
                f"epsilon {spent:.3g} of {self._privacy.epsilon:g} at delta {self._privacy.delta:g} is spent, after "
                f"{self._rounds} rounds"
            )

    @property
    def dataset(self) -> Any:
        return self._clients.dataset

    def __len__(self) -> int:
        """An equal share of all turns, rounded up."""
        return ceil(self._clients.per_round * self._clients.rounds / self._context.workers)

    def __iter__(self) -> Iterator[Client]:
        self.looped = True
        self._round = self._first()
        while True:
            for round, client in self._of_round(min(self._round, self._rounds - 1)):
                yield self._begin(round, client)
                self._end()
            more = self._round < self._rounds or self._used.batches > 0  # somebody died in the last round
            if self._over or not more:
                self._tell_epsilon()
                return
            self._round += 1
            if self._exchange.in_rounds or self._used.batches:  # these were places without a client
                self._exchange.end_round()
                self._tell()

    def _first(self) -> int:
        """The round that the run is in: of those that wait for each other, each made a version."""
        if self._exchange.in_rounds:
            return self._context.state.version
        return int(self._lease(0, 0).epoch)

    def _lease(self, round: int, most: int) -> LeaseReply:
        reply = self._context.lease(round, self._places, most, 0, self._digest)
        self._over = self._context.state.stopped or reply.stop
        return reply

    def _of_round(self, round: int) -> Iterator[tuple[int, int]]:
        """The clients that this worker gets: of the round, or of one before that somebody died with."""
        while (reply := self._lease(round, 1)).batches:
            of_round, place = reply.batches[0]
            drawn = self._of(of_round)
            self._used.batches += 1
            if place >= len(drawn):
                continue  # no more were drawn
            if of_round == self._round or self._privacy is None:
                yield of_round, drawn[place]
            else:  # it could be in this round twice
                warn(f"client {drawn[place]} is left out of round {of_round}: its worker died")

    def _of(self, round: int) -> list[int]:
        if self._drawn[0] != round:
            alike = self._privacy is not None
            self._drawn = round, self._clients.drawn(self._context.seed, round, alike)
        return self._drawn[1]

    def _begin(self, round: int, number: int) -> Client:
        """The client's turn: the version's parameters, a fresh optimizer, random numbers of its own."""
        self._exchange.begin_client()
        client = Client(self._clients, number, round, self._context.seed, self._used)
        self._judge(client)
        seed_step(self._context.seed, CLIENTS + number, round)
        if self._clients.speeds is not None:
            draws = self._clients.speeds.draws(number + 1, random.Random(f"{self._context.seed} client {number}"))
            self._exchange.pacer.takes(draws())
        self._open = client, self._context.now_s()
        return client

    def _end(self) -> None:
        """Its turn is over: what it moved is kept for the round, or sent."""
        if self._open is None:
            return
        (client, began_s), self._open = self._open, None
        seconds, counts = self._context.now_s() - began_s, False
        if self._exchange.client_steps:
            self._judge(client)
            counts = self._taken_up(client)
        stale, late = self._context.state.staleness, client.round != self._round
        told = client.id, client.round, client.samples, seconds, stale, counts, late, client.first, client.last
        self._visits.append(Visit(*told))
        if not self._exchange.in_rounds:
            self._tell()

    def _tell(self) -> None:
        """Tell of the turns whose work has arrived: what dies with a worker is trained again by another."""
        self._context.visited(tuple(self._visits))
        self._visits.clear()

    def _taken_up(self, client: Client) -> bool:
        """Whether what it moved counts."""
        if not self._exchange.in_rounds:
            self._exchange.contribute()
            return self._exchange.taken
        if self._exchange.end_client(client.samples):
            return True
        self._used.samples -= client.samples
        warn(f"client {client.id}, round {client.round}: a NaN or an infinity; it is left out of the round")
        return False

    def _judge(self, client: Client) -> None:
        """Evaluate on what the client holds out, if it is the round for it."""
        evaluate = self._clients.evaluate_clients
        if evaluate is None or client.round % self._clients.evaluate_every or not client.holds_out:
            return
        training = self._model.training
        self._model.eval()
        with torch.no_grad():
            client.log(**evaluate(self._model, client.held_out()))
        self._model.train(training)

    def leave(self) -> None:
        """The training function returned: the client that it left counts with what it trained on, and so does its round."""
        if self._over or self._round is None:
            return
        self._end()
        if self._used.batches:
            self._exchange.end_round()
            self._tell()
