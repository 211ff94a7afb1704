"""A copy of the training function for each worker of one process, as each process gets its own.

Copied is what a training function carries along: the object whose method it is or which is called, a partial's arguments, and
the nested functions in these (a lambda over `self`). The function itself, classes, modules and globals are shared.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from plesio.errors import ConfigurationError
from plesio.observe.provenance import without_arguments
from plesio.system.memory import check_room

Train = Callable[..., object]


def own_copies(train: Train, workers: int) -> Callable[[], Train]:
    """What makes another copy of `train`; there is to be room for one for each of `workers`."""
    pickler = _Pickler(without_arguments(train))
    try:
        pickler.dump(train)
    except Exception as error:
        raise ConfigurationError(
            f"the training function cannot be copied for each worker: {error}; open files, locks and CUDA tensors cannot "
            "be in an object that it carries along: make them inside the function"
        ) from error
    packed, shared = pickler.file.getvalue(), pickler.shared
    check_room(
        len(packed) * workers,
        f"a copy for each of the {workers} workers of what the training function carries along (make large data a global of "
        "the script, which they share)",
    )
    return lambda: _Unpickler(packed, shared).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps modules, classes and functions as they are, by `id`; but for nested ones that are not `train`."""

    def __init__(self, train: Train) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file)
        self._train = train
        self.shared: dict[int, object] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (FunctionType, type, ModuleType)):
            return None
        if isinstance(value, FunctionType) and value.__closure__ and value is not self._train:
            return None
        self.shared[id(value)] = value
        return id(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, shared: dict[int, object]) -> None:
        super().__init__(io.BytesIO(packed))
        self._shared = shared

    def persistent_load(self, number: int) -> object:
        return self._shared[number]
