"""`Cluster`: the machines of a simulated run: step times, links and faults.

Pure data, checked when built, and functions that draw random numbers. Each worker has its own generator, seeded by
(seed, worker): neither the number of workers nor the order of events changes its draws.
"""

from __future__ import annotations

from plesio.cluster.description import Cluster, Group, Link
from plesio.cluster.faults import Crash, Join, Leave, Outage, Partition, Restart, Slow
from plesio.cluster.steps import Constant, Exponential, LogNormal, Pareto, Ranked, StepTime, Timetable, Trace, Walk

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
