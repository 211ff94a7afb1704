"""How one setting is described: its help, its check, and how it is typed on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plesio.errors import ConfigurationError, unknown_name


@dataclass(frozen=True, slots=True)
class Option:
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
        kind: the class that a value must be of, for `isinstance`; None: it is checked elsewhere.
        example: what a refusal of another kind recommends.
    """

    options: tuple[Option, ...] = ()
    help: str = ""
    metavar: str | None = None
    typed_default: Any = None
    words: tuple[str, ...] = ()
    kind: Any = None
    example: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise `ConfigurationError` for a value of the wrong kind, or one that is not among the `words`."""
        if self.words and value not in self.words:
            raise ConfigurationError(unknown_name(name, str(value), self.words))
        if self.kind is not None and not isinstance(value, self.kind):
            raise ConfigurationError(f"{name}={value!r}: {self.example}")


def setting(default: Any, *options: Option, **about: Any) -> Any:
    """A field of `RunConfig`; `about` are the arguments of `Setting`."""
    return field(default=default, metadata={"setting": Setting(options=options, **about)})
