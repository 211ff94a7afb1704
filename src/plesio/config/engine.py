"""Where a run takes place, and what that means for its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

PROCESSES_MAX = 80  # workers on one host: what the descriptors of their lines leave room for in one message
LONGEST_S = 1e6  # eleven days; poll() takes milliseconds in 31 bits, and some waits are for twice the time


class Engine:
    """Processes of this host, and what others have otherwise."""

    __slots__ = ()
    clock: ClassVar[str] = "wall"
    workers_max: ClassVar[int] = PROCESSES_MAX
    longest_s: ClassVar[float] = LONGEST_S
    """The longest that anything is waited for."""
    elsewhere: ClassVar[bool] = False
    """Whether the run's head may be on another machine."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Settings that it does not take, and why, as an error begins."""


LOCAL = Engine()
