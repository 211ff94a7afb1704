"""`Cluster`: the machines of a simulated run: step times, links and faults.

Pure data, checked when built, and functions that draw random numbers. Each worker has its own generator, seeded by
(seed, worker): neither the number of workers nor the order of events changes its draws.

>>> fast, slow = Group(workers=3, step=Constant(0.1)), Group(workers=1, step=LogNormal(0.5, 0.2))
>>> cluster = Cluster(groups=(fast, slow), faults=(Crash(worker=3, at_s=0.4),))
>>> run = ps.run(train, "async_sgd", workers=4, engine=ps.Simulated(cluster))
>>> [worker.left for worker in run.workers]
['finished', 'finished', 'finished', 'died']
"""

from __future__ import annotations

from plesio.cluster.description import Cluster
from plesio.cluster.faults import Crash, Join, Leave, Outage, Partition, Restart, Slow
from plesio.cluster.machines import Group, Link
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
