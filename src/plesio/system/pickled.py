"""What a user's functions refer to, as bytes for another process: cloudpickle's, and settings go by their name.

cloudpickle sends a module by its name, but a module of a class of its own (`torch.backends.cudnn`, `torch._dynamo.config`) not at
all, and a copy of `matplotlib.rcParams` sets nothing. Each stands for settings of the process that it is in.
"""

from __future__ import annotations

import copyreg
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


def _named(one: Any) -> Any:
    name = one.__name__ if isinstance(one, ModuleType) else "matplotlib.rcParams"
    try:
        found = pkgutil.resolve_name(name) is one
    except (ImportError, AttributeError, ValueError):
        found = False
    return (pkgutil.resolve_name, (name,)) if found else one.__reduce_ex__(4)
