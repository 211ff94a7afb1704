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
from plesio.launch.provenance import without_arguments
from plesio.transport.memory import check_room

Train = Callable[..., object]


class OwnCopies:
    """Call it for another copy of `train`.

    Raises:
        ConfigurationError: `train` cannot be copied.
        SharedMemoryError: there is too little memory for so many `workers` to have one.

    >>> again = OwnCopies([].append, workers=2)
    >>> first, second = again(), again()
    >>> first(1); second(2); first.__self__, second.__self__
    ([1], [2])
    """

    def __init__(self, train: Train, workers: int) -> None:
        pickler = _Pickler(without_arguments(train))
        try:
            pickler.dump(train)
        except Exception as error:
            raise ConfigurationError(
                f"the training function cannot be copied for each worker: {error}; open files, locks and CUDA tensors cannot "
                "be in an object that it carries along: make them inside the function"
            ) from error
        self._packed = pickler.file.getvalue()
        self._shared = pickler.shared
        check_room(
            len(self._packed) * workers,
            f"a copy for each of the {workers} workers of what the training function carries along (make large data a global "
            "of the script, which they share)",
        )

    def __call__(self) -> Train:
        train: Train = _Unpickler(self._packed, self._shared).load()
        return train


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
