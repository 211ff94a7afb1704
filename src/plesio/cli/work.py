"""The work that a command line asks for: everything but the strategy and the script, checked before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plesio.choices import DATA, ON_NONFINITE, ON_WORKER_ERROR, PROCESSES_MAX, SIMULATED_MAX, check_choice
from plesio.cli.script import Script
from plesio.cluster import Cluster
from plesio.cluster.presets import PRESETS
from plesio.errors import ConfigurationError, unknown_name
from plesio.faults import Fault, Kill, Pace, Slow
from plesio.strategy import Strategy

if TYPE_CHECKING:
    from plesio.runner import Live, Run

PROCESSES, SIMULATED_WORKERS = 4, 8
"""How many workers there are if nothing says how many."""
NOT_METRICS = ("samples", "steps")


def option_of(name: str) -> str:
    """What an argument of `ps.run` is called on the command line.

    >>> option_of("timeout_s")
    '--timeout-s'
    """
    return f"--{name.replace('_', '-')}"


@contextmanager
def typed(words: str) -> Iterator[None]:
    """A refusal in there is told of the `words` that were typed, not of the object that they became.

    >>> with typed("--slow 0:0.5"):
    ...     Slow(0, 0.5)
    Traceback (most recent call last):
    ...
    plesio.errors.ConfigurationError: --slow 0:0.5: at least 1 (10: ten times slower)
    """
    try:
        yield
    except ConfigurationError as error:
        if str(error).startswith(words):
            raise
        why = re.sub(r"^\w+ must be ", "", str(error).partition(": ")[2])
        raise ConfigurationError(f"{words}: {why}") from error


class MetricMissingError(ConfigurationError):
    """`evaluate` does not return what the run is to stop at: no strategy is likely to change that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a strategy is to do: everything but the strategy and the script."""

    workers: int
    cluster: Cluster | None = None
    place: str = ""
    """What the cluster was asked for as."""
    seed: int
    data: str
    faults: tuple[Fault, ...]
    pace: Pace | None
    budget_s: float | None
    evaluate_every_s: float
    on_worker_error: str
    on_nonfinite: str
    timeout_s: float
    runs: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def target(self) -> tuple[str, float] | None:
        """The metric and the value that count as success."""
        return next(iter(self.metrics.items()), None)

    def run(self, script: Script, strategy: Strategy, watch: Callable[[Live], object], **kept: Any) -> Run:
        """Do it under `strategy`; `kept` is what `plesio.run` is told of checkpoints."""
        from plesio.launch.simulated.engine import Simulated
        from plesio.runner import Until
        from plesio.runner import run as train_under

        goals: dict[str, Any] = {**self.limits, **self.metrics}
        until = Until(seconds=self.budget_s, **goals)

        def checked(live: Live) -> None:
            self._check(live)
            watch(live)

        return train_under(
            script.train,
            strategy,
            workers=self.workers,
            engine="local" if self.cluster is None else Simulated(self.cluster),
            seed=self.seed,
            data=self.data,
            faults=self.faults,
            pace=self.pace,
            evaluate=script.evaluate,
            evaluate_every_s=self.evaluate_every_s,
            until=until,
            on_worker_error=self.on_worker_error,
            on_nonfinite=self.on_nonfinite,
            timeout_s=self.timeout_s,
            runs=self.runs,
            watch=checked,
            **kept,
        )

    def _check(self, live: Live) -> None:
        for name, value in self.metrics.items():
            if live.metrics and name not in live.metrics:
                raise MetricMissingError(
                    f"--until {name}={value:g}: evaluate does not return {name!r}; it returned {', '.join(live.metrics)}"
                )

    def setting(self) -> str:
        """The work in words.

        >>> work_of(workers=4, slows=["0:10"], pace_s=0.02, budget_s=30).setting()
        '4 workers, worker 0 slowed down 10 times, at least 20 ms a step, at most 30 s'
        >>> work_of(workers=256, cluster="heavy-tail", budget_s=30).setting()
        '256 workers simulated on heavy-tail, all times virtual, at most 30 s'
        """
        parts = [f"{self.workers} worker{'s' if self.workers != 1 else ''}"]
        if self.cluster is not None:
            parts = [f"{parts[0]} simulated on {self.place}", "all times virtual"]
        parts += [_in_words(fault) for fault in self.faults]
        if self.pace is not None:
            jitter = f" (give or take {self.pace.jitter:.0%})" if self.pace.jitter else ""
            parts.append(f"at least {self.pace.step_s * 1000:g} ms a step{jitter}")
        parts += [f"until {name} {value:g}" for name, value in {**self.metrics, **self.limits}.items()]
        if self.budget_s is not None:
            parts.append(f"at most {self.budget_s:g} s")
        return ", ".join(parts)


def _in_words(fault: Fault) -> str:
    if isinstance(fault, Slow):
        return f"worker {fault.worker} slowed down {fault.factor:g} times"
    who = "the server" if fault.worker is None else f"worker {fault.worker}"
    return f"{who} killed after {fault.after_s:g} s"


def work_of(
    *,
    workers: int | None,
    cluster: str | None = None,
    slows: Sequence[str] | None = None,
    kills: Sequence[str] | None = None,
    pace_s: float | None = None,
    jitter: float = 0.0,
    untils: Sequence[str] | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    evaluate_every_s: float = 0.5,
    data: str = "leases",
    on_worker_error: str = "raise",
    on_nonfinite: str = "discard",
    timeout_s: float = 300.0,
    runs: Path = Path("runs"),
) -> Work:
    """What was asked for, checked as far as it can be without torch.

    Raises:
        ConfigurationError: an option that cannot be read.
    """
    if workers is not None and workers < 1:
        raise ConfigurationError(f"--workers {workers}: at least 1")
    machines = None
    if cluster is not None:
        _no_processes({"--slow": slows, "--kill": kills, "--pace": pace_s, "--jitter": jitter or None}, cluster)
        machines = cluster_of(cluster, workers)
    workers = machines.workers if machines is not None else workers or PROCESSES
    if jitter and pace_s is None:
        raise ConfigurationError(f"--jitter {jitter:g}: only paced steps vary; give --pace too, such as --pace 0.02")
    check_choice("--data", data, DATA)
    check_choice("--on-worker-error", on_worker_error, ON_WORKER_ERROR)
    check_choice("--on-nonfinite", on_nonfinite, ON_NONFINITE)
    most = PROCESSES_MAX if cluster is None else SIMULATED_MAX
    if workers > most:
        raise ConfigurationError(f"--workers {workers}: at most {most:,}")
    if seed < 0:
        raise ConfigurationError(f"--seed {seed}: at least 0")
    for name, seconds in {"evaluate_every_s": evaluate_every_s, "timeout_s": timeout_s, "budget_s": budget_s}.items():
        if seconds is not None and not seconds > 0:
            raise ConfigurationError(f"{option_of(name)} {seconds:g}: a number of seconds above 0")
    metrics, limits = _targets(untils or ())
    return Work(
        workers=workers,
        cluster=machines,
        place=cluster or "",
        seed=seed,
        data=data,
        faults=(*(_slow(text, workers) for text in slows or ()), *(_kill(text, workers) for text in kills or ())),
        pace=None if pace_s is None else _pace(pace_s, jitter),
        budget_s=budget_s,
        evaluate_every_s=evaluate_every_s,
        on_worker_error=on_worker_error,
        on_nonfinite=on_nonfinite,
        timeout_s=timeout_s,
        runs=runs,
        metrics=metrics,
        limits=limits,
    )


def cluster_of(text: str, workers: int | None) -> Cluster:
    """The cluster that is asked for by a preset's name or as a TOML file; of a file's workers the first `workers`.

    Raises:
        ConfigurationError: neither a preset nor a file, not a cluster, or too many workers for it.

    >>> cluster_of("uniform", None).workers, cluster_of("uniform", 300).workers
    (8, 300)
    """
    if text in PRESETS:
        return Cluster.preset(text, SIMULATED_WORKERS if workers is None else workers)
    if not Path(text).is_file():
        raise ConfigurationError(
            f"{unknown_name('preset', text, PRESETS)}; a file {text} was looked for, too: there is none"
        )
    cluster = Cluster.load(text)
    return cluster if workers is None else cluster.first(workers)


def _no_processes(given: Mapping[str, object], cluster: str) -> None:
    """Refuse what is done to real processes."""
    for option, value in given.items():
        if value:
            raise ConfigurationError(
                f"{option} is for real processes, and --cluster {cluster} simulates the workers; give a cluster file "
                "that says how fast they are and what goes wrong, such as examples/cluster.toml"
            )


def _slow(text: str, workers: int) -> Slow:
    worker, factor = _pair("--slow", text, "0:10 for worker 0 ten times slower")
    with typed(f"--slow {text}"):
        return Slow(_worker("--slow", worker, text, workers), factor)


def _kill(text: str, workers: int) -> Kill:
    worker, after_s = _pair("--kill", text, "1:2.5 for worker 1 after 2.5 seconds, or server:2.5")
    with typed(f"--kill {text}"):
        return Kill(None if worker == "server" else _worker("--kill", worker, text, workers), after_s)


def _pace(step_s: float, jitter: float) -> Pace:
    with typed(f"--pace {step_s:g}"):
        Pace(step_s)
    with typed(f"--jitter {jitter:g}"):
        return Pace(step_s, jitter)


def _pair(option: str, text: str, example: str) -> tuple[str, float]:
    who, _, number = text.partition(":")
    try:
        return who.strip(), float(number)
    except ValueError:
        raise ConfigurationError(f"{option} {text}: cannot be read; write it like {example}") from None


def _worker(option: str, who: str, text: str, workers: int) -> int:
    if not re.fullmatch(r"\d+", who) or int(who) >= workers:
        raise ConfigurationError(f"{option} {text}: there is no worker {who!r}; there are workers 0 to {workers - 1}")
    return int(who)


def _targets(untils: Sequence[str]) -> tuple[dict[str, float], dict[str, int]]:
    metrics: dict[str, float] = {}
    limits: dict[str, int] = {}
    for text in untils:
        name, _, number = (part.strip() for part in text.partition("="))
        if name == "seconds":
            raise ConfigurationError(f"--until {text}: give the time as --budget-s {number or 30}")
        try:
            if not name.isidentifier():
                raise ValueError
            value = float(number)
        except ValueError:
            raise ConfigurationError(f"--until {text}: cannot be read; write it like accuracy=0.95") from None
        if not isfinite(value):
            raise ConfigurationError(f"--until {text}: a target is a finite number, such as accuracy=0.95")
        if name not in NOT_METRICS:
            metrics[name] = value
        elif value >= 1 and value.is_integer():
            limits[name] = int(value)
        else:
            raise ConfigurationError(f"--until {text}: {name} are counted, give a whole number of at least 1")
    return metrics, limits
