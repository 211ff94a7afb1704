"""What privacy a run by clients spends."""

from __future__ import annotations

from math import ceil

from plesio.strategy.answers import Privacy
from plesio.worker.budget import Budget
from plesio.worker.clients.description import Clients
from plesio.worker.context import WorkerContext
from plesio.worker.warn import warn


class Accountant:
    """Of rounds in which each client takes part with the same chance.

    Attributes:
        places: how many clients a round has room for; more are drawn once in 1e14 rounds.
        rounds: how many the bound on epsilon allows.

    Raises:
        ConfigurationError: as `Budget` says.
    """

    def __init__(self, privacy: Privacy, clients: Clients, context: WorkerContext) -> None:
        self._budget = Budget(privacy, clients.per_round / len(clients.split), clients.rounds)
        if context.number == 0 and context.seed == 0:
            warn(
                "privacy= counts on nobody knowing which clients were drawn, and seed 0 is easily guessed: run with "
                "seed=secrets.randbits(62), and keep it and the run's journal to yourself"
            )
        self._context = context
        self.places = min(len(clients.split), clients.per_round + ceil(8 * clients.per_round**0.5) + 8)
        self.rounds = self._budget.rounds

    def tell(self) -> None:
        """What the versions made have spent."""
        if not self._context.number:
            tell(self._context, *self._budget.after(self._context.state.version))


def tell(context: WorkerContext, epsilon: float, why: str) -> None:
    """So much is spent; `why` the run ends with it, if it does."""
    context.logged(0, {"epsilon": epsilon})
    if why:
        context.stop(why)
