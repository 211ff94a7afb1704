"""What privacy a run by clients spends: the accountant is dp-accounting's, for Poisson-sampled Gaussian releases."""

from __future__ import annotations

import logging
from bisect import bisect_right
from math import ceil

from plesio.errors import ConfigurationError
from plesio.strategy.answers import Privacy
from plesio.worker.clients.description import Clients
from plesio.worker.context import WorkerContext
from plesio.worker.warn import warn


class Accountant:
    """Of rounds in which each client takes part with the same chance.

    Attributes:
        places: how many clients a round has room for; more are drawn once in 1e14 rounds.
        rounds: how many the bound on epsilon allows.

    Raises:
        ConfigurationError: dp-accounting is not installed, `clients` do not fit, or one round spends more than is allowed.
    """

    def __init__(self, privacy: Privacy, clients: Clients, context: WorkerContext) -> None:
        self._check(privacy, clients)
        try:
            from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
        except ImportError as error:
            raise ConfigurationError(
                f"privacy= needs dp-accounting, which is not installed ({error}): pip install 'plesio[privacy]'"
            ) from error
        if context.rank == 0 and context.seed == 0:
            warn(
                "privacy= counts on nobody knowing which clients were drawn, and seed 0 is easily guessed: run with "
                "seed=secrets.randbits(62), and keep it and the run's journal to yourself"
            )
        self._privacy, self._context = privacy, context
        self._event = PoissonSampledDpEvent(privacy.per_round / len(clients.split), GaussianDpEvent(privacy.noise))
        self._new = rdp.RdpAccountant
        # it tells of orders that it leaves out, which only loosens the bound
        logging.getLogger("absl").setLevel(logging.ERROR)
        self.places = min(len(clients.split), clients.per_round + ceil(8 * clients.per_round**0.5) + 8)
        self.rounds = clients.rounds if privacy.epsilon is None else self._allowed(privacy.epsilon, clients.rounds)
        self._ends_early = self.rounds < clients.rounds

    def _check(self, privacy: Privacy, clients: Clients) -> None:
        if privacy.per_round != clients.per_round:
            raise ConfigurationError(
                f"Clients(per_round={clients.per_round}) and Privacy(per_round={privacy.per_round}) are to be the same"
            )
        if callable(clients.available) or clients.available < 1:
            raise ConfigurationError("privacy= counts on each client's chance to be drawn; leave available= out")

    def _epsilon(self, releases: int) -> float:
        spent = self._new().compose(self._event, releases)
        return float(spent.get_epsilon(self._privacy.delta)) if releases else 0.0

    def _allowed(self, epsilon: float, most: int) -> int:
        """How many releases stay within `epsilon`, of `most`."""
        allowed = bisect_right(range(1, most + 1), epsilon, key=self._epsilon)
        if not allowed:
            raise ConfigurationError(
                f"Privacy(epsilon={epsilon:g}): one round spends {self._epsilon(1):.3g} at delta {self._privacy.delta:g}; allow "
                "more, or give more noise, more clients or fewer of them a round"
            )
        return allowed

    def tell(self) -> None:
        """What the versions made have spent."""
        if self._context.rank:
            return
        privacy, spent = self._privacy, self._epsilon(self._context.state.version)
        self._context.logged(0, {"epsilon": spent})
        if self._ends_early:
            self._context.stop(
                f"epsilon {spent:.3g} of {privacy.epsilon:g} at delta {privacy.delta:g} is spent, after {self.rounds} rounds"
            )
