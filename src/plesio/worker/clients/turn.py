"""A client's turn: its batches, what it trained on, and what it says of itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from itertools import chain
from math import inf
from typing import Any

import torch

from plesio.errors import ConfigurationError, PlesioError, as_utf8, words_of
from plesio.worker.clients.description import CLIENTS, Clients
from plesio.worker.metrics import Logged, kept
from plesio.worker.randomness.seeding import step_seed

Pass = Iterator[tuple[Any, Any]]  # indices, and the batch of these
TRAINING, LOOKING, HELD_OUT, DROPPING = range(4)
"""Which of a client's sources of random numbers is drawn from: for a pass over its data, or whether it drops out."""


@dataclass(eq=False, repr=False)
class Client:
    """One client's turn: iterate it for its batches, through all of its epochs. Each pass has an order of its own.

    Attributes:
        id: its number in the split.
        round: that it was drawn for.
        failed: what its data raised, if that leaves it out of the round; or that it dropped out.
        over: whether its turn is.
        holds_out: how many samples it does not train on.
        kept: what it keeps from round to round, by whose that is; None: nothing.
    """

    _clients: Clients
    id: int
    round: int
    seed: InitVar[int]
    _steps: Callable[[], int]
    _skips: bool = False

    def __post_init__(self, seed: int) -> None:
        self.failed = ""
        self.kept: dict[str, Any] | None = None
        self.over = False
        self.first: dict[str, Logged] = {}
        self.last: dict[str, Logged] = {}
        self._trained, self._rest = self._clients.divided(self.id, seed)
        self.holds_out = len(self._rest)
        self._seed = step_seed(seed, CLIENTS + self.id, self.round)
        self._steps_then = self._steps()
        self._given = self._samples = 0  # in batches that no step followed yet, and in those that one did
        self._epochs = [0, 0]  # begun, of each kind
        self._ready: Pass | None = None
        self._lasts = self._batches_to_come() if self._clients.dropout else inf

    def _batches_to_come(self) -> float:
        """After how many of its batches it drops out, if it does."""
        chance = random.Random(step_seed(self._seed, 0, DROPPING))
        return 1 + int(chance.random() * len(self)) if chance.random() < self._clients.dropout else inf

    @property
    def dropped(self) -> bool:
        """Whether it dropped out, as some do."""
        return self._lasts <= 0

    def __len__(self) -> int:
        """How many batches a pass has, over all epochs."""
        return self._clients.epochs * self._clients.batches(len(self._trained))

    @property
    def samples(self) -> int:
        """How many samples it has trained on: those of its batches that a step followed."""
        if not self.over and (steps := self._steps()) != self._steps_then:
            self._steps_then, self._samples, self._given = steps, self._samples + self._given, 0
        return self._samples

    @property
    def state(self) -> dict[str, Any]:
        """What the client keeps from round to round, whichever worker trains it: tensors, numbers, text, and lists, tuples and
        dicts of them. It is as its last turn that counts left it; at first it is empty. Tensors come back on the CPU.

        Raises:
            ConfigurationError: without `ps.Clients(..., state="keep")`.
        """
        if self.kept is None:
            raise ConfigurationError(
                "client.state: nothing of a client's lasts beyond its turn without ps.Clients(..., state='keep')"
            )
        state: dict[str, Any] = self.kept.setdefault("state", {})
        return state

    def __iter__(self) -> Iterator[Any]:
        if not torch.is_grad_enabled():
            return self._give(self._pass(LOOKING))
        ready, self._ready = self._ready or self._pass(TRAINING), None
        return self._give(ready)

    def _pass(self, kind: int) -> Pass:
        first, epochs = self._epochs[kind], self._clients.epochs
        self._epochs[kind] += epochs
        seeds = [step_seed(self._seed, first + epoch, kind) for epoch in range(epochs)]
        order = [one for seed in seeds for one in self._clients.order(self._trained, seed)]
        return zip(order, self._clients.load(order, seeds[0]), strict=True)

    def _give(self, batches: Pass) -> Iterator[Any]:
        _, self._given = self.samples, 0  # no step followed what the pass before gave last: it was a look
        with self.spared():
            for indices, batch in batches:
                if self.over:
                    raise ConfigurationError(
                        f"client {self.id}, round {self.round}: its turn is over, for the loop over clients has gone on: train "
                        "each client before the next one is taken (no list(clients), no second loop inside the first)"
                    )
                _, self._given = self.samples, self._given + len(indices)
                yield batch
                self._lasts -= torch.is_grad_enabled()
                if self.dropped:
                    self.failed = "it dropped out"
                    return

    def end(self) -> None:
        _, self.over = self.samples, True

    def get_ready(self) -> None:
        """Load the first batch: a client without any that can be read has no turn."""
        batches = self._pass(TRAINING)
        self._ready = chain([one for one in [next(batches, None)] if one is not None], batches)

    @contextmanager
    def spared(self) -> Iterator[None]:
        """What its data raise inside leaves the client out, where that is wanted, and not the worker."""
        try:
            yield
        except PlesioError:
            raise
        except Exception as error:
            if not self._skips:
                raise
            self.failed = f"{type(error).__name__}: {words_of(error)}"

    def held_out(self) -> Iterator[Any]:
        return self._clients.load(self._clients.cut(self._rest), step_seed(self._seed, 0, HELD_OUT))

    def log(self, **metrics: Any) -> None:
        """Record numbers of this client: the first and the last of each name are in the report."""
        for name, value in metrics.items():
            number = kept("client.log", name, value)
            self.first.setdefault(as_utf8(name), number)
            self.last[as_utf8(name)] = number
