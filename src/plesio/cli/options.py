"""The options of `run`, `simulate` and `compare`: made from the settings that `RunConfig` lists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from plesio.config import SETTINGS, RunConfig
from plesio.config.setting import Option

Command = TypeVar("Command", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty
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


def option_of(name: str) -> str:
    """What an argument of `ps.run` is called on the command line.

    >>> option_of("timeout_s")
    '--timeout-s'
    """
    return f"--{name.replace('_', '-')}"


def key_of(option: Option) -> str:
    """The name of the parameter that an option's value is passed as.

    >>> key_of(Option("--budget-s", help=""))
    'budget_s'
    """
    return option.name.removeprefix("--").replace("-", "_")


def options_of(name: str) -> tuple[Option, ...]:
    """What is typed for a setting.

    >>> [one.name for one in options_of("pace")], options_of("timeout_s")[0].default
    (['--pace', '--jitter'], 300.0)
    """
    setting = SETTINGS[name]
    default = DEFAULTS[name] if setting.typed_default is None else setting.typed_default
    metavar = "|".join(setting.words) or setting.metavar
    return setting.options or (Option(option_of(name), setting.help, metavar, KINDS[name], default),)


def takes_settings(but: Sequence[str] = (), instead: Sequence[Option] = ()) -> Callable[[Command], Command]:
    """Give a command, instead of its `**typed`, the options of all settings.

    Args:
        but: settings that the command does not take.
        instead: options that are otherwise for this command.
    """
    others = {one.name: one for one in instead}
    taken = [others.get(one.name, one) for name in SETTINGS if name not in but for one in options_of(name)]
    options = [
        inspect.Parameter(
            key_of(one),
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[one.kind, typer.Option(one.name, metavar=one.metavar, help=one.help)],
        )
        for one in taken
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = signature.parameters.values()
        before = [one for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        after = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = signature.replace(parameters=[*before, *options, *after])  # type: ignore[attr-defined]
        return command

    return decorate
