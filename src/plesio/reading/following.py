"""A model that takes newer versions of a run by itself, each at the beginning of a forward pass."""

from __future__ import annotations

import time
from typing import Any, Protocol, Self

from torch import nn

from plesio.errors import ConfigurationError

LOOK_S = 1.0
"""How often to ask whether the run is over, which no version's number says."""


def check_at_least(**given: tuple[float | None, int]) -> None:
    """Raise ConfigurationError for a value that is given and no number of at least so much."""
    for name, (value, least) in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least):
            raise ConfigurationError(f"{name}={value!r}: a number of at least {least}")


class Reads(Protocol):
    """What a `Reader` is to this."""

    version: int
    ended: bool

    @property
    def newest(self) -> int: ...
    def load(self, model: nn.Module, *, at_least: int = 0) -> int: ...
    def over(self) -> bool: ...


class Following:
    """See `Reader.follow`. It looks in the thread that calls the model, so that no pass sees two versions."""

    def __init__(
        self, reader: Reads, model: nn.Module, every_s: float | None, every_versions: int | None, max_age: int | None
    ) -> None:
        check_at_least(every_s=(every_s, 0), every_versions=(every_versions, 1), max_age=(max_age, 0))
        if every_s is every_versions is max_age is None:
            every_s = 1.0
        self._reader, self._model = reader, model
        self._every_s, self._max_age = every_s, max_age
        ahead = [one for one in (every_versions, None if max_age is None else max_age + 1) if one is not None]
        self._ahead = min(ahead, default=None)
        self._load()
        self._looked_s = time.monotonic()
        self._hook = model.register_forward_pre_hook(self._before)

    @property
    def age(self) -> int:
        """How many versions the run is ahead of what the model has."""
        return self._reader.newest - self.version

    def _before(self, *_: Any) -> None:
        reader = self._reader
        if self._has_last:
            return
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            reader.over()
        if reader.ended or self._is_due():
            self._load()

    def _load(self) -> None:
        least = 0 if self._max_age is None else max(0, self._reader.newest - self._max_age)
        self.version, self._took_s = self._reader.load(self._model, at_least=least), time.monotonic()
        self._has_last = self._reader.ended

    def _is_due(self) -> bool:
        if self._every_s is not None and time.monotonic() - self._took_s >= self._every_s:
            return True
        return self._ahead is not None and not 0 <= self.age < self._ahead  # another head may be behind

    def close(self) -> None:
        """The model stays as it is."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
