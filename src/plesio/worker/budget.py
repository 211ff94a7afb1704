"""What a run's releases spend of its privacy, by dp-accounting."""

from __future__ import annotations

import logging
from bisect import bisect_right

from plesio.errors import ConfigurationError
from plesio.strategy.answers import Privacy

MANY = 1 << 31
"""More rounds than any run has."""


class Budget:
    """Of Gaussian releases, in each of which a client or site takes part with this `chance`. `rounds`: how many of `most` the
    bound on epsilon allows.

    Raises:
        ConfigurationError: dp-accounting is not installed, or one round spends more than is allowed.
    """

    def __init__(self, privacy: Privacy, chance: float = 1.0, most: int = MANY) -> None:
        try:
            from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
        except ImportError as error:
            raise ConfigurationError(
                f"privacy= needs dp-accounting, which is not installed ({error}): pip install 'plesio[privacy]'"
            ) from error
        self._privacy, self._most = privacy, most
        self._event = PoissonSampledDpEvent(chance, GaussianDpEvent(privacy.noise))
        self._new = rdp.RdpAccountant
        # it tells of orders that it leaves out, which only loosens the bound
        logging.getLogger("absl").setLevel(logging.ERROR)
        self.rounds = most if privacy.epsilon is None else self._allowed(privacy.epsilon)

    def spent(self, releases: int) -> float:
        """The epsilon of so many."""
        spent = self._new().compose(self._event, releases)
        return float(spent.get_epsilon(self._privacy.delta)) if releases else 0.0

    def after(self, releases: int) -> tuple[float, str]:
        """The epsilon of so many, and why the run ends with it; nothing if the bound does not end it."""
        spent, privacy = self.spent(releases), self._privacy
        if privacy.epsilon is None or self.rounds == self._most or releases < self.rounds:
            return spent, ""
        of = f"{privacy.epsilon:g} at delta {privacy.delta:g}"
        return spent, f"epsilon {spent:.3g} of {of} is spent, after {self.rounds} rounds"

    def _allowed(self, epsilon: float) -> int:
        allowed = bisect_right(range(1, self._most + 1), epsilon, key=self.spent)
        if not allowed:
            raise ConfigurationError(
                f"Privacy(epsilon={epsilon:g}): one round spends {self.spent(1):.3g} at delta {self._privacy.delta:g}; allow "
                "more, or give more noise, more clients or fewer of them a round"
            )
        return allowed
