"""What is seen while strategies run: a line each, live on a terminal; elsewhere one plain line as each ends."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
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
STARTING, RUNNING, ENDED, MISSED, FAILED = "[dim]…", "[bold]▸", "[green]✓", "[yellow]–", "[red]✗"


def terminal() -> Console:
    """Standard output; where it is no terminal and nobody said otherwise, wide enough for our tables."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=PLAIN_WIDTH)


class StrategyLines:
    """The lines of all strategies. Drawn when something is told, not by a thread: the engine's process has none.

    With `says`, and without a terminal, a line is printed as each strategy ends.
    """

    def __init__(self, console: Console, names: Sequence[str], until: Until, says: bool = True) -> None:
        self._console = console
        self._until = until
        self._says = says
        self._names = [f"{name:{max(map(len, names))}}" for name in names]
        self._progress = Progress(
            TextColumn("{task.fields[mark]}", table_column=Column(width=1)),
            TextColumn("{task.description}", markup=False, table_column=Column(min_width=len(self._names[0]))),
            BarColumn(BAR, table_column=Column(width=BAR)),
            TextColumn("{task.fields[words]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        for name in self._names:
            self._progress.add_task(name, total=1.0, mark=" ", words="")
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, number: int) -> StrategyLine:
        """What is to be told how the run of strategy `number` stands."""
        self.starting(number, "starting")
        return StrategyLine(self, number)

    def starting(self, number: int, words: str) -> None:
        self._set(number, STARTING, words, 0.0)

    def runs(self, number: int, live: Live) -> None:
        if time.monotonic() - self._drawn_s > REDRAW_S:
            share = live.time_s / self._until.seconds if self._until.seconds else 0.0
            self._set(number, RUNNING, running(live.totals, live.metrics, self._until.target), share)

    def ended(self, number: int, summary: Summary, which: str = "") -> None:
        target = self._until.target
        missed = target is not None and summary.time_to(*target) is None
        self._say(number, MISSED if missed else ENDED, which + ended(summary, target), 1.0)

    def failed(self, number: int, why: str) -> None:
        self._say(number, FAILED, f"failed: {why}", 0.0)

    def _say(self, number: int, mark: str, words: str, share: float) -> None:
        self._set(number, mark, words, share)
        if self._says and not self._console.is_terminal:
            self._console.print(Text(f"{self._names[number]}  {words}"), soft_wrap=True)
            self._console.file.flush()

    def _set(self, number: int, mark: str, words: str, share: float) -> None:
        share = min(1.0, max(0.0, share))
        try:
            self._progress.update(TaskID(number), completed=share, mark=mark, words=words, refresh=True)
        except OutputLostError:  # the terminal was closed: that ends the run (SIGHUP), in good order
            give_up_output()
        self._drawn_s = time.monotonic()


class StrategyLine:
    """The line of strategy `number` on a board, as a `watch`."""

    def __init__(self, board: StrategyLines, number: int) -> None:
        self._board, self._number = board, number

    def __call__(self, live: Live) -> None:
        self._board.runs(self._number, live)

    def starting(self, words: str) -> None:
        self._board.starting(self._number, words)


def ended(summary: Summary, target: tuple[str, float] | None) -> str:
    steps = f"{summary.steps:,} steps ({number(summary.steps_per_s, 2)}/s)"
    last = summary.history[-1].metrics if summary.history else {}
    if target is None:
        return f"{summary.wall_s:.2f} s, {steps}{metrics_in_words(last, None)}"
    time_s, goal = summary.time_to(*target), f"{target[0]} {target[1]:g}"
    if time_s is not None:
        return f"{goal} in {time_s:.2f} s, {steps}"
    return f"{goal} not reached in {summary.wall_s:.1f} s, {steps}{metrics_in_words(last, target)}"


def simulated_in(virtual_s: float, real_s: float) -> str:
    return f"All times are virtual: {number(virtual_s)} s of them were simulated in {number(real_s, 2)} s."
