"""Rows for somebody new, without a sweep: where the other side's rows stay as they are, the best row has a closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 1e-8  # for 0: of the many rows that fit fewer ratings than factors equally well, about the smallest


def fold(
    who: NDArray[Any], count: int, beside: Any, targets: NDArray[Any], weights: NDArray[Any], penalty: float
) -> NDArray[np.float64]:
    """For each of `count` rows the x with the least Σ w ((target − x · row beside it)² + penalty |x|²).

    That is what sweeps over these ratings go down to: there, too, each rating pulls its row towards 0.

    Args:
        who: which of the rows each rating is of, 0 to count - 1.
        beside: gives the other side's rows (n, k) of some of the ratings.
    """
    order = np.argsort(who, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(who, minlength=count))[:-1])
    return np.stack([_ridge(beside(part), targets[part], weights[part], max(penalty, _LEAST)) for part in parts])


def _ridge(rows: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any], penalty: float) -> NDArray[np.float64]:
    weighted = rows.T * weights
    return np.linalg.solve(weighted @ rows + penalty * weights.sum() * np.eye(rows.shape[1]), weighted @ targets)
