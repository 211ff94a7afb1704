"""Federated rounds by client: each turn that one had, and the figures of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """A client's turn: the `round` it was drawn for, and whether it came `late`, in another; `samples` that it trained on, the
    `staleness` of what it moved, whether that `counts`; of each metric the `first` and the `last` value that was logged."""

    client: int
    round: int
    samples: int
    seconds: float
    staleness: int
    counts: bool
    late: bool
    first: dict[str, float] = {}
    last: dict[str, float] = {}


class ClientSummary(msgspec.Struct, frozen=True):
    """One client over all of its turns: sums of samples and seconds, its mean staleness, how many turns were `left_out` (not
    finite, or too stale) or `late`, and the metrics of its last turn, before and after it trained."""

    client: int
    turns: int
    samples: int
    seconds: float
    staleness: float
    left_out: int = 0
    late: int = 0
    before: dict[str, float] = {}
    after: dict[str, float] = {}


class ClientBook:
    """Adds up the turns of each client."""

    def __init__(self) -> None:
        self._clients: dict[int, ClientSummary] = {}
        self._lately: dict[int, ClientSummary] = {}

    def add(self, visits: Iterable[Visit]) -> None:
        for one in visits:
            was = self._clients.get(one.client) or ClientSummary(one.client, 0, 0, 0.0, 0.0)
            turns = was.turns + 1
            self._clients[one.client] = self._lately[one.client] = ClientSummary(
                one.client,
                turns,
                was.samples + one.samples,
                was.seconds + one.seconds,
                was.staleness + (one.staleness - was.staleness) / turns,
                was.left_out + (not one.counts),
                was.late + one.late,
                one.first or was.before,
                one.last or was.after,
            )

    def spread(self, lower: Callable[[str], bool]) -> dict[str, float]:
        """What the clients that had a turn since the last call logged: each metric's mean by samples, and its worst tenth;
        `lower` says whether less of it is better."""
        told, self._lately = list(self._lately.values()), {}
        found = {}
        for name in sorted({name for one in told for name in one.after}):
            found[f"clients/{name}"] = by_samples(told, name)
            found[f"clients/{name}/worst_tenth"] = worst_tenth(told, name, lower(name))
        return found

    def summaries(self) -> tuple[ClientSummary, ...]:
        return tuple(self._clients[client] for client in sorted(self._clients))


def by_samples(clients: Sequence[ClientSummary], metric: str) -> float:
    """The mean of a metric after training, weighted by samples.

    >>> a, b = (ClientSummary(k, 1, 30 - 20 * k, 1.0, 0.0, after={"accuracy": 0.9 - 0.4 * k}) for k in range(2))
    >>> round(by_samples([a, b], "accuracy"), 3), worst_tenth([a, b], "accuracy", lower=False)
    (0.8, 0.5)
    """
    told = [one for one in clients if metric in one.after]
    return sum(one.samples * one.after[metric] for one in told) / max(1, sum(one.samples for one in told))


def worst_tenth(clients: Sequence[ClientSummary], metric: str, lower: bool) -> float:
    """The mean of a metric over the tenth of the clients that is worst off, one at least; `lower`: less is better."""
    values = sorted((one.after[metric] for one in clients if metric in one.after), reverse=lower)
    worst = values[: max(1, len(values) // 10)]
    return sum(worst) / len(worst)
