"""A model in a folder, there whole or not at all.

One file holds everything: `model.safetensors`, the arrays under their names and, in its header, what else is to be
known as JSON. It is written beside its place, brought to disk and then given its name in one step, so whoever finds it
finds all of it. Any reader of safetensors opens it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from xxhash import xxh3_64, xxh3_64_hexdigest

from plesio.errors import CheckpointError
from plesio.sparse.epochs import Epoch
from plesio.sparse.examples import flat
from plesio.system.disk import to_disk

JSON: TypeAlias = Any
"""What `json` can write: None, bool, int, float, str, and lists and dicts of these."""

FILE = "model.safetensors"
FORMAT = 1
_BLOCK_BYTES = 1 << 24  # bytes that `digest` copies at a time of a non-contiguous array


def save(folder: str | Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, JSON]) -> None:
    """Write `arrays` and `about` into `folder`, over what an earlier call wrote there.

    Raises CheckpointError if it cannot be written; what was there before is untouched then.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(folder, {"w": np.ones(2, np.float32)}, {"epoch": 3})
    ...     load(folder)
    ({'w': array([1., 1.], dtype=float32)}, {'epoch': 3})
    """
    place = Path(folder)
    beside = place / f".{FILE}.{os.getpid()}"
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    header = {
        "format": str(FORMAT),
        "about": json.dumps(dict(about)),
        "checksums": json.dumps({name: _checksum(array) for name, array in whole.items()}),
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        save_file(whole, beside, metadata=header)
        to_disk(beside)
        os.replace(beside, place / FILE)
        to_disk(place)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            beside.unlink()
        raise CheckpointError(
            f"{place / FILE} cannot be written: {error}; make room, or give another folder."
        ) from error


def load(folder: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, JSON]]:
    """The arrays and the `about` that `save` wrote into `folder`.

    Raises CheckpointError if there is none, or it is damaged, or of a newer plesio.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise CheckpointError(f"there is no {FILE} in {str(folder)!r}; give the folder that was given to checkpoint=.")
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; take an older copy of it.") from error
    if header.get("format") != str(FORMAT):
        raise CheckpointError(
            f"{path} has format {header.get('format')!r}, this plesio reads {FORMAT}; use the other plesio."
        )
    damaged = [
        name for name, checksum in json.loads(header["checksums"]).items() if _checksum(arrays[name]) != checksum
    ]
    if damaged:
        raise CheckpointError(f"{path} is damaged in {', '.join(damaged)}; take an older copy of it.")
    return arrays, json.loads(header["about"])


def digest(data: Any) -> str:
    """64 bits of an array's type, shape and contents, or of all arrays in a tuple: others for other data.

    >>> digest((np.arange(3), np.ones(2))) == digest((np.arange(3), np.ones(2))) != digest((np.arange(3), np.zeros(2)))
    True
    """
    state = xxh3_64()
    for array in flat(data):
        state.update(f"{array.dtype.str}{array.shape}".encode())
        rows = max(1, _BLOCK_BYTES * len(array) // max(array.nbytes, 1))
        for first in range(0, len(array), rows):
            state.update(np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8).data)
    return str(state.hexdigest())


class Checkpoint:
    """The folders that an estimator keeps its fit in and goes on from; and what such a fit must agree in with this one.

    That are the settings in `names`, the `data`, and `more`.
    """

    def __init__(self, estimator: Any, names: Sequence[str], data: Any, **more: JSON) -> None:
        self._to, self._from = estimator.checkpoint, estimator.resume
        self._about = more
        if self._to is not None or self._from is not None:  # else nobody looks, and the digest takes time
            self._about |= {name: getattr(estimator, name) for name in names} | {"data": digest(data)}

    def save(self, arrays: Mapping[str, NDArray[Any]], history: Sequence[Epoch], **states: JSON) -> None:
        """Keep the fit as it is now, if it is to be kept."""
        if self._to is not None:
            epochs = {"history": [asdict(epoch) for epoch in history]}
            save(self._to, arrays, self._about | states | epochs)

    def load(self) -> tuple[dict[str, NDArray[Any]], dict[str, JSON], list[Epoch]]:
        """The arrays, the states and the epochs of the fit to go on from. Raises CheckpointError if that is another fit."""
        arrays, kept = load(self._from)
        now = self._about
        other = [f"{name}={kept.get(name)!r} (now {value!r})" for name, value in now.items() if kept.get(name) != value]
        if other:
            raise CheckpointError(
                f"the checkpoint in {str(self._from)!r} is of another fit: {', '.join(other)}; "
                "go on with the same data and settings, or begin anew without resume."
            )
        history = [
            Epoch(**epoch | {"examples_by_thread": tuple(epoch["examples_by_thread"])}) for epoch in kept["history"]
        ]
        return arrays, kept, history


def _checksum(array: NDArray[Any]) -> str:
    return xxh3_64_hexdigest(array.reshape(-1).view(np.uint8).data)
