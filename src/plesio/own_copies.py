"""A copy of the training function for each worker of one process, as each process gets its own.

What a training function carries along is copied: the object whose method it is or which is called, a partial's arguments.
Functions, classes and modules are not: their globals, and what a nested function refers to, all workers of one process share.

Large tensors and arrays lie in memory once, and are mapped copy-on-write into each copy.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import torch
from torch.storage import TypedStorage

from plesio.errors import ConfigurationError
from plesio.fabric.memory import SharedBlock, check_room

LARGE = 1 << 16
"""Bytes from which on a tensor's or an array's numbers are mapped, not copied."""
ALIGNED = 64
CARRIED = "what the training function carries along"
Train = Callable[..., object]
Bytes = npt.NDArray[np.uint8]


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
        pickler = _Pickler()
        try:
            pickler.dump(train)
        except Exception as error:
            raise _cannot(error) from error
        self._packed = pickler.file.getvalue()
        check_room(len(self._packed) * workers, f"a copy for each of the {workers} workers of {CARRIED}")
        self._kept = pickler.kept
        self._places, self._arrays = list(pickler.large), pickler.arrays
        self._block: SharedBlock | None = None
        if self._places:
            self._block = SharedBlock.create(pickler.size, CARRIED)
            weakref.finalize(self, self._block.close)
            for (start, end), numbers in pickler.large.items():
                self._block.memory.numpy()[start:end] = numbers

    def __call__(self) -> Train:
        try:
            train: Train = _Unpickler(self._packed, self._kept, self._mapped(), self._arrays).load()
        except Exception as error:
            raise _cannot(error) from error
        return train

    def _mapped(self) -> dict[int, memoryview]:
        """The large ones, by where they begin; what is written into them is seen nowhere else."""
        if self._block is None:
            return {}
        # By its path, since mmap would keep a descriptor open for each worker.
        own: Any = torch.UntypedStorage.from_file(f"/dev/fd/{self._block.fd}", shared=False, nbytes=self._block.nbytes)
        memory = _bytes_of(own).data
        return {start: memory[start:end] for start, end in self._places}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps functions, classes and modules by their number, and puts large numbers aside, by where they are to lie."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, buffer_callback=self._array)
        self.kept: list[object] = []
        self.large: dict[tuple[int, int], Bytes] = {}
        self.arrays: list[int] = []
        self.size = 0
        self._numbers: dict[int, int] = {}
        self._storages: dict[tuple[int, int], int] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type, ModuleType)):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.kept)
                self.kept.append(value)
            return self._numbers[id(value)]
        storage = value._untyped_storage if isinstance(value, TypedStorage) else None
        if storage is not None and storage.device.type == "cpu" and len(storage) >= LARGE:
            numbers = _bytes_of(storage)
            where = numbers.ctypes.data, numbers.nbytes
            if where not in self._storages:
                self._storages[where] = self._put_aside(numbers)
            return self._storages[where], value.dtype
        return None

    def _array(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether it is to lie among the rest."""
        numbers = np.frombuffer(buffer.raw(), dtype=np.uint8)
        if numbers.nbytes < LARGE:
            return True
        self.arrays.append(self._put_aside(numbers))
        return False

    def _put_aside(self, numbers: Bytes) -> int:
        start = -self.size % ALIGNED + self.size
        self.size = start + numbers.nbytes
        self.large[start, self.size] = numbers
        return start


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, kept: list[object], own: dict[int, memoryview], arrays: list[int]) -> None:
        super().__init__(io.BytesIO(packed), buffers=[own[start] for start in arrays])
        self._kept = kept
        self._own = own
        self._storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, what: Any) -> Any:
        if isinstance(what, int):
            return self._kept[what]
        start, dtype = what
        if start not in self._storages:  # once: there may be several views of it
            self._storages[start] = torch.frombuffer(self._own[start], dtype=torch.uint8).untyped_storage()
        return TypedStorage(wrap_storage=self._storages[start], dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _cannot(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the training function cannot be copied for each worker: {error}; open files, locks and CUDA tensors cannot be in "
        "an object that it carries along: make them inside the function"
    )


def _bytes_of(storage: torch.UntypedStorage) -> Bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
