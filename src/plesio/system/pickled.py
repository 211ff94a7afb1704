"""What a user's functions refer to, as bytes for another process: cloudpickle's, settings go by their name, and what a script
caches (`functools.cache`) goes by value, as its functions do.

cloudpickle sends a module by its name, but a module of a class of its own (`torch.backends.cudnn`, `torch._dynamo.config`) not at
all, and a copy of `matplotlib.rcParams` sets nothing. Each stands for settings of the process that it is in.
"""

from __future__ import annotations

import copyreg
import functools
import pkgutil
import sys
from types import ModuleType
from typing import Any

import cloudpickle


def dumps(value: object) -> bytes:
    """Raises what pickling raises: the user's objects may raise anything.

    >>> import pickle, torch
    >>> cudnn, rnn = pickle.loads(dumps([torch.backends.cudnn, torch.backends.cudnn.rnn]))
    >>> cudnn is torch.backends.cudnn, rnn is torch.backends.cudnn.rnn
    (True, True)
    """
    send_settings_by_name()
    body: bytes = cloudpickle.dumps(value)
    return body


def send_settings_by_name() -> None:
    """From now on every pickler of this process does so, for the classes that there are now."""
    kinds: list[type] = [*ModuleType.__subclasses__()]
    for kind in kinds:  # it grows
        kinds += kind.__subclasses__()
    if (parameters := getattr(sys.modules.get("matplotlib"), "rcParams", None)) is not None:
        kinds.append(type(parameters))
    for kind in kinds:
        copyreg.pickle(kind, _named)
    copyreg.pickle(functools._lru_cache_wrapper, _cached)


def _named(one: Any) -> Any:
    name = one.__name__ if isinstance(one, ModuleType) else "matplotlib.rcParams"
    try:
        found = pkgutil.resolve_name(name) is one
    except (ImportError, AttributeError, ValueError):
        found = False
    return (pkgutil.resolve_name, (name,)) if found else one.__reduce_ex__(4)


def _cached(one: Any) -> Any:
    """By name where another process can import it; that of a script is made anew, with nothing in its cache."""
    try:
        found = one.__module__ != "__main__" and pkgutil.resolve_name(f"{one.__module__}:{one.__qualname__}") is one
    except (ImportError, AttributeError, ValueError):
        found = False
    return one.__reduce__() if found else (_cached_anew, (one.__wrapped__, one.cache_parameters()))


def _cached_anew(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
