"""The parts of a cluster: links, and groups of equal workers."""

from __future__ import annotations

import msgspec

from plesio.cluster.check import INFINITE, LEAST, OR_INFINITE, numbers
from plesio.cluster.faults import Outage
from plesio.cluster.steps import StepTime
from plesio.errors import ConfigurationError


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network link: the latency of a message, and the bandwidth in each direction."""

    latency_s: float = 0.0
    bytes_per_s: float = INFINITE

    def __post_init__(self) -> None:
        numbers(self, latency_s=LEAST, bytes_per_s=OR_INFINITE)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`workers` equal workers: their steps, their link and their outages."""

    workers: int
    step: StepTime
    link: Link = Link()
    outage: Outage | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or self.workers < 1:
            raise ConfigurationError(f"Group(workers={self.workers!r}): workers must be a whole number of at least 1")
        if not isinstance(self.step, StepTime):
            raise ConfigurationError(
                f"Group(step={self.step!r}): a law of step times, such as plesio.cluster.Constant(0.1)"
            )
