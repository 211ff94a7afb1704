"""`Cluster`: the workers, their speeds and their connections."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import msgspec

from plesio.cluster import file
from plesio.cluster.check import Checked
from plesio.cluster.faults import AnyFault, Fault, Join, Slow, Turn
from plesio.cluster.machines import Group, Link
from plesio.cluster.presets import PRESETS
from plesio.cluster.steps import Timetable
from plesio.errors import ConfigurationError, unknown_name
from plesio.strategy.answers.answer import COUNT, Allowed

GROUPS = Allowed(
    "at least one plesio.cluster.Group(workers, step)",
    lambda value: len(value) > 0 and all(isinstance(one, Group) for one in value),
)


class Cluster(Checked, frozen=True):
    """The machines of a simulated run.

    Args:
        groups: groups of equal workers, numbered from 0 in this order.
        server: the server's link, which all messages share.
        faults: what happens to single workers, and when.

    Raises:
        ConfigurationError: an invalid number, or a fault of an unknown worker or at an impossible time.

    >>> from plesio.cluster import Constant, Crash, LogNormal
    >>> cluster = Cluster((Group(3, Constant(0.1)), Group(1, LogNormal(0.4, sigma=0.2))), faults=(Crash(worker=3, at_s=9),))
    >>> cluster.workers, cluster.timetable(worker=0, seed=1).step_s(now_s=0.0)
    (4, 0.1)
    """

    groups: Annotated[tuple[Group, ...], GROUPS]
    server: Link = Link()
    faults: tuple[AnyFault, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        alive: dict[int, bool] = {}
        workers = self.workers
        for number, fault in enumerate(self.faults):
            if not isinstance(fault, Fault):
                raise ConfigurationError(
                    f"faults[{number}]: {fault!r}: a simulated fault is one of plesio.cluster's, such as "
                    "plesio.cluster.Slow(worker=0, factor=10) or Crash(worker=1, at_s=5); ps.Slow and ps.Kill are for processes"
                )
            if not isinstance(fault.worker, int) or not 0 <= fault.worker < workers:
                raise ConfigurationError(f"faults[{number}]: {fault}: there are workers 0 to {workers - 1}")
        for turn in self.turns():
            before = alive.get(turn.worker, not isinstance(turn, Join))
            if before is turn.alive:
                which, there = self.faults.index(turn), "still" if before else "not"
                raise ConfigurationError(f"faults[{which}]: {turn}: worker {turn.worker} is {there} there then")
            alive[turn.worker] = turn.alive

    @property
    def workers(self) -> int:
        """The number of workers."""
        return sum(group.workers for group in self.groups)

    def turns(self) -> list[Turn]:
        """The faults by which workers come and go, in order of time."""
        return sorted((one for one in self.faults if isinstance(one, Turn)), key=lambda one: one.at_s)

    def absent(self) -> set[int]:
        """Workers that are not there at the start."""
        first = {turn.worker: turn for turn in reversed(self.turns())}
        return {worker for worker, turn in first.items() if isinstance(turn, Join)}

    @property
    def group_of(self) -> list[Group]:
        return [group for group in self.groups for _ in range(group.workers)]

    @property
    def away(self) -> list[bool]:
        """Which workers' messages take time, as of those on another host than the server."""
        return [one.link != Link() or self.server != Link() for one in self.group_of]

    def timetable(self, worker: int, seed: int) -> Timetable:
        """How long the steps of `worker` take in the run of `seed`."""
        return self.timetables(seed)[worker]

    def timetables(self, seed: int) -> list[Timetable]:
        """The timetables of all workers, made at once."""
        slows: dict[int, list[Slow]] = {}
        for one in self.faults:
            if isinstance(one, Slow):
                slows.setdefault(one.worker, []).append(one)
        made = []
        for worker, group in enumerate(self.group_of):
            rng, outage = random.Random(f"steps {seed} {worker}"), group.outage
            if outage is not None and outage.start_s is None:
                outage = msgspec.structs.replace(outage, start_s=rng.uniform(0.0, outage.every_s))
            made.append(Timetable(group.step.draws(worker + 1, rng), slows.get(worker, []), outage))
        return made

    def first(self, workers: int) -> Cluster:
        """The cluster of the first `workers` of these only."""
        if not isinstance(workers, int) or not 1 <= workers <= self.workers:
            raise ConfigurationError(f"workers={workers!r}: a whole number from 1 to {self.workers}, the cluster's")
        groups, left = [], workers
        for group in self.groups:
            if left > 0:
                groups.append(msgspec.structs.replace(group, workers=min(left, group.workers)))
            left -= group.workers
        return Cluster(tuple(groups), self.server, tuple(one for one in self.faults if one.worker < workers))

    @classmethod
    def preset(cls, name: str, workers: int = 8, step_s: float = 0.1) -> Cluster:
        """A cluster by name, with a usual step of about `step_s`.

        Raises:
            ConfigurationError: no such preset; the known ones are listed.

        >>> Cluster.preset("one-straggler", workers=4).groups[-1]
        Group(workers=1, step=LogNormal(median_s=1.0, sigma=0.1), link=Link(latency_s=0.0, bytes_per_s=inf), outage=None)
        """
        if name not in PRESETS:
            raise ConfigurationError(unknown_name("preset", name, PRESETS))
        if not COUNT.holds(workers):
            raise ConfigurationError(f"workers={workers!r}: a whole number of at least 1")
        return cls(**PRESETS[name](workers, step_s))

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """The cluster of a TOML file, whose keys are the fields of these classes (see examples/cluster.toml).

        Raises:
            ConfigurationError: the file cannot be read or describes no cluster; names the line and the key.
        """
        return file.load(Path(path), cls)
