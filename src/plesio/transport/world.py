"""How a server's process hears of the world, and acts on it: directly, or through a log (`plesio.transport.remembered`)."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plesio.transport.channel import Channel


@dataclass(frozen=True, slots=True)
class World:
    """`now_s`: the time of what is dealt with now; `once`: does what depends on more than this process knows, and gives the
    result; `sent`: likewise what gives the time when it was done, or 0, with its arguments; `read`: from a descriptor, at most so
    many bytes; `attach`: as `Channel.attach`."""

    now_s: Callable[[], float] = time.monotonic
    once: Callable[[Callable[[], Any]], Any] = operator.call
    sent: Callable[..., float] = operator.call
    read: Callable[[int, int], bytes] = os.read
    attach: Callable[[int, Any, str], Channel[Any]] = Channel.attach


DIRECT = World()
