"""`RunConfig`: every setting of a run, once.

A field has its name, its type, its default, its help, its check and its options on the command line. `ps.run` lists the
same names and defaults for editors (a test compares them), `plesio.cli.options` makes the command line from them, and
run.toml is `as_document`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from plesio.cluster.check import OR_INFINITE
from plesio.cluster.presets import PRESETS
from plesio.config.checkpoint import Checkpoint
from plesio.config.engine import LOCAL, Engine
from plesio.config.evaluations import Every, Rounds
from plesio.config.faults import Fault, Kill, Pace, Slow
from plesio.config.on_ray import Ray
from plesio.config.rules import BY_TORCH, DURABLE, ISLANDS, SERVERLESS, STANDBY, TOGETHER, refuse
from plesio.config.setting import Option, Setting, setting
from plesio.config.simulated import Simulated
from plesio.config.until import Until
from plesio.errors import ConfigurationError, StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers.answer import WHOLE
from plesio.strategy.answers.work import Seconds
from plesio.strategy.recipes import DEFAULT, RECIPES, recipe
from plesio.strategy.rules import why_not

SEED_MAX = 2**63 - 1
SERVERS_MAX = 64
STANDBYS_MAX = 7
EVALUATE_S = 0.5
NEWEST = "newest"
"""`resume=`: the newest run under `runs` that did not finish; given the folder `runs` itself, it means the same."""
STRATEGY = (
    'How workers keep step: a name that `plesio strategies` lists, with settings if wanted: "local_sgd(every=16)".'
)
UNTIL = (
    "Stop at a value that evaluate(model) returns, such as accuracy=0.95 (at least; at most for names with loss, error, mse, "
    "mae, perplexity or nll in them, but for neg_...), or at a number of samples, or of steps (a resumed run goes on "
    "counting). May be repeated."
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run.

    Raises:
        ConfigurationError, StrategyError: a setting that cannot work, alone or with the others.
    """

    strategy: Strategy = setting(
        DEFAULT,
        Option("--strategy", STRATEGY, "NAME", str, DEFAULT),
        Option("--set", "A setting of the strategy: every=16, every=0.3s. May be repeated.", "KEY=VALUE"),
    )
    workers: int = setting(MISSING, help="How many workers.", typed_default=4)
    workers_max: int | None = setting(
        None,
        Option(
            "--workers-max",
            "Up to how many workers may join; the run is scaled for those beyond --workers.",
            "N",
            int | None,
        ),
    )
    ranks: int = setting(
        1,
        help="How many processes each worker is made of. They train one copy of the model together, as torch's FSDP2, "
        "DistributedDataParallel or tensor parallelism have it; worker.island says which one this is.",
        metavar="N",
    )
    engine: str | Simulated | Ray = setting(
        "local",
        Option("--cluster", f"The machines: {', '.join(PRESETS)}; or a TOML file.", "NAME|FILE", str | None),
    )
    seed: int | None = setting(
        None,
        help="Seeds everything random: initial weights, order of data, jitter; left out: 0, and one worker begins with the "
        "random sources as the script has left them.",
        metavar="N",
    )
    data: str = setting(
        "leases",
        help="leases: fast workers take more of the data; shards: each gets an equal part. Strategies in lock step always "
        "share out evenly. new: leases of other data than the run had that is resumed, whose epochs begin anew.",
        words=("leases", "shards", "new"),
    )
    faults: tuple[Fault, ...] = setting(
        (),
        Option("--slow", "Make a worker slower; 0:10 is ten times. May be repeated.", "WORKER:FACTOR"),
        Option("--kill", "Kill a worker (or: server) that long into training. May be repeated.", "WORKER:SECONDS"),
        kind=tuple,
        example="a list of ps.Slow(...) and ps.Kill(...)",
    )
    pace: Pace | None = setting(
        None,
        Option("--pace", "Make a step last at least this long, in place of an accelerator.", "SECONDS", float | None),
        Option("--jitter", "Let paced steps vary by this share (normal, 0 to 1).", "SHARE", float, 0.0),
        kind=Pace | None,
        example="seconds a step, such as 0.02, or ps.Pace(step_s=0.02, jitter=0.1)",
    )
    evaluate_every: Every | None = setting(
        None,
        Option("--evaluate-every-rounds", "Evaluate every N rounds (a round makes a version).", "N", int | None),
        kind=Every | None,
        example="such as ps.Rounds(5), ps.Steps(100) or ps.Seconds(2)",
    )
    evaluate_every_s: float | None = setting(
        None,
        help="Pause between two evaluations, in seconds. Left out: 0.5, and under a federated recipe each round is evaluated.",
        metavar="SECONDS",
    )
    until: Until = setting(
        None,
        Option("--until", UNTIL, "NAME=VALUE"),
        Option("--budget-s", "Stop after this long.", "SECONDS", float | None),
        kind=Until,
        example="such as ps.Until(accuracy=0.95, seconds=30)",
    )
    on_worker_error: str = setting(
        "raise",
        help="An exception in one worker: raise ends the run, continue goes on without that worker.",
        words=("raise", "continue"),
    )
    on_nonfinite: str = setting(
        "discard",
        help="A contribution with a NaN or an infinity: discard drops and counts it, raise ends the run. A run that drops "
        "all of its contributions ends with an error either way.",
        words=("discard", "raise"),
    )
    timeout_s: float = setting(
        300.0,
        help="Seconds after which any wait of a process for another ends in a DeadlineError.",
        metavar="SECONDS",
    )
    leave_s: float = setting(
        30.0,
        help="Seconds that a worker has to leave in good order after SIGTERM (`Worker.leave`), before it ends at once.",
        metavar="SECONDS",
    )
    threads: int | None = setting(
        None,
        help="How many torch has in each process; left out: its share of the cores.",
        metavar="N",
    )
    readers: bool | str | None = setting(
        None,
        Option(
            "--readers",
            "Where those who only read the run find it (ps.read).",
            "HOST:PORT",
            str | None,
        ),
        kind=bool | str | None,
        example="True, for readers of this host, or 'HOST:PORT'",
    )
    servers: int = setting(
        1,
        help="How many servers hold the rows of tables (ps.Table), each a process of its own if there are several.",
        metavar="N",
    )
    checkpoint: Checkpoint | None = setting(
        None,
        Option("--checkpoint-every-s", "Write a checkpoint into the run folder this often.", "SECONDS", float | None),
        kind=Checkpoint | None,
        example="such as ps.Checkpoint(every_s=60)",
    )
    durability: str = setting(
        "auto",
        help="What survives the server's death. process: everything, for a spare process goes on; none: the last checkpoint; "
        "auto: process where checkpoints are kept, the model has no tables, and it can be.",
        words=("auto", "none", "process"),
    )
    standby: int = setting(
        0,
        help="How many standbys may follow the run's head from other hosts (plesio standby), to go on if its host dies. For "
        "workers that join (plesio serve, ps.join): those of ps.run are on the host that dies.",
        metavar="N",
    )
    acknowledge: str = setting(
        "head",
        help="Who has a contribution by the time that its worker hears of it. head: the death of the head's host may undo what "
        "no standby had; standby: all standbys have it, too.",
        words=("head", "standby"),
    )
    resume: Path | str | None = setting(
        None,
        Option(
            "--resume",
            "Go on from the newest checkpoint of that run folder; newest: of the newest run of the same strategy and function "
            "in --runs that did not finish, so that one command line begins, goes on, and is done.",
            "RUN|newest",
            str | None,
        ),
        kind=Path | str | None,
        example="the folder of a run that kept checkpoints, or 'newest'",
    )
    runs: Path | None = setting(
        None,
        Option("--runs", "Where run folders go.", "DIR", Path, Path("runs")),
        kind=Path | None,
        example="a folder for run folders, such as 'runs'",
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        self._convert()
        for name, one in SETTINGS.items():
            one.check(name, getattr(self, name))
        self.strategy.check_workers(self.workers)
        refuse(TOGETHER, self)
        if self.standby and (why := why_not(STANDBY, self)):
            raise ConfigurationError(f"standby={self.standby}: {why}")
        self._check_faults()
        self._check_refused()
        self._check_ranks()
        if not self.strategy.via.by_collective:  # else it is seen where the run starts
            self.check_server()

    def _convert(self) -> None:
        """What may be given in a shorter form: a recipe by its name, a pace in seconds, paths as text."""
        given = dict(vars(self))
        strategy = given["strategy"]
        if not isinstance(strategy, Strategy):
            name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", None)
            if name not in RECIPES and not isinstance(strategy, str):
                such = f"give a strategy such as ps.async_sgd(), or one of the names {', '.join(RECIPES)}"
                raise StrategyError(f"strategy={strategy!r}: {such}")
            given["strategy"] = recipe(str(name), self.workers)
        if given["until"] is None:
            given["until"] = Until()
        if isinstance(given["pace"], (int, float)):
            given["pace"] = Pace(step_s=given["pace"])
        given["readers"] = given["readers"] or None
        if isinstance(given["faults"], list):
            given["faults"] = tuple(given["faults"])
        for name in ("resume", "runs"):
            if isinstance(given[name], str) and (name, given[name]) != ("resume", NEWEST):
                given[name] = Path(given[name])
        if given["resume"] is not None and given["resume"] == given["runs"]:
            given["resume"] = NEWEST
        vars(self).update(given)  # the class is frozen

    def _check_refused(self) -> None:
        """Raise `ConfigurationError` for a setting that the engine does not take. As many workers as there are is no scaling."""
        more = {"workers_max": self.seats > self.workers, "ranks": self.ranks > 1}
        for name, why in self.place.refuses.items():
            if more.get(name, getattr(self, name) not in (None, ())):
                raise ConfigurationError(f"{name}={getattr(self, name)} {why}")

    def _check_numbers(self) -> None:
        """No process waits for virtual time: it may be as long as one likes."""
        most, longest_s = self.place.workers_max, self.place.longest_s
        bounds = {"workers": (1, most), "workers_max": (self.workers, most), "threads": (1, inf), "seed": (0, SEED_MAX)}
        bounds["servers"] = 1, SERVERS_MAX
        bounds["ranks"] = 1, most
        bounds["standby"] = 0, STANDBYS_MAX
        for name, (least, largest) in bounds.items():
            value = getattr(self, name)
            if value is None and name not in ("workers", "servers", "ranks", "standby"):
                continue
            if not WHOLE.holds(value) or not least <= value <= largest:
                to = f" to {largest}" if largest < inf else ""
                raise ConfigurationError(f"{name}={value!r}: a whole number from {least}{to}")
        for name in ("evaluate_every_s", "timeout_s", "leave_s"):
            value = getattr(self, name)
            if value is None and name == "evaluate_every_s":
                continue
            if not OR_INFINITE.holds(value) or value > longest_s:
                raise ConfigurationError(f"{name}={value!r}: a number of seconds above 0, at most {longest_s:,.0f}")

    def _check_ranks(self) -> None:
        if self.ranks == 1:
            return
        processes, most = self.seats * self.ranks, self.place.workers_max
        if processes > most:
            raise ConfigurationError(
                f"{self.seats} workers of ranks={self.ranks} are {processes} processes: at most {most}"
            )
        if why := why_not(ISLANDS, self.strategy):
            such = "take sync_sgd, async_sgd, local_sgd, async_local_sgd or diloco, or leave ranks out"
            raise ConfigurationError(f"ranks={self.ranks}: under {self.strategy.name} {why}; {such}")

    def _check_faults(self) -> None:
        for fault in self.faults:
            if not isinstance(fault, (Slow, Kill)):
                raise ConfigurationError(f"faults={fault!r}: a fault is ps.Slow(...) or ps.Kill(...)")
            if fault.worker is not None and fault.worker >= self.numbered:
                raise ConfigurationError(f"{fault}: there are workers 0 to {self.numbered - 1}")

    def as_island(self) -> RunConfig:
        """The same run with its workers as the ranks of one island, in which they all-reduce by torch."""
        refuse(BY_TORCH, self)
        return replace(self, strategy=self.strategy.as_island, workers=1, workers_max=None, ranks=self.workers)

    @property
    def why_not_durable(self) -> str:
        """Why nobody could go on from a dead server; empty if somebody could."""
        return why_not(DURABLE, self)

    @property
    def is_durable(self) -> bool:
        """Whether a spare of the server goes on when that dies."""
        if self.durability == "auto":
            return self.checkpoint is not None and not self.standby and not self.why_not_durable
        return self.durability == "process"

    def check_server(self) -> None:
        """Raise `ConfigurationError` for settings that need a server, where workers fold without one."""
        if self.durability == "process" and (why := self.why_not_durable):
            raise ConfigurationError(f"durability='process': {why}")
        if not self.strategy.via.at_server:
            refuse(SERVERLESS, self)

    @property
    def evaluations(self) -> Every:
        """How often the run is evaluated."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        by_round = self.evaluate_every_s is None and self.strategy.every.by_client
        return Rounds(1) if by_round else Seconds(min(self.evaluate_every_s or EVALUATE_S, 1e15))

    @property
    def seats(self) -> int:
        """How many workers there may be at a time."""
        return self.workers_max or self.workers

    @property
    def numbered(self) -> int:
        """How many processes have a worker's number for the user: those of one island that all-reduce have."""
        return self.ranks if self.strategy.every.among_ranks else self.workers

    def number_of(self, worker: int, rank: int) -> int:
        """That of one of them."""
        return rank if self.strategy.every.among_ranks else worker

    @property
    def together(self) -> int:
        """How many batches a lease counts as one: those of a step that all processes of an island take."""
        return self.ranks if self.strategy.every.among_ranks else 1

    @property
    def lone(self) -> bool:
        """Whether there is and will be one process that trains."""
        return self.seats == self.ranks == 1

    @property
    def seeded(self) -> int:
        """The seed, or what stands for it."""
        return self.seed or 0

    @property
    def place(self) -> Engine:
        if isinstance(self.engine, Engine):
            return self.engine
        if self.engine != "local":
            such = "'local', ps.Ray(), or ps.Simulated(cluster), as ps.Simulated('one-straggler')"
            raise ConfigurationError(f"engine={self.engine!r}: {such}")
        return LOCAL

    @property
    def simulated(self) -> bool:
        return self.place.clock == "virtual"

    @property
    def stealing(self) -> bool:
        """Whether fast workers take more of the data, in a phase at least."""
        return self.data != "shards" and not all(phase.in_lock_step for phase in self.strategy.phases)

    def as_document(self) -> dict[str, Any]:
        """The settings as run.toml holds them: the strategy in words and as data, and what is not None of the rest."""
        settings = {name: value for name, value in vars(self).items() if name != "strategy"}
        strategy = {"name": self.strategy.name, **self.strategy.answers(), "fields": self.strategy.as_data()}
        return {
            "run": _without_none(msgspec.to_builtins(settings, enc_hook=_plain)),
            "strategy": _without_none(strategy),
        }


SETTINGS: dict[str, Setting] = {field.name: field.metadata["setting"] for field in fields(RunConfig)}


def _plain(value: object) -> object:
    return value.goals or None if isinstance(value, Until) else str(value)


def _without_none(value: Any) -> Any:
    """What TOML can hold: it has no word for nothing."""
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, (list, tuple)) else value
