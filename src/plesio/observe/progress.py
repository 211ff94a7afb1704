"""How a run stands, in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from plesio.observe.amounts import number
from plesio.observe.totals import Totals

EVERY_S = 0.25


@runtime_checkable
class Display(Protocol):
    """Whoever shows a run, not the user's function that watches it: it is told of the start, too."""

    def starting(self, words: str) -> None: ...


def running(totals: Totals, metrics: Mapping[str, float], target: tuple[str, float] | None) -> str:
    speed = f" ({number(totals.steps / totals.wall_s, 2)}/s)" if totals.wall_s > 0.2 else ""
    return f"{totals.wall_s:5.1f} s  {totals.steps:,} steps{speed}{metrics_in_words(metrics, target)}"


def metrics_in_words(metrics: Mapping[str, float], target: tuple[str, float] | None) -> str:
    names = [target[0]] if target else list(metrics)
    return "".join(f"  {name} {metrics[name]:.4g}" for name in names if name in metrics)


def is_watched() -> bool:
    """Whether somebody sees what is written to standard error: at a terminal, or in a notebook."""
    return sys.stderr is not None and ("ipykernel" in sys.modules or sys.stderr.isatty())


class ProgressLine:
    """A line on standard error that is written anew as the run goes."""

    def __init__(self, name: str, target: tuple[str, float] | None) -> None:
        self._name = name
        self._target = target
        self._width = 0
        self._drawn_s = 0.0

    def show(self, totals: Totals, metrics: Mapping[str, float]) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s > EVERY_S:
            self._drawn_s = now_s
            self._write(f"{self._name}  {running(totals, metrics, self._target)}")

    def starting(self, words: str) -> None:
        self._write(f"{self._name}  {words}")

    def clear(self) -> None:
        if self._width:
            self._write("")
            self._write("")

    def _write(self, words: str) -> None:
        with suppress(OSError):  # the terminal was closed, which ends the run (SIGHUP), in good order
            print(f"\r{words:{self._width}}", end="\r", file=sys.stderr, flush=True)
        self._width = len(words)
