"""How a data set is divided among the clients of federated learning: a list of index arrays, one a client.

Each function takes the labels of the data (an array, a tensor, a list; or their number where only that matters) and a `seed`:
the same arguments give the same split. Anything that can be indexed and gives sequences of indices is a split, too.

>>> import plesio as ps
>>> [part.tolist() for part in ps.splits.shards([0, 1, 0, 1], clients=2, each=1)]
[[0, 2], [1, 3]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from plesio.errors import ConfigurationError

Split = list[np.ndarray[Any, np.dtype[np.int64]]]


def iid(samples: int | Sequence[Any], clients: int, *, seed: int = 0) -> Split:
    """Shuffled, in equal parts; the first ones are larger by a sample where it does not come out even.

    Raises:
        ConfigurationError: `clients` is no whole number from 1 to the number of samples.

    >>> [len(part) for part in iid(10, 3)]
    [4, 3, 3]
    """
    order = np.random.default_rng(seed).permutation(_number(samples))
    _check_clients("iid", clients, len(order))
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: Sequence[Any], clients: int, *, each: int = 2, seed: int = 0) -> Split:
    """Sorted by label, cut into `clients * each` shards, of which every client gets `each`: few labels a client.

    Source: McMahan et al. 2017, arXiv 1602.05629 (two shards of digits each: most clients see two).

    Raises:
        ConfigurationError: fewer samples than shards.

    >>> [len(part) for part in shards([0, 0, 1, 1, 2, 2, 3, 3], 4, each=1)]
    [2, 2, 2, 2]
    """
    by_label = np.argsort(_array(labels), kind="stable")
    if not isinstance(each, int) or each < 1:
        raise ConfigurationError(f"splits.shards(each={each!r}): a whole number of shards, from 1")
    _check_clients("shards", clients * each, len(by_label))
    cut = np.array_split(by_label, clients * each)
    dealt = np.random.default_rng(seed).permutation(len(cut)).reshape(clients, each)
    return [np.sort(np.concatenate([cut[one] for one in own])) for own in dealt]


def dirichlet(labels: Sequence[Any], clients: int, *, alpha: float, seed: int = 0) -> Split:
    """Each label's samples are divided in proportions drawn from a Dirichlet distribution: the smaller `alpha`, the more uneven.
    Clients may be empty (`nonempty`).

    Source: Hsu, Qi and Brown 2019, arXiv 1909.06335.

    Raises:
        ConfigurationError: `alpha` is not above 0.

    >>> sum(map(len, dirichlet([0, 1] * 50, 5, alpha=0.5)))
    100
    """
    if not alpha > 0 or alpha == float("inf"):
        raise ConfigurationError(f"splits.dirichlet(alpha={alpha!r}): a number above 0, such as 0.5")
    known, rng = _array(labels), np.random.default_rng(seed)
    _check_clients("dirichlet", clients, len(known))
    parts: list[list[Any]] = [[] for _ in range(clients)]
    for label in np.unique(known):
        own = rng.permutation(np.flatnonzero(known == label))
        cuts = (np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(own)).astype(int)
        for part, piece in zip(parts, np.split(own, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def sizes(samples: int | Sequence[Any], counts: Iterable[int], *, seed: int = 0) -> Split:
    """Shuffled, so many samples for each client.

    Raises:
        ConfigurationError: the counts are negative, or more than there are.

    >>> [len(part) for part in sizes(10, [1, 2, 3])]
    [1, 2, 3]
    """
    wanted, order = list(counts), np.random.default_rng(seed).permutation(_number(samples))
    if any(not isinstance(one, (int, np.integer)) or one < 0 for one in wanted) or sum(wanted) > len(order):
        raise ConfigurationError(
            f"splits.sizes: {wanted} of {len(order)} samples; whole numbers, together at most as many"
        )
    return [np.sort(part) for part in np.split(order[: sum(wanted)], np.cumsum(wanted)[:-1])]


def by(data: Sequence[Any], key: Callable[[Any], Any]) -> Split:
    """One client for each value of `key(item)` (a writer, a hospital), in the order of the values.

    >>> [part.tolist() for part in by(["ann", "bob", "abe"], key=lambda name: name[0])]
    [[0, 2], [1]]
    """
    _, client = np.unique(np.array([key(data[index]) for index in range(len(data))]), return_inverse=True)
    return [np.flatnonzero(client == one) for one in range(client.max() + 1)]


def nonempty(split: Iterable[Sequence[int]]) -> Split:
    """Without the clients that have no sample.

    >>> len(nonempty([[0, 1], [], [2]]))
    2
    """
    return [np.asarray(part) for part in split if len(part)]


def table(split: Sequence[Sequence[int]], labels: Sequence[Any] | None = None, most: int = 20) -> str:
    """What each client holds, as text: how many samples, and of which labels.

    >>> print(table([[0, 1], [2]], labels=["a", "b", "b"]))
    client  samples  a  b
         0        2  1  1
         1        1  0  1
    """
    known = None if labels is None else _array(labels)
    names: Any = [] if known is None else np.unique(known)[:most]
    lines = [["client", "samples", *map(str, names)]]
    for client, part in enumerate(split[:most]):
        own = [str(int((known[np.asarray(part)] == name).sum())) for name in names] if known is not None else []
        lines.append([str(client), str(len(part)), *own])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(rows + ([f"and {len(split) - most} more clients"] if len(split) > most else []))


def _number(samples: int | Sequence[Any]) -> int:
    return samples if isinstance(samples, int) else len(samples)


def _array(labels: Sequence[Any]) -> Any:
    if isinstance(labels, int):
        raise ConfigurationError(f"splits: {labels} is a number; give the labels of the samples, one each")
    return np.asarray(labels)


def _check_clients(what: str, parts: int, samples: int) -> None:
    if not isinstance(parts, int) or not 1 <= parts <= samples:
        raise ConfigurationError(f"splits.{what}: {samples} samples for {parts} parts; give 1 to {samples}")
