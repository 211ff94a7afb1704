"""What privacy a run by clients spends, and how many rounds it allows."""

from __future__ import annotations

from math import ceil

from plesio.errors import ConfigurationError
from plesio.strategy.answers import Privacy
from plesio.worker.accountant import Accountant
from plesio.worker.clients.description import Clients
from plesio.worker.context import WorkerContext
from plesio.worker.warn import warn


class Spending:
    """Of rounds in which each client takes part with the same chance.

    Attributes:
        places: how many clients a round has room for; more are drawn once in 1e14 rounds.
        rounds: how many the bound on epsilon allows.
    """

    def __init__(self, privacy: Privacy, clients: Clients, context: WorkerContext) -> None:
        if privacy.per_round != clients.per_round:
            raise ConfigurationError(
                f"Clients(per_round={clients.per_round}) and Privacy(per_round={privacy.per_round}) are to be the same"
            )
        if callable(clients.available) or clients.available < 1:
            raise ConfigurationError("privacy= counts on each client's chance to be drawn; leave available= out")
        if context.rank == 0 and context.seed == 0:
            warn(
                "privacy= counts on nobody knowing which clients were drawn, and seed 0 is easily guessed: run with "
                "seed=secrets.randbits(62), and keep it and the run's journal to yourself"
            )
        self._privacy, self._clients, self._context = privacy, clients, context
        self._accountant = Accountant(privacy, len(clients.split))
        self.places = min(len(clients.split), clients.per_round + ceil(8 * clients.per_round**0.5) + 8)
        self.rounds = clients.rounds
        if privacy.epsilon is not None:
            self.rounds = self._accountant.allowed(privacy.epsilon, clients.rounds)
            if not self.rounds:
                raise ConfigurationError(
                    f"Privacy(epsilon={privacy.epsilon:g}): one round spends {self._accountant.epsilon(1):.3g} at delta "
                    f"{privacy.delta:g}; allow more, or give more noise, more clients or fewer of them a round"
                )

    def tell(self) -> None:
        """What the versions made have spent."""
        if self._context.rank:
            return
        privacy, spent = self._privacy, self._accountant.epsilon(self._context.state.version)
        self._context.logged(0, {"epsilon": spent})
        if self.rounds < self._clients.rounds:
            self._context.stop(
                f"epsilon {spent:.3g} of {privacy.epsilon:g} at delta {privacy.delta:g} is spent, after {self.rounds} rounds"
            )
