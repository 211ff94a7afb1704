"""A worker's clients, round after round."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from plesio.attachments.counters import Counting
from plesio.config.rules import BY_CLIENT, refuse
from plesio.errors import ConfigurationError
from plesio.observe.clients import Visit
from plesio.protocol.worker import LeaseReply, LeaseRequest
from plesio.worker.capability import Capability
from plesio.worker.clients.accountant import Accountant
from plesio.worker.clients.description import CLIENTS, Clients, Evaluate
from plesio.worker.clients.kept import KeptByClients
from plesio.worker.clients.turn import Client
from plesio.worker.context import WorkerContext
from plesio.worker.exchanges.by_client import ClientExchange
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.introduction import Taking
from plesio.worker.randomness.seeding import seed_step
from plesio.worker.schedule import RunSchedule
from plesio.worker.warn import warn

COUNTED = "clients"  # the counter of those that count, where there is a least number of them


@dataclass(eq=False, repr=False)
class LeasedClients(Capability):
    """This worker's clients; iterate it once. A loop that was left by `break` goes on in the next one. A client begins with
    `schedules` where its round has them."""

    _clients: Clients
    _context: WorkerContext
    _schedules: Sequence[RunSchedule]

    by_turns = True

    def __post_init__(self) -> None:
        self._open: tuple[Client, float] | None = None  # whose turn it is, and since when
        self._round = -1  # the loop has not begun
        self._over = False

    def begun(self, taking: Taking, exchange: Exchange) -> Mapping[int, Any]:
        assert isinstance(exchange, ClientExchange), "a strategy by client has a server"
        self._exchange, self._used, self._model = exchange, exchange.used, taking.model
        clients, context = self._clients, self._context
        refuse(BY_CLIENT, exchange.strategy, clients)
        privacy = exchange.strategy.send.privacy
        self._places, self._rounds, self._accountant = clients.per_round, clients.rounds, None
        if privacy is not None:
            self._accountant = Accountant(privacy, clients, context)
            self._places, self._rounds = self._accountant.places, self._accountant.rounds
        self._skips = clients.on_client_error == "skip" or (clients.on_client_error is None and context.lenient)
        self._digest = clients.digest(context.seed)
        self._drawn: tuple[int, list[int]] = (-1, [])
        self._choices: list[tuple[int, tuple[int, ...]]] = []  # as in `DataLeases`
        self._visits: list[Visit] = []  # of the round
        self._version = 0  # with which the round began
        self._losses = self._used.losses
        self._counted: int | None = None if context.state.version else 0  # before the round; None: not known
        exchange.between_clients = True
        self._kept = KeptByClients(context.states, taking.own, context.state) if clients.state is not None else None
        return {id(clients): self}

    def __len__(self) -> int:
        """An equal share of all turns, rounded up."""
        return ceil(self._clients.per_round * self._clients.rounds / self._context.workers)

    def where(self) -> str:
        return f"(in the turn of client {self._open[0].id}, round {self._open[0].round})" if self._open else ""

    def __iter__(self) -> Iterator[Client]:
        self._end()  # of an iteration that was left
        if self._round < 0:
            self._round = 0 if self._exchange.in_rounds else int(self._lease(0, 0).epoch)
            self._catch_up()
        while True:
            for round, number in self._of_round():
                client = self._begin(round, number)
                if not client.failed:
                    yield client
                self._end()
            more = self._round < self._rounds or self._used.batches > 0  # somebody died in the last round
            if self._over or not more:
                if self._accountant is not None:
                    self._accountant.tell()
                return
            self._end_round()
            if self._context.state.leaves():  # what its clients moved is sent by now
                self._over = self._context.state.early = True

    # Rounds

    def _catch_up(self) -> None:
        """Where workers wait for each other, each round that has clients makes a version, and each private one. So the versions
        made say which round the run is in, also after this worker was away."""
        made, self._version = self._context.state.version - self._version, self._context.state.version
        while self._exchange.in_rounds and made > 0 and self._round < self._rounds:
            made -= self._accountant is not None or self._clients.timed or bool(self._of(self._round))
            self._round += 1

    def _end_round(self) -> None:
        round = self._round
        if self._exchange.in_rounds or self._used.batches:  # these were places without a client
            self._contribute()
        self._catch_up()
        self._round = max(self._round, round + 1)
        if self._clients.clients_min and round < self._rounds:
            self._check_number(round)

    def _contribute(self) -> None:
        if self._context.by_round:
            self._context.visited(tuple(self._visits), early=True)
        self._exchange.end_round(release=self._round < self._rounds)
        self._tell()

    def _check_number(self, round: int) -> None:
        """Whether enough clients are in the version. A worker that was away does not know: what it counted may be lost."""
        before, total = self._counted, self._context.state.attachments.of(Counting).all.get(COUNTED, 0)
        self._counted = None if self._used.losses else total
        if before is not None and total - before < self._clients.clients_min:
            raise ConfigurationError(
                f"round {round}: {total - before} clients count, of clients_min={self._clients.clients_min}: the others were not "
                "drawn, dropped out, held a NaN, or their data raised"
            )

    def _lease(self, round: int, most: int) -> LeaseReply:
        reply = self._context.lease(LeaseRequest(round, self._places, most, 0, self._digest))
        self._over = self._context.state.stopped or reply.stop
        if reply.choices:
            self._choices += reply.choices
            self._check_choices()
        self._forget_lost()
        if self._exchange.in_rounds:  # nobody is given clients of a round to come
            self._round = max(self._round, ceil(reply.epoch) - 1)
        return reply

    def _forget_lost(self) -> None:
        """What was lost with this worker's seat others train again."""
        if self._losses != self._used.losses:
            self._losses = self._used.losses
            self._visits.clear()
            self._catch_up()

    def _of_round(self) -> Iterator[tuple[int, int]]:
        """The clients that this worker gets: of the round, or of one before that somebody died with."""
        while (
            not self._context.state.leaves() and (reply := self._lease(min(self._round, self._rounds - 1), 1)).batches
        ):
            of_round, place = reply.batches[0]
            drawn = self._of(of_round, reply.begun_s)
            self._used.batches += 1
            if place >= len(drawn):
                continue  # no more were drawn
            client = drawn[place]
            if of_round == self._round or not self._could_be_twice(client, of_round):
                yield of_round, client
            else:
                warn(f"client {client} is left out of round {of_round}: its worker died")

    def _could_be_twice(self, client: int, round: int) -> bool:
        """Whether a turn of an earlier round must not be made in this one. With privacy a client is in a round at most once. One
        that keeps something must not have been drawn again since: two turns would begin from one state, and one would be lost."""
        if self._accountant is not None:
            return True
        if self._kept is None or not self._exchange.in_rounds:
            return False
        if self._clients.timed:  # whom a round draws depends on when it began, which nobody here knows
            return True
        again = any(client in self._of(later) for later in range(round + 1, min(self._round + 1, self._rounds)))
        self._of(round)  # its own turn goes by that draw
        return again

    def _of(self, round: int, begun_s: float = 0.0) -> list[int]:
        if self._drawn[0] == round:
            return self._drawn[1]
        clients, seed, waits_s = self._clients, self._context.seed, 0.0
        if clients.timed:
            drawn, waits_s = clients.drawn_at(seed, round, begun_s)
        else:
            chosen = next((who for since, who in reversed(self._choices) if since <= round), ())
            drawn = clients.drawn(seed, round, self._accountant is not None, chosen)
        if waits_s:
            self._exchange.pacer.waits(waits_s)
            self._used.waited_s += waits_s
        self._drawn = round, drawn
        return drawn

    def _check_choices(self) -> None:
        self._drawn = (-1, [])
        clients, chosen = self._clients, self._choices[-1][1]
        if clients.available != 1:
            raise ConfigurationError(
                "round.choose and Clients(available=...) both say who can be drawn; take one of them"
            )
        if unknown := [one for one in chosen if one >= len(clients.split)]:
            raise ConfigurationError(
                f"round.choose: there is no client {unknown[0]}; they are 0 to {len(clients.split) - 1}"
            )

    # Turns

    def _begin(self, round: int, number: int) -> Client:
        """The client's turn: the version's parameters, a fresh optimizer, random numbers of its own."""
        seed = self._context.seed
        client = self._client(number, round)
        if client.kept is not None:
            self._exchange.begin_control(client.kept, len(self._drawn[1]), len(self._clients.split))
        for one in self._schedules:
            one.begin_client(round)
        self._open = client, self._context.now_s()
        with client.spared():
            self._judge(client)
        seed_step(seed, CLIENTS + number, round)
        if self._skips and not client.failed:
            with client.spared():
                client.get_ready()
        if self._clients.speeds is not None:
            draws = self._clients.speeds.draws(number + 1, random.Random(f"{seed} client {number}"))
            self._exchange.pacer.takes(draws())
        return client

    def _client(self, number: int, round: int) -> Client:
        """The client, with its model: the version's parameters, and what is its own."""
        self._exchange.begin_client()
        seed, steps = self._context.seed, lambda: self._exchange.client_steps
        client = Client(self._clients, number, round, seed, steps, self._skips)
        client.kept = self._kept.begin(number) if self._kept is not None else None
        return client

    def _end(self) -> None:
        """Its turn is over: what it moved is kept for the round, or sent."""
        if self._open is None:
            return
        (client, began_s), self._open = self._open, None
        client.end()
        seconds = self._context.now_s() - began_s
        trained = self._exchange.client_steps > 0
        if trained and not client.failed:
            with client.spared():
                self._judge(client)
        counts = trained and self._taken_up(client)
        self._exchange.between_clients = True
        if client.failed and not client.dropped:
            which, lacks = f"client {client.id}, round {client.round}", len(self._clients.split[client.id])
            warn(f"{which}: {client.failed}; it is left out of the round, with its {lacks} samples")
        stale, late = self._context.state.staleness, client.round != self._round
        first, last = ({name: float(one) for name, one in by_name.items()} for by_name in (client.first, client.last))
        told = client.id, client.round, client.samples, seconds, stale, counts, late, first, last
        self._visits.append(Visit(*told))
        if not self._exchange.in_rounds:
            self._tell()

    def _tell(self) -> None:
        """Tell of the turns whose work has arrived: what dies with a worker, or comes too late for its round, is trained again by
        another."""
        self._forget_lost()
        if self._exchange.taken or not self._exchange.in_rounds:
            self._context.visited(tuple(self._visits))
        self._visits.clear()

    def _taken_up(self, client: Client) -> bool:
        if client.failed:
            self._exchange.leave_out()
            return False
        if self._kept is not None and not self._kept.is_finite():
            self._exchange.leave_out()
            return self._left_out(client)
        if not self._exchange.in_rounds:
            self._keep(client)
            self._exchange.contribute(client.samples or None)
            return self._exchange.taken
        if not client.samples and self._accountant is None:
            raise ConfigurationError(
                f"client {client.id}: none of its steps followed one of its batches, and it weighs nothing; loop over the client"
            )
        if not self._exchange.end_client(client.samples):
            return self._left_out(client)
        self._keep(client)
        self._used.samples += client.samples
        if self._clients.clients_min:
            counted = self._context.state.attachments.of(Counting).added
            counted[COUNTED] = counted.get(COUNTED, 0) + 1
        return True

    def _left_out(self, client: Client) -> bool:
        warn(f"client {client.id}, round {client.round}: a NaN or an infinity; it is left out of the round")
        return False

    def _keep(self, client: Client) -> None:
        if self._kept is not None and client.kept is not None:
            self._kept.leave(client.id, client.kept)

    def _judge(self, client: Client) -> None:
        """Evaluate on what the client holds out, if it is the round for it."""
        evaluate = self._clients.evaluate_clients
        if evaluate is not None and not client.round % self._clients.evaluate_every and client.holds_out:
            client.log(**self._judged(client, evaluate))

    def _judged(self, client: Client, evaluate: Evaluate) -> Mapping[str, float]:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                return evaluate(self._model, client.held_out())
        finally:
            self._model.train(training)

    def evaluate(self, evaluate: Evaluate | None = None) -> dict[int, dict[str, float]]:
        """The metrics of every client, drawn or not, on what it holds out: of the model that it would begin its next turn with,
        which is the version that this worker has and what is the client's own.

            for client in clients:
                ...
            if worker.rank == 0:
                return clients.evaluate(accuracy)  # after the loop; ps.run(...).returned[0] has it

        Args:
            evaluate: `f(model, batches)` -> metrics; None: the `evaluate_clients` of `ps.Clients`.

        Raises:
            ConfigurationError: in a client's turn, no function, or clients that hold nothing out.
        """
        evaluate = evaluate or self._clients.evaluate_clients
        if self._open is not None or evaluate is None or not self._clients.held_out:
            raise ConfigurationError(
                "clients.evaluate(f): after the loop over clients, on what Clients(held_out=0.2) holds out, by a function "
                "f(model, batches) that gives metrics"
            )
        found = {}
        for number in range(len(self._clients.split)):
            client = self._client(number, max(0, self._round))
            client.log(**self._judged(client, evaluate))
            found[number] = {name: float(one) for name, one in client.last.items()}
        self._exchange.between_clients = True
        return found

    def leave(self) -> None:
        """The training function returned: the client that it left counts with what it trained on, and so does its round."""
        if self._over or self._round < 0:
            return
        self._end()
        if self._used.batches:
            self._contribute()
