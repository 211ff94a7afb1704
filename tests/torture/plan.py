"""What a seed stands for: a cluster, a strategy, and which faults strike it how hard.

Each seed draws its own mix (swarm testing): some faults are off altogether, because one that is always on hides what
only shows without it. The ranges are those of simulators that found real bugs: up to 30 % of letters lost, up to 50 %
sent twice, partitions in both or one direction, crashes of anybody at any point.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from conformance.table import makers
from plesio.errors import ConfigurationError, StrategyError
from plesio.memory.gather import held_by
from plesio.strategy import Strategy, recipes
from plesio.worker.row_exchange import check_strategy
from torture.sessions.envelopes import Level

FAULTS = (
    "loss",
    "repeats",
    "delays",
    "partitions",
    "worker crashes",
    "server crashes",
    "two processes in one seat",
    "hangs",
    "departures",
    "stragglers",
    "clock drift",
    "clock jumps",
    "not finite",
)
ROW_FAULTS = ("table servers lag", "table server crashes")
"""Those of runs with tables."""
DEATHS = "server deaths"
"""The fault of runs whose server is reborn: its process dies, and what lies in memory stays."""
DEATHS_WITHIN_S = 0.1
"""Three in this time are the end; real servers have a minute."""
SWITCHES = "switches"
"""The fault of runs whose strategy is another one now and then."""
MOST_SERVERS = 3
STEP_S = 0.01
"""How long a step of an ordinary worker takes."""
RETRY_S = 0.05
HEARTBEAT_S = 0.1
SILENCE_S = 0.5
"""The lease of a worker: silent for longer, it has left."""
PATIENCE_S = 2.0
"""How long a worker that others wait for may take over a contribution."""
LATE = {"overlap": True, "ahead": 1}
"""Settings with which a worker goes on while its answer travels."""
LIVENESS_LEASES = 10
"""Within so many of the leases above everybody must get on once the faults are over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulated run; `faults` that are not named do not happen, whatever their rates say.

    Args:
        contributions: how many a worker is to make, on average, before the run may end.
        chaos_s: how long faults strike; then the network heals and everybody must get on.
        loss, repeats: the share of letters lost, sent twice. `spread_s`: how late a letter may be at most.
        checkpoint_s: how often the server writes one.
        epoch_batches: batches in an epoch of the data; at least one a worker.
    """

    seed: int
    workers: int
    contributions: int
    strategy: Strategy
    level: Level
    faults: frozenset[str]
    chaos_s: float
    loss: float
    repeats: float
    spread_s: float
    checkpoint_s: float
    epoch_batches: int
    strikes: int
    """How often each of the faults that strike at a moment does."""
    servers: int = 0
    """How many hold the rows of tables, to begin with; 0: there are no tables."""

    def __str__(self) -> str:
        faults = ", ".join(one for one in (*FAULTS, *ROW_FAULTS, DEATHS, SWITCHES) if one in self.faults) or "no faults"
        size = f"{self.workers} workers x {self.contributions} contributions"
        tables = f"rows at {self.servers} servers, " if self.servers else ""
        return f"{size}, {self.strategy.name}, {tables}answers when {self.level.name.lower()}; {faults}"


def draw(seed: int, workers: int | None = None, contributions: int | None = None) -> Plan:
    """The plan of `seed`; a size that is given is not drawn.

    >>> draw(7) == draw(7), draw(7, workers=3).workers
    (True, 3)
    """
    rng = random.Random(seed)
    some, many = rng.randint(1, 6), int(5 * 8 ** rng.random())
    workers, contributions = workers or some, contributions or many
    return Plan(
        seed=seed,
        workers=workers,
        contributions=contributions,
        strategy=_strategy(rng, workers),
        level=Level.DURABLE if rng.random() < 0.1 else rng.choice((Level.RECEIVED, Level.APPLIED)),
        faults=frozenset(one for one in FAULTS if rng.random() < 0.5),
        chaos_s=contributions * STEP_S * rng.uniform(0.7, 1.5) + 0.2,
        loss=0.3 * rng.random() ** 2,
        repeats=0.5 * rng.random() ** 2,
        spread_s=10 ** rng.uniform(-3, -0.3),
        checkpoint_s=rng.uniform(0.03, 0.4),
        epoch_batches=workers * rng.randint(1, max(8, contributions // 2)) + rng.randrange(workers),
        strikes=rng.randint(1, 3),
    )


def draw_with_rows(seed: int, workers: int | None = None, contributions: int | None = None) -> Plan:
    """The plan of `seed` for a model with a table, whose rows are at some servers.

    >>> plan = draw_with_rows(7)
    >>> plan == draw_with_rows(7), 1 <= plan.servers <= MOST_SERVERS
    (True, True)
    """
    plan, rng = draw(seed, workers, contributions), random.Random(f"rows {seed}")
    faults = plan.faults | {one for one in ROW_FAULTS if rng.random() < 0.6}
    return replace(
        plan,
        strategy=_strategy(rng, plan.workers, rows=True),
        level=rng.choice((Level.RECEIVED, Level.APPLIED)),
        faults=faults,
        servers=rng.randint(1, MOST_SERVERS),
    )


def draw_with_deaths(seed: int, workers: int | None = None, contributions: int | None = None) -> Plan:
    """The plan of `seed` for a server whose process dies now and then, and is reborn.

    >>> DEATHS in draw_with_deaths(7).faults
    True
    """
    plan = draw(seed, workers, contributions)
    return replace(plan, faults=plan.faults | {DEATHS})


def draw_with_rows_and_deaths(seed: int, workers: int | None = None, contributions: int | None = None) -> Plan:
    """The plan of `seed` for a server that holds the rows itself and is reborn with them.

    >>> draw_with_rows_and_deaths(7).servers
    1
    """
    plan, rng = draw_with_rows(seed, workers, contributions), random.Random(f"rows and deaths {seed}")
    strategy = plan.strategy
    while held_by(strategy) and not strategy.rows.at_once:  # such a run has no spare
        strategy = _strategy(rng, plan.workers, rows=True)
    return replace(plan, strategy=strategy, faults=plan.faults - {*ROW_FAULTS} | {DEATHS}, servers=1)


def draw_with_switches(
    seed: int, workers: int | None = None, contributions: int | None = None, *, deaths: bool = False
) -> Plan:
    """The plan of `seed` for a strategy of several phases, some of which begin at a version; its server may die and be reborn,
    and with `deaths` does.

    >>> plan = draw_with_switches(7)
    >>> len(plan.strategy.phases) > 1, plan == draw_with_switches(7)
    (True, True)
    """
    plan, rng = draw(seed, workers, contributions), random.Random(f"switches {seed}")
    faults = plan.faults | {SWITCHES} | ({DEATHS} if rng.random() < 0.6 or deaths else set())
    level = rng.choice((Level.RECEIVED, Level.APPLIED))  # a checkpoint waits for the drain, which is not to wait for it
    return replace(plan, faults=faults, level=level, strategy=_phases(rng, plan.workers, plan.contributions))


def way_to_draw(tables: bool, deaths: bool, switches: bool) -> Callable[[int, int | None, int | None], Plan]:
    """The one of the above that these settings stand for."""
    both = partial(draw_with_switches, deaths=True) if deaths else draw_with_switches
    if tables:
        return draw_with_rows_and_deaths if deaths else draw_with_rows
    return both if switches else draw_with_deaths if deaths else draw


def _phases(rng: random.Random, workers: int, contributions: int) -> Strategy:
    """Two to four strategies in turn, half of them from a version on."""
    versions = sorted(rng.sample(range(1, 3 + workers * contributions), 3))
    later = [
        (at, one) if rng.random() < 0.5 else one for at, one in zip(versions, _each_phase(rng, workers), strict=False)
    ]
    return recipes.phases(next(_each_phase(rng, workers)), *later[: rng.randint(1, 3)])


def _each_phase(rng: random.Random, workers: int) -> Iterator[Strategy]:
    """One after another that can be a phase."""
    while True:
        with suppress(StrategyError):
            yield recipes.phases(_strategy(rng, workers), recipes.async_sgd()).phases[0]


@cache
def _recipes(rows: bool) -> tuple[str, ...]:
    """Those that a server folds for. `rows`: and that step rows of tables."""
    made = {name: make() for name, make in makers(clients=True).items()}
    return tuple(name for name, one in made.items() if one.via.at_server and (not rows or _takes_rows(one)))


def _takes_rows(strategy: Strategy) -> bool:
    try:
        check_strategy(strategy, {})
    except ConfigurationError:
        return False
    return True


def _strategy(rng: random.Random, workers: int, rows: bool = False) -> Strategy:
    """A recipe of those a server folds for, with a setting that bites at this size. `rows`: of those that step rows of tables."""
    recipe = rng.choice(_recipes(rows))
    few = rng.randint(1, max(1, min(workers, 4)))
    settings = {
        "first_of": {"m": few, "cancel_late": rng.random() < 0.7},
        "bounded_staleness": {"s": few - 1},
        "buffered": {"k": few + 1},
        "rennala": {"k": few},
        "ringmaster": {"r": few},
        "quorum": {"k": few, "grace_s": (grace_s := rng.choice((None, STEP_S / 2, 3 * STEP_S)))},
        "decoupled": {"every": few, "quorum": few, "grace_s": grace_s},
    }
    chosen = settings.get(recipe, {})
    known = inspect.signature(recipes.RECIPES[recipe]).parameters
    if rng.random() < 0.5:
        chosen |= {name: value for name, value in LATE.items() if name in known}
    if rows and "rows" in known:
        chosen |= {"rows": rng.choice(("with", "each"))}
    return recipes.recipe(recipe, **chosen)
