"""Commands and groups of them, whose help shows options that take no value without one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _plain(options: list[Any]) -> list[Any]:
    for one in options:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return options


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class CommandGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))
