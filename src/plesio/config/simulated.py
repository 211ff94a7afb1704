"""`ps.Simulated(cluster)`: the place of a run that is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from plesio.cluster import Cluster
from plesio.config.engine import Engine
from plesio.errors import ConfigurationError

OF_PROCESSES = (
    "is for real processes; under Simulated(cluster) the cluster says how long steps last and what goes wrong: "
    "ps.Cluster(groups=..., faults=...)"
)


@dataclass(frozen=True, slots=True)
class Simulated(Engine):
    """Where a run is to take place: on the simulated machines of `cluster`.

    All of them are in this process: for N workers and W bytes of weights it takes up to about 4 N W of memory (1000 workers
    of a 4 MB model: 15 GB), a quarter of it for copies that processes would not need.

    Workers that are processes share nothing. Of these, each has its own copy of what the training function carries along
    (the object whose method it is, as in `ps.run(Trainer().train)`, or the arguments of a `functools.partial`, with the nested
    functions in these); but all share the globals of your modules, attributes of classes, and what a training function that
    is itself nested refers to, also with whoever called `ps.run`. So make the model and the optimizer in the training
    function, and change no data in place that it only refers to: `X.div_(255)` there would be done once for each worker.

    With `checkpoint=` checkpoints are written in virtual time. A resumed run begins at 0 s: faults and step times begin anew.

    Args:
        cluster: a `ps.Cluster`, or the name of a preset, which is made for as many workers as the run has.

    >>> Simulated("one-straggler").on(workers=4).workers
    4
    """

    clock: ClassVar[str] = "virtual"
    workers_max: ClassVar[int] = 60_000  # a journal numbers them below 65,536
    longest_s: ClassVar[float] = inf
    refuses: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("faults", "pace"), OF_PROCESSES),
        "ranks": "is for processes of this host: a simulated worker is one greenlet",
        "readers": "is for processes of this host: virtual time passes in a moment",
        "threads": "is for processes of this host; a simulated run has one",
        "workers_max": (
            "is for processes of this host, and for ps.join; in a simulated run the cluster says who is there when: "
            "ps.Cluster(faults=...)"
        ),
    }

    cluster: Cluster | str

    def on(self, workers: int) -> Cluster:
        """The cluster, for a run of `workers`."""
        cluster = Cluster.preset(self.cluster, workers) if isinstance(self.cluster, str) else self.cluster
        if not isinstance(cluster, Cluster):
            raise ConfigurationError(
                f"Simulated({cluster!r}): a ps.Cluster, or the name of a preset such as 'one-straggler'"
            )
        if cluster.workers != workers:
            raise ConfigurationError(
                f"workers={workers}, but the cluster has {cluster.workers}; give both the same number"
            )
        return cluster
