"""Where a run comes from: its training function, and what has to be the same for it to come out the same."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xxhash import xxh3_64_hexdigest


def versions() -> dict[str, str]:
    """Of what decides the bits."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "plesio": importlib.metadata.version("plesio"),
    }


def source_of(train: Callable[..., object] | None) -> str:
    """The file that a training function is written in; empty if it is in none."""
    try:
        return str(Path(inspect.getfile(inspect.unwrap(_routine_or_class(train)))).resolve())
    except TypeError:
        return ""


def train_hash(train: Callable[..., object] | None) -> str:
    """A hash of the file of the training function, or of its code if it is in no file; empty without one."""
    if train is None:
        return ""
    source = Path(source_of(train))
    if source.is_file():
        return file_hash(source)
    code = getattr(_routine_or_class(train), "__code__", None)
    return xxh3_64_hexdigest(code.co_code if code is not None else b"")


def file_hash(path: Path) -> str:
    return xxh3_64_hexdigest(path.read_bytes())


def name_of(train: Callable[..., object]) -> str:
    """What a training function is called, and where it is from."""
    inner = without_arguments(train)
    place = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{name} of {Path(place.co_filename).name}" if place is not None else name


def without_arguments(train: Any) -> Any:
    """What `functools.partial` was made of; anything else as it is."""
    while isinstance(train, functools.partial):
        train = train.func
    return train


def _routine_or_class(train: Any) -> Any:
    inner = without_arguments(train)
    return inner if inspect.isroutine(inner) else type(inner)
