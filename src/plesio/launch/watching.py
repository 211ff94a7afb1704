"""Who is told how a run goes: the user's `watch`, the sinks, the run's record for the live page, and what ends the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from plesio.config import RunConfig
from plesio.errors import words_of
from plesio.launch.job import Live
from plesio.observe.asked import taken
from plesio.observe.measures import Number
from plesio.observe.numbers import Numbers
from plesio.observe.progress import Display
from plesio.observe.record import Record
from plesio.observe.sinks import Feeds, Told
from plesio.observe.standing import ReaderNow, Standing
from plesio.observe.summary import Summary

log = logging.getLogger("plesio")
LOOK_S = 0.1
"""At most so often sinks and record are told (sinks also at each evaluation) and the page's requests are looked for."""
NUMBERS_S = 1.0
"""And of all numbers, those of each worker among them."""


class Advises(Protocol):
    """`plesio.launch.advising.Adviser`."""

    advice: str

    def ask(self, live: Live) -> None: ...
    def look(self, live: Live) -> None: ...


class Watching:
    """Is told how a run stands, as `plesio.launch.job.Watch`; the run is under way within its `with` block.

    Args:
        watch: the user's.
        before: steps and samples of before a resume, which `until` counts, too.
        folder: where the record goes and the page's wishes come from, if anywhere.
        head: what the record says of the run as a whole.
    """

    def __init__(
        self,
        config: RunConfig,
        watch: Callable[[Live], object] | None,
        feeds: Feeds,
        adviser: Advises,
        *,
        before: tuple[int, int],
        folder: Path | None,
        head: Mapping[str, Any],
    ) -> None:
        self.summary: Summary | None = None
        """What all are told at the end."""
        self.lacks, self.failed = "", False
        """Which files the run folder lacks, and whether that or anything else spoils the result of a run that came to its end."""
        self._until, self._watch, self._feeds, self._before = config.until, watch, feeds, before
        self._adviser, self._advice = adviser, ""
        self._folder, self._head, self._readers = folder, head, bool(config.readers)
        self._record: Record | None = None
        self._live: Live | None = None
        self._now: Standing | None = None
        self._there: tuple[ReaderNow, ...] = ()
        self._fed: Told | None = None
        self._numbers, self._numbers_s = Numbers(), 0.0  # and when they are told next
        self._numbered: Standing | None = None  # of what they were told last
        self._metrics: dict[str, float] | None = None  # of the last evaluation that the sinks were told of
        self._events = 0
        self._next_s = 0.0
        self._stop: str | None = None

    def __enter__(self) -> Self:
        if self._folder is not None:
            self._record = Record(self._folder, self._head)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._live is not None:
            self._feed(self._live, over=True)
            self._tell(self._live)
        if self._record is not None:
            if error is None:
                ended = self.summary.ended if self.summary is not None else "interrupted"
                self._record.end(f"{ended}{self.lacks}", failed=self.failed)
            elif isinstance(error, KeyboardInterrupt):
                self._record.end("interrupted")
            else:
                self._record.end(words_of(error).partition("\n")[0] or type(error).__name__, failed=True)
        self._feeds.end(self.summary)

    def __call__(self, live: Live) -> str | None:
        """Tell everybody; why the run is to stop, if it is."""
        asked = self.look(live)
        if live.evaluate_raised:
            return f"evaluate raised {live.evaluate_raised.partition(':')[0]}"
        if self._watch is not None:
            self._watch(live)
        return self.reached(live) or asked

    def starting(self, words: str) -> None:
        """Tell whoever shows the run what its start waits for."""
        log.info("%s", words)
        if isinstance(self._watch, Display):
            self._watch.starting(words)

    def reached(self, live: Live) -> str | None:
        """Why the run is to stop, as `until` has it."""
        steps, samples = self._before
        done = {"seconds": live.time_s, "steps": live.steps + steps, "samples": live.samples + samples}
        return self._until.reached(done, live.metrics, more_may_come=self._readers)

    @property
    def due(self) -> bool:
        """Whether it is time to `look` again."""
        return time.monotonic() >= self._next_s

    def look(self, live: Live) -> str | None:
        """Tell the sinks and the record, and do what was asked by the page; that the run is to stop, if it is."""
        self._live = live
        if self.due or live.metrics is not self._metrics:
            self._feed(live)
        if self.due:
            self._next_s = time.monotonic() + LOOK_S
            self._adviser.look(live)
            self._tell(live)
            for asked in taken(self._folder) if self._folder is not None else ():
                self._do(asked, live)
        return self._stop

    def _do(self, asked: str, live: Live) -> None:
        """What somebody asked for on the page."""
        if asked == "stop":
            self._stop = "stopped from the live page"
        elif asked == "checkpoint" and live.keeper is not None:
            live.keeper()
        elif asked == "advice":
            self._adviser.ask(live)
        elif (phase := asked.partition("switch-")[2]).isdecimal() and int(phase) < len(live.phases):
            live.switch(int(phase), "asked on the live page")

    def _feed(self, live: Live, over: bool = False) -> None:
        self._metrics = live.metrics
        if live.time_s < 0:
            return
        figures, values = self._figures(live, over), {**live.logged, **live.metrics}
        if figures and self._record is not None and live.now is not None:
            self._record.numbers({one.path: one.value for one in figures}, values, live.now)
        told = Told(live.time_s, live.version, live.steps, live.samples, values, figures)
        if told != self._fed:
            self._fed = told
            self._feeds.tell(told)

    def _figures(self, live: Live, over: bool) -> tuple[Number, ...]:
        """All numbers, once in `NUMBERS_S` and when the run is over; else none."""
        if live.now is None:
            return ()
        self._numbers.hear(live.now)
        is_new = live.now is not self._numbered and time.monotonic() >= self._numbers_s
        if not (over or is_new):
            return ()
        self._numbers_s, self._numbered = time.monotonic() + NUMBERS_S, live.now
        return self._numbers.of(live.time_s, live.totals, live.now, not over, live.readers)

    def _tell(self, live: Live) -> None:
        if self._record is None:
            return
        for one in live.events[self._events :]:
            self._record.event(one)
        self._events = len(live.events)
        if self._adviser.advice != self._advice:
            self._advice = self._adviser.advice
            self._record.advice(self._advice)
        if live.readers != self._there:
            self._there = live.readers
            self._record.readers(live.readers)
        if live.now is not None and live.now is not self._now:
            self._now = live.now
            logged = live.logged
            self._record.logged(logged.keys() - live.metrics.keys())
            values = {**logged, **live.metrics}
            self._record.at(live.time_s, live.totals, live.now, values)
