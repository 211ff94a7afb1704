"""What privacy a run has spent: the accountant is dp-accounting's, for Poisson-sampled Gaussian releases."""

from __future__ import annotations

import logging

from plesio.errors import ConfigurationError
from plesio.strategy.answers import Privacy


class Accountant:
    """Epsilon at the strategy's delta after so many releases, where each of `clients` takes part with the same chance.

    Raises:
        ConfigurationError: dp-accounting is not installed.
    """

    def __init__(self, privacy: Privacy, clients: int) -> None:
        try:
            from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
        except ImportError as error:
            raise ConfigurationError(
                f"privacy= needs dp-accounting, which is not installed ({error}): pip install 'plesio[privacy]'"
            ) from error
        self._delta = privacy.delta
        self._event = PoissonSampledDpEvent(privacy.per_round / clients, GaussianDpEvent(privacy.noise))
        self._new = rdp.RdpAccountant
        logging.getLogger("absl").setLevel(
            logging.ERROR
        )  # it tells of orders that it leaves out, which only loosens the bound

    def epsilon(self, releases: int) -> float:
        """What so many have spent together."""
        return float(self._new().compose(self._event, releases).get_epsilon(self._delta)) if releases else 0.0

    def allowed(self, epsilon: float, most: int) -> int:
        """How many releases stay within `epsilon`, of `most`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle - 1)
        return low
