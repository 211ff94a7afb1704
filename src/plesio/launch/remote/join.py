"""`ps.join`: a process that somebody else started becomes a worker."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed import Store  # type: ignore[attr-defined]

from plesio.config import SETTINGS, RunConfig
from plesio.config.run_config import NEWEST
from plesio.entry import entered, entry
from plesio.errors import ConfigurationError, DeadlineError, ServerLostError, is_own, traceback_of, words_of
from plesio.launch.job import Job, Listening
from plesio.launch.leaving import LEAVE_S, LeavingBySignal
from plesio.launch.local.islands import Ties, together
from plesio.launch.local.worker_process import ProcessContext
from plesio.launch.newest import finished, say
from plesio.launch.remote import torchrun
from plesio.launch.remote.cores import local_rank, processes_here, threads_among
from plesio.launch.remote.find import LOOPBACK, RunPlace, given_token, place, token_of
from plesio.launch.remote.following import Following
from plesio.launch.remote.head import START_S, HeadAddress, start_head
from plesio.launch.remote.link import WorkerLink, persist, refusal
from plesio.launch.remote.rank import RankContext
from plesio.launch.remote.ranks import NEEDED, Ranks
from plesio.launch.remote.read import place_of
from plesio.launch.remote.worker import RemoteContext
from plesio.protocol import remote
from plesio.protocol.launcher import Failed, Finished
from plesio.strategy import Strategy
from plesio.strategy.recipes import DEFAULT
from plesio.transport import secure
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.connect import connect_here
from plesio.transport.island_group import broke
from plesio.transport.limits import SEAT_S
from plesio.worker.randomness.seeding import seed_everything
from plesio.worker.warn import warn, warn_no_more
from plesio.worker.worker import Worker, taking_part

REASON_S = 1.0  # how long the launcher may take to say why the server is gone
BESIDE = 15  # how far behind the head's port workers that all-reduce meet: less than SLURM steps are apart
REJOIN_S = 60.0  # how long a worker whose connection is lost, or whose head died, tries to come back


@entry("argument of ps.join", ConfigurationError, SETTINGS)
@entered
@contextmanager
def join(
    strategy: Strategy | str | Callable[..., Strategy] | None = None,
    *,
    address: str | None = None,
    token: str | None = None,
    certs: str | Path | None = None,
    insecure: bool = False,
    rank: int | None = None,
    rejoin_s: float = REJOIN_S,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    island: bool = False,
    leave_s: float = LEAVE_S,
    **options: Any,
) -> Iterator[Worker]:
    """Become a worker of a run, in a process that torchrun, SLURM, Ray or you have started.

    The body is what `train` is for `ps.run`.

    Args:
        strategy: as for `ps.run`; None takes the run's.
        address: HOST:PORT of the run's head (`plesio serve`), or several with commas between: one of them answers, and another
            if the head is started again there. Without it the environment says where it is: PLESIO_JOIN,
            torchrun's variables, or SLURM's. Under the last two, the first process starts a head and waits for its end.
        token: what proves that this worker may take part; else PLESIO_TOKEN, else ~/.plesio/token. Under torchrun rank 0
            tells the others.
        certs: a folder that `plesio certs` made, for TLS; else PLESIO_CERTS. Needed for other hosts.
        insecure: talk to other hosts in the clear.
        rank: this worker's number; None takes any that is free.
        rejoin_s: how long to try again when the head cannot be reached.
        evaluate: as for `ps.run`; judged at the head. Only for the process that starts the head.
        island: all processes that torchrun started here are one worker (docs/islands.md); else each is one of its own.
            PLESIO_JOIN says where the run is.
        leave_s: how long this process may take to leave after SIGTERM or Ctrl-C (`Worker.leave`) before it ends at once.
        options: those of `ps.run`. What differs from the run's is refused. With resume="newest" under torchrun and SLURM, a
            process ends with status 0 (SystemExit) where the newest run has finished; all hosts have to see `runs` for that.

    Raises:
        ConfigurationError: nothing says where the run is, it refuses the worker, or the options are not the run's.
        ServerLostError: the head cannot be reached for `rejoin_s`.

    >>> try:  # under torchrun, srun or Ray, or with PLESIO_JOIN in the environment, it trains
    ...     with ps.join("async_sgd") as worker:
    ...         train(worker)
    ... except ps.ConfigurationError as error:
    ...     print(error)
    nothing says where the run is. It is looked for in: address=HOST:PORT; PLESIO_JOIN=HOST:PORT in the environment; ...
    """
    where = _by_now(place(address, rank))
    config = RunConfig(
        **{"strategy": strategy or DEFAULT, "workers": max(1, where.workers), "leave_s": leave_s, **options}
    )
    all_reduce = config.strategy.via.by_collective
    ranks = Ranks.here(_environment(where) if all_reduce else os.environ) if island or all_reduce else None
    if ranks is not None and where.workers and not all_reduce:
        raise ConfigurationError(
            "island=True: the processes started here are one worker, and nothing says where its run is: start a head with plesio "
            "serve, and set PLESIO_JOIN=HOST:PORT (or address=) for each island"
        )
    credentials = where.credentials or secure.credentials(
        certs or os.environ.get("PLESIO_CERTS"), insecure, where.listens if where.starts else LOOPBACK
    )
    if where.workers and config.workers != where.workers:
        raise ConfigurationError(
            f"workers={config.workers}: {where.workers} processes were started; leave workers= out"
        )
    if evaluate is not None and not (where.starts or where.workers or where.actor):
        warn(
            "ps.join(evaluate=...) is for the process that starts the head; this one joins a head that is there, which evaluates "
            "nothing"
        )
    as_run = replace(config, workers=ranks.ranks).as_island() if all_reduce and ranks is not None else config
    if where.workers and config.resume == NEWEST and (done := finished(as_run, None)) is not None:
        say(f"the newest run, {done}, has finished: nothing is left to do")
        raise SystemExit(0)
    knock = _knock(as_run, where, options, strategy is not None)
    if ranks is not None:
        seat = 0 if all_reduce else knock.rank
        knock = msgspec.structs.replace(knock, ranks=ranks.ranks, place=ranks.rank, rank=seat)

    def start(secret: str) -> HeadAddress:
        listening = Listening(
            host=where.listens, port=where.port, token=secret, credentials=credentials, rejoin_s=rejoin_s
        )
        return start_head(where, config, evaluate, listening)

    find = _finder(where, token, start)

    addresses = where.addresses
    following = Following(find, addresses if where.others else None, credentials)
    leader, store = None, None
    if ranks is not None and ranks.rank:
        leader, store = ranks.heard(rejoin_s + START_S)
        where = replace(where, far=not leader.beside)
        knock = msgspec.structs.replace(knock, leader=leader.ticket, rank=leader.worker)

    def enter() -> NeighbourContext | RemoteContext:
        head = find()
        context, terms = joined(head)
        if port := terms.readers:
            host = addresses.now[0] if where.others else head.host
            context.read_at = place_of(host, port, head.token, head.credentials or credentials, where.far)
        if terms.standby:
            following.vote()
        return context

    def joined(head: HeadAddress) -> tuple[NeighbourContext | RemoteContext, remote.Terms]:
        """As which worker it takes part, and in what run."""
        near = None if where.far else connect_here(head.host, head.port, head.token)
        if near is not None:
            return _beside(near, knock, head.host)
        if leader is not None and leader.beside:
            raise ConfigurationError(
                f"{knock.who} is rank {knock.place} of worker {leader.worker}, whose rank 0 is on the head's own host and it is "
                "not: PLESIO_JOIN=tcp://HOST:PORT has all ranks go over the network"
            )
        link = WorkerLink(following.dial, knock, rejoin_s)
        return (RemoteContext if ranks is None else RankContext)(link), link.seated.terms

    target = f"the head at {addresses}" if where.host and where.port else "the run's head"
    context = persist(enter, lambda: max(rejoin_s, START_S) if where.workers else rejoin_s, target)
    if ranks is not None and store is None:
        store = ranks.tell(context.ticket, context.number, isinstance(context, NeighbourContext), rejoin_s)
    seed_everything(context.seed)
    context.island.local_rank = local_rank(context.number)
    beside = isinstance(context, NeighbourContext) or secure.is_loopback(where.host)
    here = processes_here(context.workers, beside)
    leaving = LeavingBySignal(lambda: context.process.tell_to_leave(), leave_s, (signal.SIGTERM, signal.SIGINT))
    with closing(following):
        try:
            with threads_among(here), leaving, _group(context, ranks, store):
                worker = Worker(context)
                with taking_part(worker):
                    yield worker
        except Exception as error:
            reason = context.reason() if isinstance(error, ServerLostError) else None
            if reason is not None:
                raise reason from error
            if context.refused or (ranks is not None and broke(error)):  # another rank ended, which is told for itself
                context.drop()
            else:
                context.over(Failed(type(error).__name__, words_of(error), traceback_of(error), is_own(error)))
            raise
        except BaseException:
            context.drop()
            raise
        context.over()
    if where.starts:
        find().wait()


@contextmanager
def _group(context: NeighbourContext | RemoteContext, ranks: Ranks | None, store: Store | None) -> Iterator[None]:
    """Inside, the ranks of an island are together."""
    if ranks is None or store is None:
        yield
        return
    if ranks.rank:
        warn_no_more()  # the leader does
    name, patience_s, collective_s = context.group_terms
    with together(store, ranks.rank, ranks.ranks, patience_s, name, ranks.own_host, collective_s) as group:
        context.gather(group, ranks.local_rank)
        yield


def _environment(where: RunPlace) -> Mapping[str, str]:
    """What says how workers that all-reduce meet: they are one group, which is together from beginning to end.

    Raises:
        ConfigurationError: nothing does.
    """
    known = dict(os.environ)
    if "WORLD_SIZE" not in known and where.workers:  # SLURM's, which gives every process the head's port
        known |= {"RANK": str(where.rank), "WORLD_SIZE": str(where.workers), "MASTER_ADDR": where.host}
        known |= {"MASTER_PORT": str(where.port + BESIDE), "LOCAL_RANK": known.get("SLURM_LOCALID", str(where.rank))}
    if lacking := [name for name in NEEDED if name not in known]:
        raise ConfigurationError(
            f"allreduce: its workers are one group of torch.distributed, and {', '.join(lacking)} is not in the environment: "
            "start all of them with torchrun (or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each); or take sync_sgd, "
            "whose workers come and go one by one"
        )
    return known


def _finder(where: RunPlace, token: str | None, start: Callable[[str], HeadAddress]) -> Callable[[], HeadAddress]:
    """How to find the head. If this process is to start it, it is there when this returns."""
    if where.store and not where.starts:
        return lambda: torchrun.head_in_store(where)
    if where.store:
        told = torchrun.tell_of_head(where, lambda: start(given_token(token) or secrets.token_hex()))
        return lambda: told
    secret = token_of(token)
    head = start(secret) if where.starts else None

    def find() -> HeadAddress:
        now = _by_now(where)
        return head or HeadAddress(now.host, now.port, secret, credentials=now.credentials)

    return find


def _by_now(where: RunPlace) -> RunPlace:
    """Where the head is: one that Ray restarts has another address with each of its lives."""
    if not where.actor:
        return where
    from plesio.launch.remote.ray_worker import found

    return found(where)


def _knock(config: RunConfig, where: RunPlace, options: dict[str, Any], strategy: bool) -> remote.Knock:
    document = config.as_document()["run"]
    return remote.Knock(
        who=f"{socket.gethostname()}:{os.getpid()}",
        plesio=importlib.metadata.version("plesio"),
        rank=where.rank,
        strategy={"name": config.strategy.name, **config.strategy.as_data()} if strategy else None,
        options={name: document.get(name) for name in options if name not in ("runs", "resume")},
    )


class NeighbourContext(ProcessContext):
    """The context of a process that somebody else started on the server's host: it maps the run's memory itself."""

    ticket: bytes

    def reason(self) -> Exception | None:
        """Why the run ended, if the launcher said so."""
        try:
            why = refusal(self._engine.receive(REASON_S)[0])
        except (ChannelClosedError, DeadlineError):
            return None
        self.hang_up()
        return why

    def drop(self) -> None:
        """End in the middle of anything: to the run that is a death."""
        self.hang_up()

    def over(self, failed: Failed | None = None) -> None:
        """The training function is over; if it raised, the launcher is told what. The process may go on for long."""
        with suppress(ChannelClosedError):  # nobody is left to tell
            self._engine.send(failed or Finished(self.state.early))
        self.hang_up()


def _beside(connection: socket.socket, knock: remote.Knock, host: str) -> tuple[NeighbourContext, remote.Terms]:
    """The context of a worker on the server's own host, which is at the other end of the connection."""
    launcher: Channel[Any] = Channel(connection, remote.ToProxy, "the launcher")
    launcher.send(knock)
    reply, line = launcher.receive(SEAT_S, "a seat")
    if not isinstance(reply, remote.SeatGiven):
        raise refusal(reply)
    seated, terms = reply.seated, reply.seated.terms
    config = RunConfig(
        strategy=Strategy.from_data(terms.name, terms.strategy),
        workers=terms.workers,
        workers_max=terms.seats,
        seed=terms.seed,
        timeout_s=terms.timeout_s,
        data="leases" if terms.stealing else "shards",
        ranks=knock.ranks,
    )
    ends = 0 if knock.leader else 3
    ties = Ties(knock.place, line[ends:])
    context = NeighbourContext(
        Job(config=config, train=None, evaluate=None), seated.worker, launcher, line[:ends], ties
    )
    context.ticket = seated.ticket
    context.lenient, context.by_round = terms.lenient, terms.by_round
    context._shows = terms.evaluates or terms.by_round
    return context, terms
