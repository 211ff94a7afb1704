"""OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plesio.observe.sinks.feed import Names, Sink, Told, needs


class OpenTelemetry(Sink):
    """Sets a gauge for each number, `plesio.run.steps` and the like, by the meter provider that the program has set.

    Args:
        attributes: what to tell runs apart by, beside the run's name.

    Raises:
        ConfigurationError: the package opentelemetry is not installed.

    >>> sink = ps.sinks.OpenTelemetry({"team": "vision"})
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink])
    """

    def __init__(self, attributes: Mapping[str, str] | None = None) -> None:
        needs("OpenTelemetry", "opentelemetry", "opentelemetry")
        self._attributes = dict(attributes or {})
        self._gauges: dict[str, Any] = {}
        self._meter: Any = None
        self._names = Names(r"[^a-zA-Z0-9_.-]", slash=".")

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from opentelemetry import metrics

        self._meter = metrics.get_meter("plesio")
        self._attributes["run"] = name

    def tell(self, told: Told) -> None:
        for name, value in told.numbers.items():
            known = f"plesio.{self._names(name)}"
            if known not in self._gauges:
                self._gauges[known] = self._meter.create_gauge(known)
            self._gauges[known].set(value, self._attributes)
