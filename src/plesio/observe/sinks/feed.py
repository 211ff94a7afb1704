"""What a sink is, and the thread that feeds it."""

from __future__ import annotations

import importlib.util
import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from plesio.errors import ConfigurationError, words_of
from plesio.observe.summary import Summary

WAITING_MAX = 100
"""How many calls may wait for a sink: at ten a second, ten seconds."""
END_S = 30.0
"""How long a sink may take to write what is left when the run is over."""


class Told(NamedTuple):
    """How a run stands: seconds since training began, what was done until then, and the newest numbers by name.

    `values` are those that `evaluate` returned and workers logged.
    """

    time_s: float
    version: int
    steps: int
    samples: int
    values: dict[str, float]

    @property
    def at(self) -> int:
        """Where on an axis: samples; steps, where nobody says how many samples a step used."""
        return self.samples or self.steps

    @property
    def numbers(self) -> dict[str, float]:
        """All of it by name, with `run/` before what is of the run itself."""
        own = {
            "run/time_s": self.time_s,
            "run/version": self.version,
            "run/steps": self.steps,
            "run/samples": self.samples,
        }
        return {**own, **self.values}


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


def needs(sink: str, package: str, extra: str) -> None:
    """Raise `ConfigurationError` where the package that a sink writes by is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(f"sinks: {sink} needs the package {package}; pip install 'plesio[{extra}]'")


class Feed:
    """Calls one sink in a thread of its own."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._name = type(sink).__name__
        self._why = ""
        self._warned = False
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._serve, name=f"plesio sink {self._name}", daemon=True)
        self._thread.start()

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._call(lambda: self._sink.begin(name, settings))

    def tell(self, told: Told) -> None:
        self._call(lambda: self._sink.tell(told))

    def end(self, summary: Summary | None) -> None:
        """Let it write what is left, for `END_S` at most."""
        self._call(lambda: self._sink.end(summary))
        if not self._why:
            self._put(None)
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._why = f"it did not end within {END_S:g} s"
        self._warn()

    def _call(self, call: Callable[[], None]) -> None:
        if not self._why:
            self._put(call)
        self._warn()

    def _put(self, call: Callable[[], None] | None) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._why = f"it does not keep up: {WAITING_MAX} calls wait for it"

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None and not self._why:
            try:
                call()
            except Exception as error:
                self._why = f"{type(error).__name__}: {words_of(error)}"

    def _warn(self) -> None:
        if self._why and not self._warned:
            self._warned = True
            warnings.warn(f"sink {self._name} was dropped: {self._why}; training goes on", RuntimeWarning, stacklevel=4)


class Feeds:
    """The sinks of a run."""

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

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        for one in self._feeds:
            one.begin(name, settings)

    def tell(self, told: Told) -> None:
        for one in self._feeds:
            one.tell(told)
