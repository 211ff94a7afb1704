"""What is seen while strategies run: a line each, live on a terminal; elsewhere one plain line as each ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plesio.cli.output import OutputLostError, give_up_output
from plesio.config.until import Until
from plesio.observe.amounts import number
from plesio.observe.progress import metrics_in_words, running
from plesio.observe.summary import Summary

if TYPE_CHECKING:
    from plesio.launch.job import Live

REDRAW_S = 0.1
BAR = 20
PLAIN_WIDTH = 118
MARKS = {"queued": " ", "starting": "…", "running": "▸", "ended": "✓", "missed": "–", "failed": "✗"}
STYLES = {"queued": "dim", "starting": "dim", "running": "bold", "ended": "green", "missed": "yellow", "failed": "red"}


def terminal() -> Console:
    """Standard output; where it is no terminal and nobody said otherwise, wide enough for our tables."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=PLAIN_WIDTH)


@dataclass(slots=True)
class Line:
    name: str
    state: str = "queued"
    words: str = ""
    share: float = 0.0


class Board:
    """The lines of all strategies. Drawn when something is told, not by a thread: the engine's process has none.

    With `says`, and without a terminal, a line is printed as each strategy ends.
    """

    def __init__(self, console: Console, names: Sequence[str], until: Until, says: bool = True) -> None:
        self._console = console
        self._until = until
        self._says = says
        self._lines = [Line(name) for name in names]
        self._widest = max(map(len, names))
        self._screen: Screen | None = None
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._screen = Screen(self._draw(), console=self._console, auto_refresh=False, transient=True)
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.stop()

    def watch(self, number: int) -> Callable[[Live], None]:
        """What is to be told how the run of strategy `number` stands."""
        self._set(number, "starting", "starting", 0.0)

        def tell(live: Live) -> None:
            if time.monotonic() - self._drawn_s > REDRAW_S:
                share = live.time_s / self._until.seconds if self._until.seconds else 0.0
                self._set(number, "running", running(live, self._until.target), share)

        return tell

    def ended(self, number: int, summary: Summary, which: str = "") -> None:
        target = self._until.target
        missed = target is not None and summary.time_to(*target) is None
        self._set(number, "missed" if missed else "ended", which + ended(summary, target), 1.0)
        self._say(number)

    def failed(self, number: int, why: str) -> None:
        self._set(number, "failed", f"failed: {why}", 0.0)
        self._say(number)

    def _set(self, number: int, state: str, words: str, share: float) -> None:
        line = self._lines[number]
        line.state, line.words, line.share = state, words, min(1.0, max(0.0, share))
        if self._screen is not None:
            try:
                self._screen.update(self._draw(), refresh=True)
            except OutputLostError:  # the terminal was closed: that ends the run (SIGHUP), in good order
                give_up_output()
        self._drawn_s = time.monotonic()

    def _say(self, number: int) -> None:
        if self._says and self._screen is None:
            line = self._lines[number]
            self._console.print(Text(f"{line.name:{self._widest}}  {line.words}"), soft_wrap=True)
            self._console.file.flush()

    def _draw(self) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=1)
        grid.add_column(min_width=self._widest)
        grid.add_column(width=BAR)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for line in self._lines:
            style = STYLES[line.state]
            bar = ProgressBar(total=1.0, completed=line.share, width=BAR) if line.share else ""
            words = Text(line.words, style="" if line.state == "running" else style)
            grid.add_row(Text(MARKS[line.state], style=style), Text(line.name, style=style), bar, words)
        return grid


def ended(summary: Summary, target: tuple[str, float] | None) -> str:
    steps = f"{summary.steps:,} steps ({number(summary.steps_per_s, 2)}/s)"
    if target is None:
        last = summary.history[-1].metrics if summary.history else {}
        return f"{summary.wall_s:.2f} s, {steps}{metrics_in_words(last, None)}"
    name, value = target
    time_s, final = summary.time_to(*target), summary.final(name)
    if time_s is not None:
        return f"{name} {value:g} in {time_s:.2f} s, {steps}"
    reached = "never measured" if final is None else f"at {final:.4g}"
    return f"{name} {value:g} not reached in {summary.wall_s:.1f} s ({reached}), {steps}"


def simulated_in(virtual_s: float, real_s: float) -> str:
    return f"All times are virtual: {number(virtual_s)} s of them were simulated in {number(real_s, 2)} s."
