"""Who sits where, where workers come while others train: somebody else starts them, or the run is scaled.

Those that somebody else starts knock, and are given a seat or told why not:

    door --a connection that proved itself--> launcher --spawns--> proxy --Knock--> launcher --Seat, line--> proxy
                                                       (a worker of this host knocks by itself, and is given the line)

Of a worker that is several processes the first has the seat; the others are given their ends of what ties them to it.

| the seat it asks for is | then                                                             |
| ----------------------- | ---------------------------------------------------------------- |
| empty                   | it is its own; of any, the lowest                                |
| a dead worker's         | it is its own, as the next incarnation                           |
| of one that is away     | the same: a successor takes the seat of an absent worker         |
| taken                   | refused                                                          |
| above the run's workers | the server scales the run, up to `workers_max`, once it takes part |

A run that starts its workers itself starts those that are missing when it is scaled up. Scaled down, those in the highest seats
are told to leave. They do, even if the run is scaled up meanwhile: then others take their seats.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from plesio.errors import ConfigurationError, PlesioError, ServerLostError
from plesio.launch.job import Job
from plesio.launch.local.output import named
from plesio.launch.local.processes import TABLE_SERVER_TITLE, Process, Processes, line
from plesio.protocol import launcher, remote
from plesio.protocol.coding import cut
from plesio.strategy import Strategy
from plesio.transport.channel import ChannelClosedError, channel_pair, close_quietly
from plesio.transport.secure import STANDBY, VOTES

log = logging.getLogger("plesio")
IN_VAIN_MAX = 2  # how often in a row an island begins anew, and loses a process before it has shown a version
RANKS_MAX = 240  # of a worker: as many descriptors as one message takes


class Seats:
    """The seats of one run; `watch` is told of a process whose messages are to be heard."""

    def __init__(self, job: Job, processes: Processes, watch: Callable[[Process], None]) -> None:
        config = job.config
        self._job = job
        self._processes = processes
        self._watch = watch
        self.workers = config.workers  # how many the run is to have
        self._incarnations = [job.incarnation - 1] * config.seats
        if job.train is not None:  # these sit already
            self._incarnations[: config.workers] = [job.incarnation] * config.workers
        self._to_start: set[int] = set()  # once whoever sat there has left
        self._holders: dict[int, Process] = {}
        self.table_servers: list[Process] = []  # that joined
        self._tickets: dict[bytes, Process] = {}
        self._away: set[int] = set()
        self._options = config.as_document()
        self.begun = False  # whether training has
        self._anew_at = -1  # the version that an island began from anew,
        self._in_vain = 0  # and how often it did without another since
        self.finished: set[int] = set()  # workers whose training function returned: nobody takes their seats

    def arrived(self, arrival: launcher.Arrived, descriptors: Sequence[int]) -> None:
        """A connection proved itself at the door: it is a lost one's successor, a worker of this host, or one of another."""
        if arrival.ticket in (VOTES, STANDBY):
            self._processes.tell_standbys(arrival, descriptors)
            close_quietly(*descriptors)
            return
        holder = self._tickets.get(arrival.ticket)
        if holder is not None and not holder.gone:
            with suppress(ChannelClosedError):
                holder.channel.send(remote.Reconnected(), descriptors)
            close_quietly(*descriptors)
        elif arrival.local:
            self._watch(self._processes.met(descriptors[0], arrival.address))
        else:
            self._watch(self._processes.proxy(descriptors[0], arrival.address))
            close_quietly(*descriptors)

    def knocked(self, process: Process, knock: remote.Knock) -> None:
        """Give it a seat, or tell it why not."""
        take = self._seat_table_server if knock.holds_rows else self._seat_rank if knock.leader else self._seat_worker
        with suppress(ChannelClosedError):  # it has gone, and the others do not care
            why, for_now = take(process, knock)
            if why:
                process.channel.send(remote.SeatRefused("ConfigurationError", why, for_now))
                log.info("%s was refused: %s", knock.who, cut(why))

    # These say why there is no seat, if there is none, and whether that is perhaps only for now

    def _seat_worker(self, process: Process, knock: remote.Knock) -> tuple[str, bool]:
        if why := self._unlike(knock):
            return why, False
        if (worker := self._free(knock.rank)) is None:
            return self._taken(knock)
        self._seat(process, worker, knock)
        here = sum(not one.gone for one in self._holders.values())
        log.info("worker %d is %s; %d of %d are here", worker, knock.who, here, self.workers)
        return "", False

    def _seat_rank(self, process: Process, knock: remote.Knock) -> tuple[str, bool]:
        """Tie it to the first rank of its island, which has the seat."""
        leader = self._tickets.get(knock.leader)
        if leader is None or leader.gone or leader.replaced or knock.place not in leader.ties:
            return f"{knock.who}: rank {knock.place} comes too late, twice, or its rank 0 is not here any more", False
        assert leader.worker is not None, "it has a ticket"
        process.worker, process.rank = leader.worker, knock.place
        process.title = named(process.worker, process.rank, knock.ranks)
        tie = leader.ties.pop(knock.place)
        seated = self._seated(process, process.worker, self._incarnations[process.worker])
        process.channel.send(remote.SeatGiven(seated), [tie])
        close_quietly(tie)
        log.info("%s is %s", process.title, knock.who)
        return "", False

    def _seat_table_server(self, process: Process, knock: remote.Knock) -> tuple[str, bool]:
        vacant, joining = self._processes.vacant, self._job.table_servers - self._job.servers_here
        if why := self._unlike(knock):
            return why, False
        if not vacant:
            here = f"all {joining} that it waits for are here"
            how = here if joining else "begin it with --servers and --servers-join"
            return f"the run needs no table server: {how}", False
        number = min(vacant)
        line = vacant.pop(number)
        process.title = f"{TABLE_SERVER_TITLE}{number} at {cut(knock.who)}"
        self.table_servers.append(process)
        process.channel.send(remote.SeatGiven(self._seated(process, number, 1)), [line])
        close_quietly(line)
        log.info("%s; %d of %d are here", process.title, joining - len(vacant), joining)
        return "", False

    def tell(self, error: PlesioError | None) -> int:
        """Tell workers that somebody else started, and table servers, why the run ended; how many. Of an end without an error
        only table servers need be told. Where the server is lost, they may come back to another."""
        holders = [one for one in self._holders.values() if error] + self.table_servers
        told = [one for one in holders if not one.gone and not isinstance(error, ServerLostError)]
        for process in told:
            with suppress(ChannelClosedError):
                process.channel.send(remote.SeatRefused(type(error).__name__, str(error)) if error else remote.Parted())
        return len(told)

    def _seat(self, process: Process, worker: int, knock: remote.Knock) -> None:
        for one in self._processes.island(worker):
            one.replaced = True
            one.kill()
            close_quietly(*one.ties.values())
            one.ties.clear()
        self._away.discard(worker)
        self._incarnations[worker] += 1
        self._holders[worker] = process
        process.worker, process.title = worker, named(worker, 0, knock.ranks)
        seated = self._seated(process, worker, self._incarnations[worker])
        with ExitStack() as ours:
            own_ends = self._open(worker, ours, away=process.ours)  # a proxy is
            for rank in range(1, knock.ranks):
                own, other = channel_pair()
                own_ends.append(ours.enter_context(own).fileno())
                process.ties[rank] = other.detach()
            process.channel.send(remote.SeatGiven(seated), own_ends)

    def _seated(self, process: Process, number: int, incarnation: int) -> remote.Seated:
        """What it is told, with a ticket."""
        ticket = secrets.token_bytes(16)
        self._tickets[ticket] = process
        return remote.Seated(number, incarnation, ticket, terms_of(self._job))

    def _open(self, worker: int, ours: ExitStack, away: bool = False) -> list[int]:
        """Tell the server who comes; the ends of that worker's line, which `ours` closes here."""
        server_ends, own_ends = line(ours)
        opened = launcher.Opened(worker, self._incarnations[worker], away)
        self._processes.tell_server(opened, server_ends)
        return own_ends

    def _free(self, wish: int) -> int | None:
        """The seat for one that would like `wish` (any, if that is -1)."""
        seats = range(self._job.config.seats)
        empty = [worker for worker in seats[: self.workers] if worker not in self._holders]
        wanted = (*empty, *seats) if wish < 0 else (wish,)
        return next((worker for worker in wanted if worker in seats and self._is_free(worker)), None)

    # Scaling

    def check(self, workers: int) -> None:
        """Raise `ConfigurationError` or `StrategyError` if the run cannot have so many."""
        config = self._job.config
        if config.workers_max is None:
            raise ConfigurationError(
                f"scale({workers!r}): the run has {config.workers} workers from beginning to end; start it with workers_max="
            )
        if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= config.seats:
            raise ConfigurationError(
                f"scale({workers!r}): a whole number from 1 to {config.seats}, the run's workers_max"
            )
        config.strategy.check_workers(workers)

    def scale(self, workers: int) -> None:
        if workers == self.workers:
            return
        self._processes.tell_server(launcher.Scale(workers))
        for process in self._processes.workers:
            process.leaving = process.leaving or (process.worker or 0) >= workers
        new = set(range(self.workers, workers))
        self.finished -= new
        if self._job.train is not None:
            self._to_start = {worker for worker in self._to_start if worker < workers} | new
        self.workers = workers

    def begin_anew(self, worker: int, version: int) -> bool:
        """An island whose processes all-reduce lost one: have it started again; whether that is news."""
        if not self._job.config.strategy.every.among_ranks or self._job.train is None:
            return False
        if worker in self._to_start:
            return False
        self._in_vain = self._in_vain + 1 if version <= self._anew_at else 0
        self._anew_at = version
        if self._in_vain > IN_VAIN_MAX:
            self._processes.tell_server(launcher.Stop())
            return False
        self._to_start.add(worker)
        return True

    def fill(self) -> None:
        """Start workers for the seats that are new, or have been left."""
        for worker in sorted(self._to_start):
            older = self._processes.island(worker)
            if not all(one.gone for one in older):
                continue
            self._to_start.discard(worker)
            self._incarnations[worker] += 1
            for one in older:
                one.replaced = True
            with ExitStack() as ours:
                for one in self._processes.worker(worker, self._open(worker, ours), self._job.config.ranks):
                    self._watch(one)

    def has_finished(self, process: Process) -> None:
        """A training function returned. Nobody takes that seat, unless the worker was told to leave."""
        if process.worker is not None and process.is_leader and not process.leaving:
            self.finished.add(process.worker)

    def _is_free(self, worker: int) -> bool:
        holder = self._holders.get(worker)
        return worker not in self.finished and (holder is None or holder.gone or worker in self._away)

    def away(self, process: Process, is_away: bool) -> None:
        """A proxy lost its worker, or has it again."""
        if process.worker is not None and self._holders.get(process.worker) is process:
            (self._away.add if is_away else self._away.discard)(process.worker)

    def _taken(self, knock: remote.Knock) -> tuple[str, bool]:
        """Why there is no seat for it, and whether that is perhaps only for now."""
        workers = self._job.config.seats
        if knock.rank >= workers:
            return f"worker {knock.rank} has no seat: the run has {workers} workers, 0 to {workers - 1}", False
        if knock.rank in self.finished:
            return f"worker {knock.rank} has finished: its part of the run is over", False
        if knock.rank >= 0:
            why = f"worker {knock.rank} is here already: two processes say that they are it; give each its own rank"
            return why, True
        why = f"all {workers} seats are taken or have finished: start the run with more workers, or with workers_max"
        return why, len(self.finished) < workers

    def _unlike(self, knock: remote.Knock) -> str:
        """What it was told of the run that is not so, if anything."""
        ours = importlib.metadata.version("plesio")
        if (knock.plesio, knock.protocol) != (ours, remote.PROTOCOL):
            return (
                f"{knock.who} has plesio {knock.plesio} (protocol {knock.protocol}), the run's head has {ours} "
                f"({remote.PROTOCOL}): install the same on all hosts"
            )
        ranks = self._job.config.ranks
        if not 1 <= knock.ranks <= RANKS_MAX or ranks not in (1, knock.ranks):
            of = f"is to have ranks={ranks}" if ranks > 1 else f"may have up to {RANKS_MAX}"
            return f"{knock.who} is a worker of {knock.ranks} processes; each of the run {of}"
        run = _as_told(self._options["run"])
        told = {name: (value, run.get(name)) for name, value in knock.options.items()}
        if knock.strategy is not None:
            told |= _answers(knock.strategy, self._job.config.strategy)
        differing = [f"{name}={theirs!r}, not {mine!r}" for name, (theirs, mine) in told.items() if theirs != mine]
        return f"{knock.who} was told other settings than the run has: {'; '.join(differing)}" if differing else ""


