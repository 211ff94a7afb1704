"""Outages and faults of simulated workers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from plesio.cluster.check import INFINITE, OR_INFINITE, Checked
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import NUMBER, POSITIVE


class Outage(Checked, frozen=True):
    """Every `every_s` seconds the worker pauses for `lasts_s`, first at `start_s` (None: at a random time)."""

    every_s: Annotated[float, POSITIVE]
    lasts_s: Annotated[float, POSITIVE]
    start_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lasts_s >= self.every_s:
            raise ConfigurationError(
                f"Outage(every_s={self.every_s!r}, lasts_s={self.lasts_s!r}): lasts_s must be below every_s"
            )


class Fault(Checked, frozen=True, tag_field="kind", tag=str.lower, kw_only=True):
    """Something that happens to a worker at `at_s`."""

    at_s: Annotated[float, NUMBER]
    worker: int


class Slow(Fault, frozen=True, kw_only=True):
    """From `at_s` to `until_s` the worker's steps take `factor` times as long."""

    factor: Annotated[float, POSITIVE]
    at_s: Annotated[float, NUMBER] = 0.0
    until_s: Annotated[float, OR_INFINITE] = INFINITE

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self)


class Partition(Fault, frozen=True, kw_only=True):
    """From `at_s` to `until_s`, messages between the worker and the server wait."""

    until_s: Annotated[float, NUMBER]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(self)


class Crash(Fault, frozen=True, kw_only=True):
    """The worker's process dies."""

    alive: ClassVar[bool] = False


class Leave(Fault, frozen=True, kw_only=True):
    """The worker leaves by itself."""

    alive: ClassVar[bool] = False


class Restart(Fault, frozen=True, kw_only=True):
    """A worker that crashed or left comes back as a new incarnation."""

    alive: ClassVar[bool] = True


class Join(Fault, frozen=True, kw_only=True):
    """The worker joins at `at_s`; before, it is absent."""

    alive: ClassVar[bool] = True


AnyFault = Slow | Partition | Crash | Leave | Restart | Join
Turn = Crash | Leave | Restart | Join  # faults after which a worker is alive or not


def _check_order(fault: Slow | Partition) -> None:
    if not fault.until_s > fault.at_s:
        raise ConfigurationError(f"{fault}: until_s must be after at_s")
