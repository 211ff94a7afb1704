"""Who sits where, in a run whose workers somebody else starts: they knock, and are given a seat or told why not.

    door --a connection that proved itself--> launcher --spawns--> deputy --Knock--> launcher --Seat, line--> deputy
                                                       (a worker of this host knocks by itself, and is given the line)

| the seat it asks for is | then                                                             |
| ----------------------- | ---------------------------------------------------------------- |
| empty                   | it is its own; of any, the lowest                                |
| a dead worker's         | it is its own, as the next incarnation                           |
| of one that is away     | the same: whoever is away for so long that another comes has left |
| taken                   | refused                                                          |
"""

from __future__ import annotations

import importlib.metadata
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from plesio.launch.job import Job
from plesio.launch.local.processes import Process, Processes, line
from plesio.protocol import launcher, remote
from plesio.strategy import Strategy
from plesio.transport.channel import ChannelClosedError, close_quietly


class Seats:
    """The seats of one run.

    Args:
        job: what is run.
        processes: all of the run's.
        watch: told of a process whose messages are to be heard.
    """

    def __init__(self, job: Job, processes: Processes, watch: Callable[[Process], None]) -> None:
        config = job.config
        self._job = job
        self._processes = processes
        self._watch = watch
        self._incarnations = [job.incarnation - 1] * config.workers
        self._holders: dict[int, Process] = {}
        self._tickets: dict[bytes, Process] = {}
        self._away: set[int] = set()
        self._options = config.as_document()
        self.begun = False
        """Whether training has begun."""
        self.finished: set[int] = set()
        """Workers whose training function returned: nobody takes their seats."""

    def arrived(self, arrival: launcher.Arrived, descriptors: Sequence[int]) -> None:
        """A connection proved itself at the door: it is a lost one's successor, a worker of this host, or one of another."""
        holder = self._tickets.get(arrival.ticket)
        if holder is not None and not holder.gone:
            with suppress(ChannelClosedError):
                holder.channel.send(remote.Reconnected(), descriptors)
            close_quietly(*descriptors)
        elif arrival.local:
            self._watch(self._processes.met(descriptors[0], arrival.address))
        else:
            self._watch(self._processes.deputy(descriptors[0], arrival.address))
            close_quietly(*descriptors)

    def knocked(self, process: Process, knock: remote.Knock) -> None:
        """Give it a seat, or tell it why not."""
        worker = self._free(knock.rank)
        refusal = self._unlike(knock) or self._late(knock) or (self._taken(knock) if worker is None else None)
        with suppress(ChannelClosedError):  # the others do not care
            if refusal is not None or worker is None:
                process.channel.send(refusal)
                return
            self._seat(process, worker, knock)

    def _seat(self, process: Process, worker: int, knock: remote.Knock) -> None:
        config, ticket = self._job.config, secrets.token_bytes(16)
        older = self._holders.get(worker)
        if older is not None:
            older.replaced = True
            older.kill()
        self._away.discard(worker)
        self._incarnations[worker] += 1
        self._holders[worker] = self._tickets[ticket] = process
        process.worker, process.title = worker, f"worker {worker}"
        terms = remote.Terms(
            config.workers,
            config.seed,
            config.timeout_s,
            config.strategy.name,
            config.strategy.as_data(),
            evaluates=self._job.evaluate is not None,
            trusts=self._job.listening is not None and self._job.listening.trusts,
        )
        seated = remote.Seated(worker, self._incarnations[worker], ticket, terms)
        with ExitStack() as ours:
            server_ends, own_ends = line(ours)
            opened = launcher.Opened(worker, self._incarnations[worker])
            self._processes.server.channel.send(opened, server_ends)
            process.channel.send(remote.Seat(seated), own_ends)

    def _free(self, wish: int) -> int | None:
        """The seat for one that would like `wish` (any, if that is -1)."""
        seats = range(self._job.config.workers)
        if wish >= 0:
            return wish if wish in seats and self._is_free(wish) else None
        empty = [worker for worker in seats if worker not in self._holders]
        return next((worker for worker in (*empty, *seats) if self._is_free(worker)), None)

    def _is_free(self, worker: int) -> bool:
        holder = self._holders.get(worker)
        return worker not in self.finished and (holder is None or holder.gone or worker in self._away)

    def away(self, process: Process, is_away: bool) -> None:
        """A deputy lost its worker, or has it again."""
        if process.worker is not None and self._holders.get(process.worker) is process:
            (self._away.add if is_away else self._away.discard)(process.worker)

    def _taken(self, knock: remote.Knock) -> remote.Refused:
        workers, for_now = self._job.config.workers, False
        if knock.rank >= workers:
            why = f"worker {knock.rank} has no seat: the run has {workers} workers, 0 to {workers - 1}"
        elif knock.rank in self.finished:
            why = f"worker {knock.rank} has finished: its part of the run is over"
        elif knock.rank >= 0:
            why = f"worker {knock.rank} is here already: two processes say that they are it; give each its own rank"
            for_now = True
        else:
            why = f"all {workers} seats are taken or have finished: start the run with more workers"
            for_now = len(self.finished) < workers
        return remote.Refused("ConfigurationError", why, for_now)

    def _late(self, knock: remote.Knock) -> remote.Refused | None:
        """Where workers fold among themselves, what one is told that comes when they do."""
        strategy = self._job.config.strategy
        if strategy.via.at_server or not self.begun:
            return None
        why = (
            f"{knock.who} comes too late: under {strategy.name} nobody joins once training has begun, and nobody comes back "
            "whose connection was lost for too long; under sync_sgd both can"
        )
        return remote.Refused("ConfigurationError", why)

    def _unlike(self, knock: remote.Knock) -> remote.Refused | None:
        """What it was told of the run that is not so; None if all is."""
        ours = importlib.metadata.version("plesio")
        if (knock.plesio, knock.protocol) != (ours, remote.PROTOCOL):
            why = (
                f"{knock.who} has plesio {knock.plesio} (protocol {knock.protocol}), the run's head has {ours} "
                f"({remote.PROTOCOL}): install the same on all hosts"
            )
            return remote.Refused("ConfigurationError", why)
        run = self._options["run"]
        told = {name: (value, run.get(name)) for name, value in knock.options.items()}
        if knock.strategy is not None:
            told |= _answers(knock.strategy, self._job.config.strategy)
        differing = [f"{name}={theirs!r}, not {mine!r}" for name, (theirs, mine) in told.items() if theirs != mine]
        if not differing:
            return None
        return remote.Refused(
            "ConfigurationError", f"{knock.who} was told other settings than the run has: {'; '.join(differing)}"
        )


def _answers(told: Mapping[str, Any], strategy: Strategy) -> dict[str, tuple[object, object]]:
    """What a worker was told of the strategy, and what is so: of another the name, else each question's answer."""
    mine = msgspec.to_builtins(strategy.as_data())
    if told.get("name") != strategy.name and any(told.get(name) != answer for name, answer in mine.items()):
        return {"strategy": (told.get("name"), strategy.name)}
    return {f"strategy's {name}": (told.get(name), answer) for name, answer in mine.items()}