def _as_told(options: dict[str, Any]) -> dict[str, Any]:
    """As they come from another process: what is a tuple here is a list there."""
    told: dict[str, Any] = json.loads(json.dumps(options))  # msgpack has no integers of more than 64 bits
    return told


def _answers(told: Mapping[str, Any], strategy: Strategy) -> dict[str, tuple[object, object]]:
    """What a worker was told of the strategy, and what is so: of another the name, else each question's answer."""
    mine = _as_told(strategy.as_data())
    if told.get("name") != strategy.name and any(told.get(name) != answer for name, answer in mine.items()):
        return {"strategy": (told.get("name"), strategy.name)}
    return {f"strategy's {name}": (told.get(name), answer) for name, answer in mine.items()}


def terms_of(job: Job) -> remote.Terms:
    """What whoever takes part has to know of the run."""
    config = job.config
    return remote.Terms(
        config.workers,
        config.seats,
        config.seeded,
        config.timeout_s,
        config.strategy.name,
        config.strategy.as_data(),
        evaluates=job.evaluate is not None,
        trusts=job.listening is not None and job.listening.trusts,
        lenient=config.on_worker_error == "continue",
        stealing=config.stealing,
        servers=config.servers,
        by_round=job.by_round,
        readers=job.reading.port if job.reading is not None else 0,
        standby=config.standby > 0,
    )
