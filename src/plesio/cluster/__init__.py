"""`Cluster`: the machines of a simulated run: how long steps take, how bytes travel, what goes wrong when.

Pure data, checked when it is built, and functions that draw from a random source. Each worker has a source of its own,
seeded from (seed, worker), so that neither the number of workers nor the order of events changes another worker's draws.
"""

from __future__ import annotations

from plesio.cluster.description import Cluster, Group, Link
from plesio.cluster.faults import Crash, Join, Leave, Outage, Partition, Restart, Slow
from plesio.cluster.steps import Constant, Exponential, LogNormal, Pareto, Ranked, StepTime, Trace, Walk
from plesio.cluster.timetable import Timetable

__all__ = [
    "Cluster",
    "Constant",
    "Crash",
    "Exponential",
    "Group",
    "Join",
    "Leave",
    "Link",
    "LogNormal",
    "Outage",
    "Pareto",
    "Partition",
    "Ranked",
    "Restart",
    "Slow",
    "StepTime",
    "Timetable",
    "Trace",
    "Walk",
]
