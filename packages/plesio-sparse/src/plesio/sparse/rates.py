"""Learning rates: the schedules of the field, by their usual names.

| name       | rate                                                | of                           |
| ---------- | --------------------------------------------------- | ---------------------------- |
| constant   | lr                                                  |                              |
| decay      | lr · decay^epoch                                    | Hogwild! (2011), decay 0.9   |
| invscaling | lr / t^power_t                                      | scikit-learn                 |
| optimal    | 1 / (alpha · (t0 + t)), t0 as Bottou's heuristic    | scikit-learn, Bottou (2012)  |
| adaptive   | lr, divided by 5 whenever the loss stops falling    | scikit-learn                 |
| linear     | lr · (1 − t/total), never below lr/10,000           | word2vec                     |

Here t is the number of examples seen so far in all epochs, and epochs count from 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError, unknown_name

NAMES = ("adaptive", "constant", "decay", "invscaling", "linear", "optimal")
SMALLEST_ADAPTIVE_LR = 1e-6  # below this the adaptive rate has nothing left to give (scikit-learn stops there too)


@dataclass(slots=True)
class Rate:
    """A learning rate on its way down. Only `adaptive` has a state: its `lr`, to be kept in a checkpoint.

    >>> rate("decay", lr=0.5, decay=0.9).at(epoch=1, examples=100, total=1000)
    0.45
    """

    name: str
    lr: float
    alpha: float
    power_t: float
    decay: float

    def at(self, epoch: int, examples: int, total: int) -> float:
        """The rate after `examples` of `total` examples (counted over all epochs), in `epoch` (from 0)."""
        return float(self._formula(epoch, examples, total))

    def over(self, epoch: int, examples: NDArray[Any], total: int) -> NDArray[np.float64]:
        """The rates at many places of one epoch: one for each chunk, say."""
        return np.broadcast_to(np.asarray(self._formula(epoch, examples, total), dtype=np.float64), examples.shape)

    def plateau(self) -> bool:
        """The loss stopped falling: an adaptive rate is divided by 5. Whether it is worth going on."""
        if self.name != "adaptive":
            return False
        self.lr /= 5
        return self.lr > SMALLEST_ADAPTIVE_LR

    def _formula(self, epoch: int, examples: Any, total: int) -> Any:
        match self.name:
            case "decay":
                return self.lr * self.decay**epoch
            case "invscaling":
                return self.lr / (examples + 1.0) ** self.power_t  # scikit-learn counts its first example as 1
            case "optimal":
                typical_weight = math.sqrt(1 / math.sqrt(self.alpha))
                return 1 / (1 / typical_weight + self.alpha * examples)
            case "linear":
                return self.lr * np.maximum(1e-4, 1 - examples / max(total, 1))
            case _:
                return self.lr


def rate(name: str, *, lr: float, alpha: float = 1e-4, power_t: float = 0.25, decay: float = 0.9) -> Rate:
    """The schedule called `name`, starting at `lr` ("optimal" takes its start from `alpha`, the regulariser).

    Raises ConfigurationError for an unknown name, or a value the schedule cannot work with.

    >>> rate("linear", lr=0.1).at(epoch=0, examples=500, total=1000)
    0.05
    """
    if name not in NAMES:
        raise ConfigurationError(unknown_name("learning-rate schedule", name, NAMES))
    if not (math.isfinite(lr) and lr > 0) and name != "optimal":
        raise ConfigurationError(f"lr={lr!r}: the learning rate must be a finite number above 0.")
    if name == "optimal" and not (math.isfinite(alpha) and alpha > 0):
        raise ConfigurationError(
            f"alpha={alpha!r}: the schedule 'optimal' is 1/(alpha·t), so alpha must be above 0; or take 'invscaling'."
        )
    if name == "decay" and not 0 < decay <= 1:
        raise ConfigurationError(f"decay={decay!r}: the rate is multiplied by it after each epoch; allowed is (0, 1].")
    return Rate(name, lr, alpha, power_t, decay)
