"""How one setting is described: its help, its check, and how it is typed on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plesio.errors import ConfigurationError, unknown_name

Check = Callable[[str, Any], Any]
"""Takes a setting's name and value; returns the value to keep, or raises `ConfigurationError`."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line."""

    name: str
    help: str
    metavar: str | None = None
    kind: Any = list[str] | None
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What there is to know of a setting beside its name, its type and its default.

    Args:
        options: what to type for it; none: `--name VALUE`, with the `help`, the `metavar` and the `typed_default`.
        help: for Python and for the command line.
        metavar: what stands for the value in `--help`.
        typed_default: the command line's default, where it is not Python's.
        words: the values that there are, if they are few.
        check: called with the name and the value when a `RunConfig` is built.
        fixed: a resumed run must have the same value.
        processes_only: why a simulated run refuses the setting; empty: it does not.
    """

    options: tuple[Option, ...] = ()
    help: str = ""
    metavar: str | None = None
    typed_default: Any = None
    words: tuple[str, ...] = ()
    check: Check | None = None
    fixed: bool = False
    processes_only: str = ""

    def checked(self, name: str, value: Any) -> Any:
        """The value to keep.

        Raises:
            ConfigurationError: it cannot work.
        """
        if self.words and value not in self.words:
            raise ConfigurationError(unknown_name(name, str(value), self.words))
        return value if self.check is None else self.check(name, value)


def setting(default: Any, *options: Option, **about: Any) -> Any:
    """A field of `RunConfig`; `about` are the arguments of `Setting`."""
    return field(default=default, metadata={"setting": Setting(options=options, **about)})


def a(kind: type, example: str) -> Check:
    """None, or an object of that class."""

    def check(name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, kind):
            raise ConfigurationError(f"{name}={value!r}: such as {example}")
        return value

    return check


def as_folder(name: str, value: Any) -> Path | None:
    """None, or the name of a folder."""
    if value is not None and not isinstance(value, (str, Path)):
        raise ConfigurationError(f"{name}={value!r}: a folder for run folders, such as 'runs'")
    return None if value is None else Path(value)


def as_place(name: str, value: Any) -> Any:
    """A path; what is none is refused by who looks for it."""
    return Path(value) if isinstance(value, str) else value


def as_seed(name: str, value: Any) -> int:
    """A whole number that all random sources take."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ConfigurationError(f"{name}={value!r}: a whole number of at least 0 and below 2**63")
    return value
