"""`ps.Clients`: a data set that is divided among clients, as the user describes it."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from plesio.cluster.steps import Law, StepTime
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import COUNT, DECAY, PART, WHOLE, Allowed
from plesio.worker.clients.held_out import labels_of, split_off
from plesio.worker.warn import listed, warn

Evaluate = Callable[[nn.Module, Iterator[Any]], Mapping[str, float]]
LOOK_S, LOOKS = 300.0, 2016
"""A round that finds nobody looks again after so many seconds, and so often: for a week."""
CLIENTS = 1 << 32
"""Added to a client's number where a worker's would stand in a seed, so that no two streams are the same."""

ALLOWED = {
    **dict.fromkeys(("per_round", "rounds", "epochs", "batch_size", "evaluate_every"), COUNT),
    **dict.fromkeys(("num_workers", "clients_min"), WHOLE),
    "available": Allowed(f"{PART.words}, or a function", lambda value: callable(value) or PART.holds(value)),
    **dict.fromkeys(("held_out", "dropout"), DECAY),
    "speeds": Allowed(
        "a law of plesio.cluster, such as LogNormal(0.1, 1.0)", lambda value: isinstance(value, Law | None)
    ),
    "state": Allowed("None or 'keep'", lambda value: value in (None, "keep")),
    "on_client_error": Allowed("'raise' or 'skip'", lambda value: value in (None, "raise", "skip")),
}


@dataclass(eq=False, repr=False)
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
        collate, num_workers, drop_last: as in a DataLoader. A turn starts processes of its own, so that what they draw at random
            does not depend on who trained before.
        available: the share of clients that can be drawn in a round, or `available(client, round)`. Or `available(client, round,
            time_s)`, with the seconds from the beginning of the run to that of the round, which waits until `clients_min` are
            there (at least 1). A resumed run goes on from when its last round began.
        dropout: the share of turns that come to nothing: after a random part of its batches the client is gone. Its loop over
            batches ends there, and it is left out of its round.
        held_out: the share of each client's samples that is not trained on: drawn from the run's seed and the client, with about
            as many of each label as the client has (`dataset.targets`, `labels`, or whole numbers as its last tensor).
        evaluate_clients: `f(model, batches)` -> metrics on what is held out, before and after a client trains; every
            `evaluate_every` rounds.
        state: "keep" keeps from round to round what is a client's own: `client.state`, and what `prepare(share=...)` leaves out.
            A file a client, in the run's folder; for workers of the host that starts the run.
        speeds: simulated only: the law by which each client draws how long its steps take (`plesio.cluster.LogNormal(.1, 1)`),
            whichever worker trains it.
        on_client_error: what an exception of a client's data does: "raise" ends the worker, "skip" leaves the client out of its
            round and names it, as one with a NaN (its loop over batches ends there). By default as the run's `on_worker_error`:
            "continue" skips.
        clients_min: a round in which fewer clients count ends the run, where workers wait for each other.

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

    dataset: Any
    split: Sequence[Any]
    _: KW_ONLY
    per_round: int
    rounds: int = 100
    epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    collate: Callable[[list[Any]], Any] = default_collate
    num_workers: int = 0
    drop_last: bool = False
    available: float | Callable[..., bool] = 1.0
    dropout: float = 0.0
    held_out: float = 0.0
    evaluate_clients: Evaluate | None = None
    evaluate_every: int = 1
    state: str | None = None
    speeds: StepTime | None = None
    on_client_error: str | None = None
    clients_min: int = 0

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            if not allowed.holds(value := getattr(self, name)):
                raise ConfigurationError(f"Clients({name}={value!r}): {allowed.words}")
        if self.clients_min > self.per_round:
            raise ConfigurationError(f"Clients(clients_min={self.clients_min}): per_round, {self.per_round}, at most")
        if self.evaluate_clients is not None and not self.held_out:
            raise ConfigurationError("Clients(evaluate_clients=...) has nothing to evaluate on; say held_out=0.2, too")
        self.timed = callable(self.available) and _asks_time(self.available)
        self.split = [np.asarray(part, dtype=np.int64) for part in self.split]
        # what a subclass's __getitem__ or a collate of the user's makes of a sample is theirs to say
        self._sliced = type(self.dataset) is TensorDataset and self.collate is default_collate
        self._labels = labels_of(self.dataset) if self.held_out else None
        self._check_split()

    def _check_split(self) -> None:
        if self.per_round > len(self.split):
            raise ConfigurationError(
                f"Clients(per_round={self.per_round}): there are {len(self.split)} clients; give 1 to {len(self.split)}"
            )
        empty = [str(client) for client, part in enumerate(self.split) if not self._trains_on(part)]
        if empty:
            raise ConfigurationError(
                f"Clients: client {listed(empty)} has no sample to train on; drop such clients with "
                "plesio.splits.nonempty(split), or divide the data more evenly"
            )
        samples, every = len(self.dataset), np.concatenate(self.split)
        outside = every[(every < 0) | (every >= samples)]
        if len(outside):
            raise ConfigurationError(
                f"Clients: the split has the index {outside[0]}, and the data set has {samples} samples"
            )
        distinct = len(np.unique(every))
        if distinct < len(every):
            warn(f"Clients: {len(every) - distinct} samples are in more than one place of the split: clients overlap")
        if distinct < samples:
            warn(f"Clients: {samples - distinct} of {samples} samples are no client's")
        small = sum(not self.batches(self._trains_on(part)) for part in self.split)
        if small:
            warn(f"Clients(drop_last=True): {small} clients have fewer samples than a batch and never train")

    def _trains_on(self, part: Any) -> int:
        return len(part) - int(self.held_out * len(part))

    def divided(self, client: int, seed: int) -> tuple[Any, Any]:
        """The indices that a client trains on, and those that it holds out."""
        part = self.split[client]
        if not (count := len(part) - self._trains_on(part)):
            return part, part[:0]
        return split_off(part, count, self._labels, np.random.default_rng((seed, CLIENTS + client)))

    def drawn(self, seed: int, round: int, alike: bool = False, among: Sequence[int] = ()) -> list[int]:
        """The clients of a round; fewer than `per_round` where no more are available. `alike`: each takes part with the same
        chance, on its own, so that `per_round` is what is expected. `among`: which ones there are; empty: all."""
        rng = np.random.default_rng((seed, round))
        there = np.array(among) if among else np.arange(len(self.split))
        if alike:
            return [int(one) for one in rng.permutation(there[rng.random(len(there)) < self.per_round / len(there)])]
        if callable(self.available):
            there = np.array([one for one in there if self.available(int(one), round)], dtype=np.int64)
        elif self.available < 1:
            there = there[rng.random(len(there)) < self.available]
        return [int(one) for one in rng.permutation(there)[: self.per_round]]

    def drawn_at(self, seed: int, round: int, begun_s: float) -> tuple[list[int], float]:
        """As `drawn`, of those who are there; and how many seconds the round, begun after `begun_s`, waits for somebody."""
        assert callable(self.available), "it is asked with the time"
        order = np.random.default_rng((seed, round)).permutation(len(self.split)).tolist()
        for look in range(LOOKS):
            there = (one for one in order if self.available(one, round, begun_s + LOOK_S * look))
            if len(drawn := list(islice(there, self.per_round))) >= max(1, self.clients_min):
                return drawn, LOOK_S * look
        raise ConfigurationError(
            f"round {round}, begun after {begun_s:.0f} s: for a week {max(1, self.clients_min)} clients were never there "
            "together; look at available=, or lower clients_min"
        )

    def digest(self, seed: int) -> int:
        """A number that tells these clients from others'."""
        found = zlib.crc32(repr((seed, self.per_round, self.epochs, self.batch_size, len(self.split))).encode())
        for part in self.split:
            found = zlib.crc32(part.tobytes(), found)
        return found or 1

    def batches(self, samples: int) -> int:
        """How many so many samples make in an epoch."""
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def order(self, indices: Any, seed: int) -> list[Any]:
        """An epoch's batches of these indices."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(seed)
            indices = indices[torch.randperm(len(indices), generator=generator).numpy()]
        return self.cut(indices)[: self.batches(len(indices))]

    def cut(self, indices: Any) -> list[Any]:
        """These indices in batches, the last one as it comes."""
        return [indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size)]

    def load(self, batches: Sequence[Any], seed: int) -> Iterator[Any]:
        """The batches with these indices, as a DataLoader makes them whose processes draw from `seed`."""
        if self._sliced:
            return ([tensor[one] for tensor in self.dataset.tensors] for one in batches)
        return iter(
            DataLoader(
                self.dataset,
                batch_sampler=[one.tolist() for one in batches],
                collate_fn=self.collate,
                num_workers=self.num_workers,
                generator=torch.Generator().manual_seed(seed),
            )
        )


def _asks_time(available: Callable[..., bool]) -> bool:
    """Whether it wants client, round and time; what has a default is its own."""
    wanted = [one for one in inspect.signature(available).parameters.values() if one.default is one.empty]
    return len([one for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]) == 3
