"""What it is that cannot be sent to another process, by its path: `settings.cache["inner"][0]`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from plesio.system.pickled import dumps


def culprit(value: Any, path: str = "", seen: tuple[int, ...] = ()) -> str:
    """Of what `value` refers to, the innermost that cannot be pickled: its path and its type; empty if it is `value` itself."""
    for step, part in _parts(value):
        if id(part) not in seen and not _travels(part):  # a variable's name begins anew
            return culprit(part, path + step if step[0] in ".[" else step, (*seen, id(value), id(part)))
    return f"{path.removeprefix('.')} is a {type(value).__name__}: " if path else ""


def _travels(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` refers to, and how to get there from it: a step, or the name of a variable."""
    if inspect.ismethod(value):
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield from inspect.signature(value.func).bind_partial(*value.args, **value.keywords).arguments.items()
        yield from _parts(value.func)
    elif inspect.isfunction(value):
        found = inspect.getclosurevars(value)
        yield from {**found.globals, **found.nonlocals}.items()
        yield from ((name, one.default) for name, one in inspect.signature(value).parameters.items())
    elif isinstance(value, Mapping):
        yield from ((f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", one) for place, one in enumerate(value))
    else:
        names = (*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ()))
        yield from ((f".{name}", getattr(value, name, None)) for name in names)
