"""What an engine is asked to run, how the run stands, and what comes out of it."""

from __future__ import annotations

import socket
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from plesio.config import RunConfig
from plesio.config.faults import slowness
from plesio.errors import ConfigurationError
from plesio.observe.clients import ClientBook, Visit
from plesio.observe.logbook import Logbook
from plesio.observe.standing import ALL, ReaderNow, Standing
from plesio.observe.summary import Evaluation, Incident, Logged, lower_is_better
from plesio.observe.totals import Totals
from plesio.protocol.launcher import Final, Lately, Progress, SwitchRequest, ToServer
from plesio.server.keeping import Keeping
from plesio.strategy import Strategy
from plesio.tables.module import Table
from plesio.transport.secure import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a run waits for workers that somebody else starts.

    `token`: what they have to prove that they know; `credentials`: for TLS, None without; `rejoin_s`: how long a run whose
    workers are all gone waits for one of them; `trusts`: whether a worker may send code, as the structure of its model is,
    which evaluating takes: on Ray, where whoever is in the cluster runs code anyway; `servers_join`: how many of the run's
    table servers come, too, the last ones; `workers_token`: where readers come, that of workers; `takes_over`: the
    term of this head, if it was a standby, and was elected; `address`: where others find it, if that is not where it listens.
    """

    host: str
    port: int
    token: str = field(repr=False)
    credentials: Credentials | None
    rejoin_s: float
    trusts: bool = False
    servers_join: int = 0
    workers_token: str = field(default="", repr=False)
    takes_over: int = 0
    address: tuple[str, int] | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Where others find it: one that listens at all addresses of its host, by that one's name."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return self.address or (host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an engine is to run: the settings, and the user's functions. `train`: None where workers come from elsewhere."""

    config: RunConfig
    train: Callable[..., object] | None
    evaluate: Callable[..., object] | None
    model: Callable[[], nn.Module] | None = None
    """Builds the model that `evaluate` is given, if that is not to be a copy of a worker's."""
    incarnation: int = 1
    by_round: bool = False
    """Whether somebody looks at each version before the next round begins."""
    keeping: Keeping = Keeping()
    listening: Listening | None = None
    reading: Listening | None = None
    """Where it waits for those who only read it, and with which token of theirs."""
    sources: bytes = field(default=b"", repr=False)
    """The random sources as a lone worker finds them; empty: they are seeded."""
    log_level: int | None = None
    """From which level this process logs; None where nobody has configured that."""
    threads_here: int = field(default_factory=torch.get_num_threads)
    """How many torch has in the process that runs the job, as a loop without plesio would."""

    @property
    def function(self) -> Callable[..., object]:
        """The training function, where there is one."""
        assert self.train is not None, "these workers come from elsewhere"
        return self.train

    @property
    def table_servers(self) -> int:
        """How many processes hold the rows of tables, if the server does not hold them itself."""
        return self.config.servers if self.config.servers > 1 else 0

    @property
    def servers_here(self) -> int:
        """How many of these the run starts."""
        return self.table_servers - (self.listening.servers_join if self.listening is not None else 0)

    @property
    def comes_and_goes(self) -> bool:
        """Whether workers may come, and come back, while others train."""
        return self.listening is not None or self.config.seats > self.config.workers

    @property
    def threads(self) -> int:
        """How many threads torch has in the server's process and in each worker's. A server sleeps while one worker computes, or
        all of a round do, or each goes alone for many steps. (Workers that others start know too little to count on that.)"""
        phases, workers = self.config.strategy.phases, self.config.workers
        sleeps = workers == 1 or all(one.gather.in_rounds or one.send.stepped for one in phases)
        busy = 0 if sleeps and self.listening is None else 1
        return self.config.threads or max(1, self.threads_here // (workers * self.config.ranks + busy))


def pace_of(config: RunConfig, worker: int) -> float:
    """Steps a second that a worker makes at its pace alone; 0 where none is set."""
    return config.pace.speed(slowness(config.faults, worker)) if config.pace is not None else 0.0


@dataclass(slots=True)
class Outcome:
    final: Final | None = None
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    """The tables of the model by name, with their rows."""
    history: list[Evaluation] = field(default_factory=list)
    by_count: bool = False
    """Rounds or steps say when to evaluate, so a version is one point, also the last, which is judged at the end anyway."""
    logged: Logbook = field(default_factory=Logbook)
    clients: ClientBook = field(default_factory=ClientBook)
    incidents: list[Incident] = field(default_factory=list)
    begun_s: float | None = None
    """When training began, on the monotonic clock; None where time is virtual."""
    start_up_s: float = 0.0
    starting: str = ""
    """What was being done, where training had not begun."""
    evaluate_raised: str = ""
    """What `evaluate` did, if it did: its class and message, and a traceback."""
    returned: dict[int, Any] = field(default_factory=dict)
    """What training functions returned, by worker."""
    ended: str = "finished"
    interrupted: bool = False
    """By Ctrl-C: what there is may be kept, but nobody waits for it."""

    def visited(self, visits: Iterable[Visit]) -> None:
        """Clients were."""
        self.clients.add(visits)

    def hands_over(self, state_dict: dict[str, torch.Tensor], tables: dict[str, Table]) -> None:
        """The model as it was left."""
        self.state_dict, self.tables = state_dict, tables

    def judged(self, evaluation: Evaluation, raised: str, live: Live) -> None:
        """A snapshot was judged, or `evaluate` raised; the first time that is told."""
        live.metrics = {**live.metrics, **evaluation.metrics}  # not each has to measure everything
        live.evaluate_raised = raised
        if not raised:
            last = self.history[-1] if self.by_count and self.history else None
            if last is None or (last.version, last.metrics) != (evaluation.version, evaluation.metrics):
                insort(
                    self.history, evaluation, key=lambda one: one.time_s
                )  # several may judge, each as fast as it can
            if spread := self.clients.spread(lower_is_better):
                self.logged.add(Logged(evaluation.time_s, ALL, 0, spread))
        elif not self.evaluate_raised:
            self.evaluate_raised = raised
            what = f"evaluate raised {raised.splitlines()[0]}; nothing is evaluated from here on"
            incident = Incident(evaluation.time_s, None, what)
            self.incidents.append(incident)
            live.events.append(incident)


@dataclass(slots=True)
class Live:
    """How the run stands, for whoever watches it: times in seconds since training began, -1 before."""

    time_s: float = -1.0
    version: int = 0
    steps: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    evaluate_raised: str = ""
    book: Logbook = field(default_factory=Logbook, repr=False)
    """What workers logged."""
    readers: tuple[ReaderNow, ...] = ()
    """Who only reads it."""
    workers: int = 0
    """How many workers the run is to have, as it was begun or last scaled."""
    totals: Totals = field(default_factory=Totals, repr=False)
    """What the run has cost so far, as told last."""
    now: Standing | None = field(default=None, repr=False)
    """What the workers are at, as told last; another object each time."""
    events: list[Incident] = field(default_factory=list, repr=False)
    """What happened: deaths, workers that came, checkpoints."""
    lately: Lately | None = field(default=None, repr=False)
    """What the workers did lately, as told last; another object each time."""
    scaler: Callable[[int], None] | None = field(default=None, repr=False)
    keeper: Callable[[], None] | None = field(default=None, repr=False)
    """Has a checkpoint written, where they are asked for."""
    measurer: Callable[[float], None] | None = field(default=None, repr=False)
    """Asks what the workers did in the last seconds: `lately`."""
    order: Callable[[ToServer], None] = field(default=lambda order: None, repr=False)
    """Tells the server what whoever watches the run wants of it."""
    phases: tuple[str, ...] = ()
    """What the phases of the strategy are called, if it has any (`ps.phases`)."""

    @classmethod
    def of(cls, config: RunConfig, book: Logbook, time_s: float = -1.0) -> Live:
        return cls(time_s, workers=config.workers, book=book, phases=phase_names(config.strategy))

    def stands(self, told: Progress | Final) -> None:
        """So the run stands now."""
        self.time_s, self.version, self.steps, self.samples = told.wall_s, told.version, told.steps, told.samples
        self.totals, self.now = told, told.now

    @property
    def logged(self) -> dict[str, float]:
        """What workers logged, by name: the mean over all workers' last steps."""
        return self.book.last.means()

    def scale(self, workers: int) -> None:
        """Have so many workers from now on, from 1 to the run's `workers_max`.

        Missing ones are started; those with the highest numbers leave after their step. Learning rates, and data in equal
        parts, are shared among the new number at once.

        Raises:
            ConfigurationError, StrategyError: there cannot be so many.

        Example:
            def watch(live):
                if live.samples > 100_000:
                    live.scale(4)

            ps.run(train, ps.async_sgd(), workers=2, workers_max=4, watch=watch)
        """
        if self.scaler is None:
            raise ConfigurationError(f"scale({workers!r}): a simulated run has the workers of its cluster")
        self.scaler(workers)

    def switch(self, phase: str | int, why: str = "") -> None:
        """Go on in another phase of the strategy (`ps.phases`): as soon as all workers have come to their next exchange.

        Args:
            phase: its number, from 0, its name, or that of its recipe, if no other phase is of that.
            why: what the record of the run is to say of it.

        Raises:
            ConfigurationError: the strategy has no such phase.

        Example:
            def watch(live):
                if live.samples > 100_000:
                    live.switch("async_sgd")  # nothing, if it is in that phase already

            ps.run(train, ps.phases(ps.local_sgd(), ps.async_sgd()), workers=4, watch=watch)
        """
        if not self.phases:
            raise ConfigurationError(
                f"switch({phase!r}): the strategy has no phases; give ps.run a strategy that has (ps.phases)"
            )
        recipes = [name.partition("(")[0] for name in self.phases]
        found = {place for place, name in enumerate(self.phases) if phase in (place, name)} or {
            place for place, recipe in enumerate(recipes) if recipe == phase and recipes.count(recipe) == 1
        }
        if len(found) != 1 or isinstance(phase, bool):
            known = ", ".join(f"{place}: {name}" for place, name in enumerate(self.phases))
            raise ConfigurationError(
                f"switch({phase!r}): no phase of the run, or of several the name; its phases are {known}"
            )
        self.order(SwitchRequest(found.pop(), why))


def phase_names(strategy: Strategy) -> tuple[str, ...]:
    """What its phases are called; nothing if it has none."""
    return tuple(one.name for one in strategy.phases) if strategy.plan else ()


Watch = Callable[[Live], str | None]  # called as the run goes; says why it is to stop, if it is
