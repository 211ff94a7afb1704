"""`RunConfig`: every setting of a run, once.

A field has its name, its type, its default, its help, its check and its options on the command line. `ps.run` lists the
same names and defaults for editors (a test compares them), `plesio.cli.options` makes the command line from them, and
run.toml is `as_document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from plesio.cluster.presets import PRESETS
from plesio.config.checkpoint import Checkpoint
from plesio.config.faults import Fault, Kill, Pace, Slow
from plesio.config.setting import Option, Setting, a, as_folder, as_place, as_seed, setting
from plesio.config.simulated import Simulated
from plesio.config.until import Until
from plesio.errors import ConfigurationError, StrategyError
from plesio.strategy import Strategy
from plesio.strategy.recipes import RECIPES, recipe

PROCESSES_MAX = 80
"""Workers on one host: what the descriptors of their lines leave room for in one message."""
SIMULATED_MAX = 60_000
"""Simulated workers: a journal numbers them below 65,536."""
LONGEST_S = 1e6
"""Eleven days; poll() takes milliseconds in 31 bits, and some waits are for twice the time."""
ON_MACHINES = (
    "pace= and faults= are for real processes; under Simulated(cluster) the cluster says how long steps last and what "
    "goes wrong: ps.Cluster(groups=..., faults=...)"
)
UNTIL = (
    "Stop at a value that evaluate(model) returns, such as accuracy=0.95 (at least; at most for names with loss, error, mse, "
    "mae, perplexity or nll in them, but for neg_...), or at a number of samples, or of steps (a resumed run goes on "
    "counting). May be repeated."
)


def as_strategy(name: str, value: Any) -> Strategy:
    """A strategy, given as one, as the name of a recipe, or as the recipe itself.

    >>> as_strategy("strategy", "sync_sgd").name
    'sync_sgd'
    """
    if isinstance(value, Strategy):
        return value
    called = value if isinstance(value, str) else getattr(value, "__name__", None)
    if called in RECIPES or isinstance(value, str):
        return recipe(str(called))
    raise StrategyError(
        f"{name}={value!r}: give a strategy such as ps.async_sgd(), or one of the names {', '.join(RECIPES)}"
    )


def as_pace(name: str, value: Any) -> Pace | None:
    """A pace, given as one or as the seconds of a step.

    >>> as_pace("pace", 0.02)
    Pace(step_s=0.02, jitter=0.0)
    """
    if value is None or isinstance(value, Pace):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Pace(step_s=value)
    raise ConfigurationError(f"{name}={value!r}: seconds a step, such as 0.02, or ps.Pace(step_s=0.02, jitter=0.1)")


def as_faults(name: str, value: Any) -> tuple[Fault, ...]:
    """Faults, given as a list."""
    if not isinstance(value, (list, tuple)):
        raise ConfigurationError(f"{name}={value!r}: a list of ps.Slow(...) and ps.Kill(...)")
    for fault in value:
        if not isinstance(fault, (Slow, Kill)):
            raise ConfigurationError(f"{name}={fault!r}: a fault is ps.Slow(...) or ps.Kill(...)")
    return tuple(value)


def as_engine(name: str, value: Any) -> str | Simulated:
    """Where a run takes place."""
    if isinstance(value, Simulated) or value == "local":
        return value if isinstance(value, Simulated) else "local"
    raise ConfigurationError(f"{name}={value!r}: 'local', or ps.Simulated(cluster), as ps.Simulated('one-straggler')")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run.

    Raises:
        ConfigurationError, StrategyError: a setting that cannot work, alone or with the others.
    """

    strategy: Strategy = setting(
        MISSING,
        Option("--strategy", "How workers keep step: a name that `plesio strategies` lists.", "NAME", str, "async_sgd"),
        Option("--set", "A setting of the strategy: every=16, every=0.3s. May be repeated.", "KEY=VALUE"),
        check=as_strategy,
        fixed=True,
    )
    workers: int = setting(MISSING, help="How many workers.", typed_default=4, fixed=True)
    engine: str | Simulated = setting(
        "local",
        Option("--cluster", f"The machines: {', '.join(PRESETS)}; or a TOML file.", "NAME|FILE", str | None),
        check=as_engine,
    )
    seed: int = setting(
        0, help="Seeds everything random: initial weights, order of data, jitter.", check=as_seed, fixed=True
    )
    data: str = setting(
        "leases",
        help="leases: fast workers take more of the data; shards: each gets an equal part. Strategies in lock step always "
        "share out evenly.",
        words=("leases", "shards"),
    )
    faults: tuple[Fault, ...] = setting(
        (),
        Option("--slow", "Make a worker slower; 0:10 is ten times. May be repeated.", "WORKER:FACTOR"),
        Option("--kill", "Kill a worker (or: server) that long into training. May be repeated.", "WORKER:SECONDS"),
        check=as_faults,
        processes_only=ON_MACHINES,
    )
    pace: Pace | None = setting(
        None,
        Option("--pace", "Make a step last at least this long, in place of an accelerator.", "SECONDS", float | None),
        Option("--jitter", "Let paced steps vary by this share (normal, 0 to 1).", "SHARE", float, 0.0),
        check=as_pace,
        processes_only=ON_MACHINES,
    )
    evaluate_every_s: float = setting(
        1.0, help="Pause between two evaluations, in seconds.", metavar="SECONDS", typed_default=0.5
    )
    until: Until | None = setting(
        None,
        Option("--until", UNTIL, "NAME=VALUE"),
        Option("--budget-s", "Stop after this long.", "SECONDS", float | None),
        check=a(Until, "ps.Until(accuracy=0.95, seconds=30)"),
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
    checkpoint: Checkpoint | None = setting(
        None,
        Option("--checkpoint-every-s", "Write a checkpoint into the run folder this often.", "SECONDS", float | None),
        check=a(Checkpoint, "ps.Checkpoint(every_s=60)"),
    )
    resume: Path | None = setting(
        None,
        Option("--resume", "Go on from the newest checkpoint of that run folder.", "RUN", Path | None),
        check=as_place,
    )
    runs: Path | None = setting(
        None, Option("--runs", "Where run folders go.", "DIR", Path, Path("runs")), check=as_folder
    )

    def __post_init__(self) -> None:
        for name, one in SETTINGS.items():
            object.__setattr__(self, name, one.checked(name, getattr(self, name)))
        self._check_numbers()
        self.strategy.check_workers(self.workers)
        for fault in self.faults:
            if fault.worker is not None and not 0 <= fault.worker < self.workers:
                raise ConfigurationError(f"{fault}: there are workers 0 to {self.workers - 1}")
        if self.simulated:
            self._check_simulated()
        if self.checkpoint is not None or self.resume is not None:
            self._check_checkpoints()

    def _check_numbers(self) -> None:
        """No process waits for virtual time: it may be as long as one likes."""
        most = SIMULATED_MAX if self.simulated else PROCESSES_MAX
        longest_s = inf if self.simulated else LONGEST_S
        within = "" if self.simulated else f" and of at most {LONGEST_S:,.0f}, eleven days"
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or not 1 <= self.workers <= most:
            raise ConfigurationError(f"workers={self.workers!r}: a whole number from 1 to {most} on one host")
        for name in ("evaluate_every_s", "timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= longest_s:
                raise ConfigurationError(f"{name}={value!r}: a number of seconds above 0{within}")

    def _check_simulated(self) -> None:
        for field in fields(self):
            why = SETTINGS[field.name].processes_only
            if why and getattr(self, field.name) != field.default:
                raise ConfigurationError(why)

    def _check_checkpoints(self) -> None:
        if not self.strategy.via.at_server:
            raise ConfigurationError(
                f"checkpoints, and going on from one, need a server, and under {self.strategy.name} workers fold without "
                "one; save worker 0's model in the training function"
            )
        if self.checkpoint is not None and self.checkpoint.folder is None and self.runs is None:
            raise ConfigurationError(
                "checkpoint=Checkpoint() goes into the run folder; give runs=, or Checkpoint(folder=...)"
            )

    @property
    def simulated(self) -> bool:
        """Whether time is virtual."""
        return isinstance(self.engine, Simulated)

    @property
    def stealing(self) -> bool:
        """Whether fast workers take more of the data."""
        return self.data == "leases" and not self.strategy.in_lock_step

    def fixed(self) -> dict[str, Any]:
        """The settings that a resumed run must have in common with the run that it goes on with."""
        return {name: getattr(self, name) for name, one in SETTINGS.items() if one.fixed}

    def in_words(self) -> str:
        """The settings, but for the strategy and what is not asked for.

        >>> RunConfig(strategy="sync_sgd", workers=4, until=Until(steps=8)).in_words().partition(", on_")[0]
        'workers=4, engine=local, seed=0, data=leases, evaluate_every_s=1.0, until=Until(steps=8)'
        """
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "strategy"}
        return ", ".join(f"{name}={value}" for name, value in given.items() if value not in (None, ()))

    def as_document(self) -> dict[str, Any]:
        """The settings as run.toml holds them: the strategy in words and as data, and what is not None of the rest.

        >>> config = RunConfig(strategy="sync_sgd", workers=4, pace=0.02, until=Until(accuracy=0.9))
        >>> RunConfig.from_document(config.as_document()) == config
        True
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        strategy: Strategy = given.pop("strategy")
        return {
            "run": _without_none(msgspec.to_builtins(given, enc_hook=_plain)),
            "strategy": {"name": strategy.name, **strategy.answers(), "fields": _without_none(strategy.as_data())},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RunConfig:
        """The settings that `as_document` told of; whatever else the document holds is passed over."""
        was = document["strategy"]
        given = {name: value for name, value in document["run"].items() if name in SETTINGS}
        hints = get_type_hints(cls)
        return cls(
            strategy=Strategy.from_data(was["name"], was["fields"]),
            **{name: _read(hints[name], value) for name, value in given.items()},
        )


SETTINGS: dict[str, Setting] = {field.name: field.metadata["setting"] for field in fields(RunConfig)}


def _plain(value: object) -> object:
    return value.goals if isinstance(value, Until) else str(value)


def _read(hint: Any, value: Any) -> Any:
    for kind in (Until, Checkpoint):
        if hint == kind | None:
            return kind(**value)
    return msgspec.convert(value, hint, dec_hook=lambda kind, one: kind(one))


def _without_none(value: Any) -> Any:
    """What TOML can hold: it has no word for nothing."""
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, (list, tuple)) else value
