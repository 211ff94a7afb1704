"""Ratings to be factorised, and a factorisation with settings that suit them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse import MatrixFactorization


def ratings(users: int = 60, items: int = 40, count: int = 1500, seed: int = 0) -> tuple[Any, Any, Any]:
    """Distinct pairs out of a matrix of rank 3, with a mean, biases and a little noise."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[:count]
    who, what = np.divmod(pairs, items)
    left, right = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
    score = 3.5 + 0.3 * rng.normal(size=users)[who] + 0.5 * rng.normal(size=items)[what]
    return who, what, score + 0.5 * (left[who] * right[what]).sum(1) + 0.1 * rng.normal(size=count)


def liked(users: int = 80, items: int = 60, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each user likes most items of one of three genres."""
    rng = np.random.default_rng(seed)
    taste = np.arange(users)[:, None] % 3 == np.arange(items)[None, :] % 3
    return np.nonzero(taste & (rng.random((users, items)) < 0.6))  # type: ignore[return-value]


def model(**settings: Any) -> MatrixFactorization:
    defaults = {"factors": 20, "epochs": 3, "threads": 1, "seed": 7, "schedule": "constant"}
    return MatrixFactorization(**{**defaults, **settings})


def bits(one: MatrixFactorization) -> bytes:
    return one.user_factors_.tobytes() + one.item_factors_.tobytes() + one.item_bias_.tobytes()
