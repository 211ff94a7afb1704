"""Which of its samples a client holds out: a random part, with about as many of each label as the client has."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset, TensorDataset


def split_off(part: Any, count: int, labels: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """The indices of `part` that stay, and `count` that are held out; of all `labels`, None if they are not known.

    >>> stay, out = split_off(np.arange(8), 4, np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.random.default_rng(0))
    >>> len(stay), int(sum(out < 4)), int(sum(out >= 4))
    (4, 2, 2)
    """
    order = rng.permutation(len(part))
    if labels is not None:
        order = order[np.argsort(labels[part][order], kind="stable")]
    places = (np.arange(count) + rng.random()) * (len(part) / count)  # evenly spaced, so in proportion
    out = np.zeros(len(part), dtype=bool)
    out[order[np.minimum(places.astype(np.int64), len(part) - 1)]] = True
    return part[~out], part[out]


def labels_of(dataset: Any) -> Any:
    """The label of each sample, where a data set says them: as `targets`, `labels`, or its last tensor; else None."""
    if isinstance(dataset, Subset):
        known = labels_of(dataset.dataset)
        return None if known is None else known[np.asarray(dataset.indices)]
    last = dataset.tensors[-1] if isinstance(dataset, TensorDataset) else None
    try:
        labels = np.asarray(getattr(dataset, "targets", getattr(dataset, "labels", last)))
    except (TypeError, ValueError, RuntimeError):  # lists of boxes, tensors elsewhere
        return None
    return labels if labels.shape == (len(dataset),) and labels.dtype.kind in "iubUS" else None
