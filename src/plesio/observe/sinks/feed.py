"""What a sink is, and the thread that feeds it."""

from __future__ import annotations

import importlib.util
import logging
import queue
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from plesio.errors import ConfigurationError, words_of
from plesio.observe.measures import Number
from plesio.observe.summary import Summary

log = logging.getLogger("plesio")
WAITING_MAX = 100  # how many calls may wait for a sink: at ten a second, ten seconds
HANGS_S = 30.0  # a sink is dropped when one call takes longer than this
END_S = 30.0  # how long a sink may take to write what is left when the run is over
SHORT_S = 1.0  # after so long a wait at the end, a line says which sink it is for


class Told(NamedTuple):
    """How a run stands: seconds since training began, what was done until then, and the newest numbers by name.

    `values` are those that `evaluate` returned and workers logged. `figures` are all others that the live page shows
    (`plesio.observe.measures`), such as each worker's. They are told once a second and at the end; in between there are none.
    """

    time_s: float
    version: int
    steps: int
    samples: int
    values: dict[str, float]
    figures: tuple[Number, ...] = ()

    @property
    def at(self) -> int:
        """Where on an axis: samples; steps, where nobody says how many samples a step used."""
        return self.samples or self.steps

    @property
    def numbers(self) -> dict[str, float]:
        """All of it by name, for sinks without labels: `run/waiting_share`, `worker/3/steps_per_s`, `accuracy`."""
        own = {f"run/{name}": getattr(self, name) for name in ("time_s", "version", "steps", "samples")}
        return {**own, **{one.path: one.value for one in self.figures}, **self.values}


class Sink(Protocol):
    """Where figures go.

    >>> class Last:
    ...     def begin(self, name, settings):
    ...         print(settings["run"]["workers"], "workers")
    ...     def tell(self, told):
    ...         self.told = told
    ...     def end(self, summary):
    ...         print(self.told.steps, "steps,", sorted(self.told.values), summary.ended)
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[Last()])
    2 workers
    20 steps, ['loss'] finished
    """

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """A run begins; its settings as in run.toml."""

    def tell(self, told: Told) -> None:
        """How it stands: several times a second, at each evaluation of a simulated run, and at the end."""

    def end(self, summary: Summary | None) -> None:
        """It is over; None where there is nothing to sum up."""


def needs(what: str, package: str, extra: str) -> None:
    """Raise `ConfigurationError` where a package that something needs is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(f"{what} needs the package {package}; pip install 'plesio[{extra}]'")


class Exchange(NamedTuple):
    """What sinks that trace are told: a worker's contribution of this `number`. Times are in seconds since 1970.

    `outcome`: "folded", or such as "discarded: stale".
    """

    worker: int
    number: int
    began_s: float
    came_s: float
    outcome: str
    staleness: int
    samples: int


class Settled(NamedTuple):
    """Exchanges that ended at once: in the fold that made `version`; None where one was discarded."""

    time_s: float
    version: int | None
    exchanges: tuple[Exchange, ...]


Follow = Callable[[float], Callable[[], Iterable[Settled]]]
"""Given the share of exchanges that a sink traces: what to call for those that were settled since the last time."""


class Names:
    """Names of metrics as a sink takes them; two that would be the same get a number.

    >>> names = Names(r"[^a-z_]")
    >>> names("top@k"), names("top k"), names("top@k")
    ('top_k', 'top_k_2', 'top_k')

    Args:
        refused: a regular expression for each character that it does not take.
        slash: what stands for a slash.
        taken: names that are no longer to be had.
    """

    def __init__(self, refused: str, slash: str = "_", taken: Iterable[str] = ()) -> None:
        self._refused = re.compile(refused)
        self._slash = slash
        self._taken = set(taken)
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            plain = free = self._refused.sub(lambda found: self._slash if found[0] == "/" else "_", name)
            number = 1
            while free in self._taken:
                number += 1
                free = f"{plain}_{number}"
            self._known[name] = free
            self._taken.add(free)
        return self._known[name]


class Feed:
    """Calls one sink in a thread of its own, once the run begins."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._name = type(sink).__name__
        self._why = ""
        self._warned = False
        self._since_s = inf  # when the call under way began
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._last: Told | None = None  # of those that wait
        self._ending = False
        self._news: Callable[[], Iterable[Settled]] | None = None  # of exchanges
        self._thread = threading.Thread(target=self._serve, name=f"plesio sink {self._name}", daemon=True)

    def follow(self, follow: Follow | None) -> None:
        if share := getattr(self._sink, "traces", 0.0):
            if follow is None:
                raise ConfigurationError(
                    f"sink {self._name}: traces={share:g} needs runs=, and a strategy with a server: spans are made from the "
                    "journal in the run's folder"
                )
            self._news = follow(share)

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._thread.start()
        self._call(lambda: self._sink.begin(name, settings))

    def tell(self, told: Told) -> None:
        """What a slow sink has no time for is left out: the next one tells more."""
        if self._calls.qsize() < WAITING_MAX:
            self._last = told
            self._call(lambda: self._tell(told))
        self._check()

    def _tell(self, told: Told) -> None:
        if not self._ending or told is self._last:
            self._sink.tell(told)
            if self._news is not None and told.figures:
                self._sink.trace(self._news())  # type: ignore[attr-defined]  # only some sinks do

    def end(self, summary: Summary | None) -> None:
        """Let it write what it was told, and end; after `SHORT_S` only the last of it, for `END_S` at most."""
        self._call(lambda: self._sink.end(summary))
        self._calls.put(None)
        self._thread.join(0.0 if self._why else SHORT_S)
        self._ending = True
        if not self._why and self._thread.is_alive():
            log.warning("waiting for sink %s, for %g s at most", self._name, END_S)
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._why = f"it did not end within {END_S:g} s"
        self._check("the run's result is complete")

    def _call(self, call: Callable[[], None]) -> None:
        if not self._why:
            self._calls.put(call)

    def _serve(self) -> None:
        while not self._why and (call := self._calls.get()) is not None:
            self._since_s = time.monotonic()
            try:
                call()
            except Exception as error:
                self._why = f"{type(error).__name__}: {words_of(error)}"
            self._since_s = inf

    def _check(self, consequence: str = "training goes on") -> None:
        if not self._why and time.monotonic() - self._since_s > HANGS_S:
            self._why = f"it hangs: a call has taken {HANGS_S:g} s"
        if self._why and not self._warned:
            self._warned = True
            warnings.warn(f"sink {self._name} was dropped: {self._why}; {consequence}", RuntimeWarning, stacklevel=4)


class Feeds:
    def __init__(self, sinks: Sequence[Sink]) -> None:
        for one in sinks:
            if not all(callable(getattr(one, name, None)) for name in ("begin", "tell", "end")):
                raise ConfigurationError(
                    f"sinks: {one!r} is no sink: it needs begin(name, settings), tell(told) and end(summary), such as "
                    "ps.sinks.TensorBoard('tb')"
                )
        self._feeds = [Feed(one) for one in sinks]

    def end(self, summary: Summary | None) -> None:
        for one in self._feeds:
            one.end(summary)

    def follow(self, follow: Follow | None) -> None:
        """Before the run begins: where sinks that trace exchanges hear of them, if anywhere."""
        for one in self._feeds:
            one.follow(follow)

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        for one in self._feeds:
            one.begin(name, settings)

    def tell(self, told: Told) -> None:
        for one in self._feeds:
            one.tell(told)
