"""The options of `run`, `simulate` and `compare`: made from the settings that `RunConfig` lists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from plesio.cluster.presets import PRESETS
from plesio.config import SETTINGS, RunConfig
from plesio.config.setting import Option
from plesio.strategy.recipes import RECIPES

Command = TypeVar("Command", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty
NAMES: dict[str, Iterable[str]] = {"--strategy": RECIPES, "--cluster": PRESETS}
DEFAULTS = {field.name: field.default for field in fields(RunConfig)}
KINDS = get_type_hints(RunConfig)

ScriptPath = Annotated[
    Path,
    typer.Argument(metavar="SCRIPT", help="Python file that defines train(worker), and evaluate(model) to measure."),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGUMENTS", help="What the script is to find in sys.argv.", show_default=False),
]


Function = Annotated[str, typer.Option(metavar="NAME", help="The function of SCRIPT that each worker calls.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show the run as it goes on a page; its address is printed.")]
WatchAt = Annotated[
    str | None,
    typer.Option("--watch-at", metavar="HOST:PORT", help="As --watch, at this address, which monitors can know."),
]


def key_of(option: Option) -> str:
    return option.name.removeprefix("--").replace("-", "_")


def options_of(name: str) -> tuple[Option, ...]:
    setting = SETTINGS[name]
    default = DEFAULTS[name] if setting.typed_default is None else setting.typed_default
    metavar = "|".join(setting.words) or setting.metavar
    return setting.options or (Option(f"--{name.replace('_', '-')}", setting.help, metavar, KINDS[name], default),)


def _completed(option: Option) -> Callable[[str], list[str]] | None:
    """What the tab key offers as the option's value: names, where there are some to choose from."""
    names = NAMES.get(option.name) or [word for word in (option.metavar or "").split("|") if word.islower()]

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete if names else None


def takes_settings(but: Sequence[str] = (), instead: Sequence[Option] = ()) -> Callable[[Command], Command]:
    """Give a command, instead of its `**typed`, the options of all settings `but` some, and some `instead`."""
    others = {one.name: one for one in instead}
    taken = [others.get(one.name, one) for name in SETTINGS if name not in but for one in options_of(name)]
    options = [
        inspect.Parameter(
            key_of(one),
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[
                one.kind, typer.Option(one.name, metavar=one.metavar, help=one.help, autocompletion=_completed(one))
            ],
        )
        for one in taken
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return command

    return decorate
