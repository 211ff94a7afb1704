"""From what was typed to a `RunConfig`, and back into words; nothing here waits for torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plesio.cli.options import key_of, options_of
from plesio.cli.settings import strategy_of
from plesio.cluster import Cluster
from plesio.cluster.presets import PRESETS
from plesio.config import SETTINGS, RunConfig
from plesio.config.checkpoint import Checkpoint
from plesio.config.evaluations import Rounds
from plesio.config.faults import Fault, Kill, Pace, Slow
from plesio.config.simulated import Simulated
from plesio.config.until import Until
from plesio.errors import ConfigurationError, unknown_name

Typed = Mapping[str, Any]  # the values of a command's options, by name
PROCESSES, SIMULATED_WORKERS = 4, 8  # where nothing says how many


def config_of(typed: Typed) -> RunConfig:
    values = values_of(typed)
    strategy = strategy_of(typed["strategy"], values["workers"], typed["set"] or ())
    return RunConfig(strategy=strategy, **values)


def values_of(typed: Typed) -> dict[str, Any]:
    """All of the settings but the strategy."""
    workers = _workers(typed)
    wanted = [name for name in SETTINGS if any(key_of(option) in typed for option in options_of(name))]
    read = {name: READERS[name](typed, workers) if name in READERS else typed[name] for name in wanted}
    return {name: value for name, value in {**read, "workers": workers}.items() if name != "strategy"}


def cluster_of(text: str, workers: int | None) -> Cluster:
    """The cluster of a preset's name or of a TOML file; of a file's workers the first `workers`."""
    if text in PRESETS:
        return Cluster.preset(text, SIMULATED_WORKERS if workers is None else workers)
    if not Path(text).is_file():
        raise ConfigurationError(
            f"{unknown_name('preset', text, PRESETS)}; a file {text} was looked for, too: there is none"
        )
    cluster = Cluster.load(text)
    return cluster if workers is None else cluster.first(workers)


def _workers(typed: Typed) -> int:
    number, cluster = typed["workers"], typed.get("cluster")
    if cluster is None:
        return PROCESSES if number is None else int(number)
    for name in Simulated.refuses:
        for option in options_of(name):
            if typed.get(key_of(option)) not in (None, False, option.default):
                raise ConfigurationError(
                    f"{option.name} is for real processes, and --cluster {cluster} simulates the workers; give a cluster "
                    "file that says how fast they are and what goes wrong, such as examples/cluster.toml"
                )
    return cluster_of(cluster, number).workers


def _engine(typed: Typed, workers: int) -> str | Simulated:
    text = typed["cluster"]
    if text is None:
        return "local"
    return Simulated(text if text in PRESETS else cluster_of(text, workers))


def _faults(typed: Typed, workers: int) -> list[Fault]:
    slow = [_fault("--slow", text, workers, "0:10 for worker 0 ten times slower") for text in typed["slow"] or ()]
    example = "1:2.5 for worker 1 after 2.5 seconds, or server:2.5"
    return [*slow, *(_fault("--kill", text, workers, example) for text in typed["kill"] or ())]


def _fault(option: str, text: str, workers: int, example: str) -> Fault:
    who, _, number = (part.strip() for part in text.partition(":"))
    try:
        value = float(number)
    except ValueError:
        raise ConfigurationError(f"{option} {text}: cannot be read; write it like {example}") from None
    if option == "--kill" and who == "server":
        return Kill(after_s=value)
    if not re.fullmatch(r"\d+", who) or int(who) >= workers:
        raise ConfigurationError(f"{option} {text}: there is no worker {who!r}; there are workers 0 to {workers - 1}")
    return Kill(int(who), value) if option == "--kill" else Slow(int(who), value)


def _pace(typed: Typed, workers: int) -> Pace | None:
    step_s, jitter = typed["pace"], typed["jitter"]
    if step_s is None and jitter:
        raise ConfigurationError(f"--jitter {jitter:g}: only paced steps vary; give --pace too, such as --pace 0.02")
    return None if step_s is None else Pace(step_s, jitter)


def _until(typed: Typed, workers: int) -> Until:
    goals: dict[str, Any] = dict(_goal(text) for text in typed["until"] or ())
    return Until(seconds=typed["budget_s"], **goals)


def _goal(text: str) -> tuple[str, float]:
    name, _, number = (part.strip() for part in text.partition("="))
    if name == "seconds":
        raise ConfigurationError(f"--until {text}: give the time as --budget-s {number or 30}")
    try:
        value = float(number)
    except ValueError:
        value = None
    if value is None or not name.isidentifier():
        raise ConfigurationError(f"--until {text}: cannot be read; write it like accuracy=0.95")
    return name, int(value) if value.is_integer() else value


def _checkpoint(typed: Typed, workers: int) -> Checkpoint | None:
    every_s = typed["checkpoint_every_s"]
    return None if every_s is None else Checkpoint(every_s=every_s)


def _every(typed: Typed, workers: int) -> Rounds | None:
    rounds = typed["evaluate_every_rounds"]
    return None if rounds is None else Rounds(rounds)


READERS: dict[str, Callable[[Typed, int], Any]] = {
    "engine": _engine, "faults": _faults, "pace": _pace, "evaluate_every": _every, "until": _until, "checkpoint": _checkpoint,
}  # fmt: skip
"""How to read the settings for which `--name VALUE` is not enough."""


def in_words(config: RunConfig, cluster: str | None = None) -> str:
    """The work in words; `cluster` is what was typed for it."""
    parts = [f"{config.workers} worker{'s' if config.workers != 1 else ''}"]
    if cluster is not None:
        parts = [f"{parts[0]} simulated on {cluster}", "all times virtual"]
    parts += [_fault_in_words(fault) for fault in config.faults]
    if config.pace is not None:
        jitter = f" (give or take {config.pace.jitter:.0%})" if config.pace.jitter else ""
        parts.append(f"at least {config.pace.step_s * 1000:g} ms a step{jitter}")
    parts += [f"until {name} {value:g}" for name, value in config.until.goals.items() if name != "seconds"]
    if config.until.seconds is not None:
        parts.append(f"at most {config.until.seconds:g} s")
    return ", ".join(parts)


def _fault_in_words(fault: Fault) -> str:
    if isinstance(fault, Slow):
        return f"worker {fault.worker} slowed down {fault.factor:g} times"
    who = "the server" if fault.worker is None else f"worker {fault.worker}"
    return f"{who} killed after {fault.after_s:g} s"
