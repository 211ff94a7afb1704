"""Each worker's own share of an exchange, and what all of them share at the server, from the times of exchanges.

The model is that of a simulated network: a message takes its worker's own latency, and the server passes one message after the
other, in each direction, `service_s` apart. So no two arrivals are closer than that, and no exchange is shorter. Of the times up
to there the one that explains most is taken: the queues are gone through again with each, and what an exchange lasted beyond
them is its worker's own, which should always be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from operator import attrgetter
from statistics import fmean, median
from typing import NamedTuple

MOST = 2_000  # exchanges that are looked at, of all workers together
QUICK = 0.1  # an exchange is quick, and a gap short, if at most this share of them were shorter
PARTS, ROUNDS = 16, 3  # how many service times are tried, and how often the queues are gone through with each
ALIKE = 0.01
"""Of service times that explain as much, but for this share of a cycle, the longest is taken: lock step hides queues."""


class TimedExchange(NamedTuple):
    """Sent by `worker` at `ready_s`, answered at `granted_s`; where it was held, since `arrived_s` and until `released_s`."""

    worker: int
    ready_s: float
    arrived_s: float | None
    released_s: float | None
    granted_s: float


class Links(NamedTuple):
    """`service_s`: the server's time for a message in one direction; `latency_s`: of each worker, one way; `unexplained`: how
    far a typical exchange is from what these say, as a share of the time from one to the next."""

    service_s: float
    latency_s: Mapping[int, float]
    unexplained: float


def links(exchanges: Iterable[TimedExchange], served_s: float = 0.0) -> Links:
    """What the exchanges of a run say; `served_s`: what the server is known to compute for each, at least."""
    found = sorted(exchanges, key=lambda one: one.granted_s)[:MOST]
    if not found:
        return Links(served_s, {}, 0.0)
    quickest = {worker: _low(each) for worker, each in _by_worker(found, map(_lasted_s, found)).items()}
    lasted_s = found[-1].granted_s - found[0].ready_s
    most_s = max(served_s, min(_apart_s(found), lasted_s / len(found), *quickest.values()))
    guesses = dict.fromkeys(quickest, 0.0), {worker: quick_s / 2 for worker, quick_s in quickest.items()}
    unexplained = attrgetter("unexplained")
    tried = [
        min((_explained(found, served_s + (most_s - served_s) * part / PARTS, one) for one in guesses), key=unexplained)
        for part in range(0 if most_s > served_s else PARTS, PARTS + 1)
    ]
    enough = min(map(unexplained, tried)) + ALIKE
    return next(one for one in reversed(tried) if one.unexplained <= enough)


def _explained(found: Sequence[TimedExchange], service_s: float, latency_s: Mapping[int, float]) -> Links:
    """With this service time, and the latencies that come of it from a first guess, which tells who was first at the server."""
    for _ in range(ROUNDS):
        own = _by_worker(found, _beyond_queues(found, service_s, latency_s))
        latency_s = {worker: max(0.0, median(each) / 2) for worker, each in own.items()}
    off = [abs(one_s - 2 * latency_s[worker]) for worker, each in own.items() for one_s in each]
    cycle_s = (found[-1].granted_s - found[0].ready_s) * len(own) / len(found)
    return Links(service_s, latency_s, fmean(off) / cycle_s if cycle_s else 0.0)


def _lasted_s(one: TimedExchange) -> float:
    held_s = one.released_s - one.arrived_s if one.arrived_s is not None and one.released_s is not None else 0.0
    return one.granted_s - one.ready_s - held_s


def _low(values: Sequence[float]) -> float:
    return sorted(values)[int(QUICK * len(values))]


def _apart_s(found: Sequence[TimedExchange]) -> float:
    """How close arrivals get, where most are known: who is held has arrived, and is released by another's arrival."""
    held = [one for one in found if one.arrived_s is not None]
    if 2 * len(held) < len(found):
        return inf
    arrivals = sorted({*(one.arrived_s for one in held), *(one.released_s for one in held)})  # type: ignore[type-var]
    return _low([after - before for before, after in pairwise(arrivals)])  # type: ignore[operator]


def _by_worker(found: Sequence[TimedExchange], values: Iterable[float]) -> dict[int, list[float]]:
    grouped: dict[int, list[float]] = {}
    for one, value in zip(found, values, strict=True):
        grouped.setdefault(one.worker, []).append(value)
    return grouped


def _beyond_queues(found: Sequence[TimedExchange], service_s: float, latency_s: Mapping[int, float]) -> list[float]:
    """How long each lasted without the queues at the server, both ways, if these are the latencies."""
    own = [latency_s[one.worker] for one in found]
    came = _queue([(one.ready_s + mine, 0.0) for one, mine in zip(found, own, strict=True)], service_s)
    asked = [
        (came_s if one.released_s is None else one.released_s, one.granted_s - mine)
        for one, came_s, mine in zip(found, came, own, strict=True)
    ]
    gone = _queue(asked, service_s)
    return [
        mine + (0.0 if one.arrived_s is None else one.arrived_s - came_s) + one.granted_s - gone_s
        for one, mine, came_s, gone_s in zip(found, own, came, gone, strict=True)
    ]


def _queue(asked: Sequence[tuple[float, float]], service_s: float) -> list[float]:
    """When each is through: first come, first served.

    >>> _queue([(0.0, 0.0), (5.0, 0.0), (0.5, 0.0)], service_s=1.0)
    [1.0, 6.0, 2.0]
    """
    through = [0.0] * len(asked)
    free_s = -inf
    for place in sorted(range(len(asked)), key=asked.__getitem__):
        free_s = max(free_s, asked[place][0]) + service_s
        through[place] = free_s
    return through
