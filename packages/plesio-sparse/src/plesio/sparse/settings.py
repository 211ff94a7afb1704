"""Settings as users give them: checked, made plain Python values, and shown again by `repr`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from plesio.errors import ConfigurationError, unknown_name


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int. Raises ConfigurationError unless it is a whole number, NumPy's too, of at least `least`.

    >>> whole("epochs", np.int64(3), 0)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigurationError(f"{name}={value!r}: allowed is a whole number of at least {least}.")
    return int(value)


def number(name: str, value: Any, least: float | None = None) -> float:
    """`value` as a float. Raises ConfigurationError unless it is a number, NumPy's too, and finite if there is a `least`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(f"{name}={value!r}: allowed is a number.")
    if least is not None and not (math.isfinite(value) and float(value) >= least):
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise ConfigurationError(f"{name}={value!r}: allowed is a finite number{bound}.")
    return float(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> Any:
    """`value`. Raises ConfigurationError unless it is known."""
    if value not in known:
        raise ConfigurationError(unknown_name(name, value, known))
    return value


def functions(callbacks: Iterable[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    """The callbacks, to be called more than once. Raises ConfigurationError for one that is not in a list."""
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise ConfigurationError(f"callbacks={callbacks!r}: allowed is a list of functions, such as [print].")
    given = tuple(callbacks)
    for callback in given:
        if not callable(callback):
            raise ConfigurationError(f"callbacks holds {callback!r}: allowed are functions, called with an Epoch.")
    return given


class Shown:
    """Its `repr` is the call that made it, without defaults."""

    def __repr__(self) -> str:
        given = {
            name: getattr(self, name)
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if not _same(getattr(self, name), parameter.default)
        }
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in given.items())})"


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float | tuple) and bool(value == default))


def _shown(value: Any) -> str:
    """An array by its type and shape; a function by its name."""
    if hasattr(value, "_asdict"):
        return f"{type(value).__name__}({', '.join(f'{name}={_shown(one)}' for name, one in value._asdict().items())})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_shown(one)}' for name, one in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return getattr(value, "__name__", None) or repr(value)
