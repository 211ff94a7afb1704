"""The parts of a cluster: links, and groups of equal workers."""

from __future__ import annotations

from typing import Annotated

from plesio.cluster.check import INFINITE, OR_INFINITE, Checked
from plesio.cluster.faults import Outage
from plesio.cluster.steps import StepTime
from plesio.strategy.answers.answer import COUNT, NUMBER, Allowed

LAW = Allowed("a law of step times, such as plesio.cluster.Constant(0.1)", lambda value: isinstance(value, StepTime))


class Link(Checked, frozen=True):
    """A network link: the latency of a message, and the bandwidth in each direction."""

    latency_s: Annotated[float, NUMBER] = 0.0
    bytes_per_s: Annotated[float, OR_INFINITE] = INFINITE


class Group(Checked, frozen=True):
    """`workers` equal workers: their steps, their link and their outages."""

    workers: Annotated[int, COUNT]
    step: Annotated[StepTime, LAW]
    link: Link = Link()
    outage: Outage | None = None
