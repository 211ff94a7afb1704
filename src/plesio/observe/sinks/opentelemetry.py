"""OpenTelemetry: metrics, and traces of exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plesio.errors import ConfigurationError
from plesio.observe.measures import LABELS, Measure, Number
from plesio.observe.sinks.feed import Names, Settled, Sink, Told, needs

NS = 1_000_000_000


class OpenTelemetry(Sink):
    """Tells the meter provider that the program has set: `plesio.worker.steps` with the attribute `worker`, and the like.

    With `traces` it also tells the tracer provider of exchanges. A span is one contribution; it begins when what its worker
    sent before was folded or discarded, has the event "arrived", and ends when it is folded or discarded itself. It is linked to
    the span of its fold. Spans are made from the journal, so that such a run needs `runs=` and a strategy with a server.

    Args:
        attributes: what to tell runs apart by, beside the run's name.
        traces: the share of exchanges that become spans, 0 to 1. At 0.01 each worker's contributions 100, 200, ... do.

    Raises:
        ConfigurationError: the package opentelemetry is not installed, or `traces` is no share.

    >>> sink = ps.sinks.OpenTelemetry({"team": "vision"}, traces=0.01)
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink], runs="runs")
    """

    def __init__(self, attributes: Mapping[str, str] | None = None, traces: float = 0.0) -> None:
        needs("OpenTelemetry", "opentelemetry", "opentelemetry")
        if not 0.0 <= traces <= 1.0:
            raise ConfigurationError(f"traces={traces!r}: the share of exchanges that become spans, from 0 to 1")
        self.traces = traces
        self._attributes = dict(attributes or {})
        self._instruments: dict[str, Any] = {}
        self._counted: dict[str, float] = {}
        self._meter: Any = None
        self._tracer: Any = None
        self._names = Names(r"[^a-zA-Z0-9_.-]", slash=".")

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from opentelemetry import metrics, trace

        self._meter, self._tracer = metrics.get_meter("plesio"), trace.get_tracer("plesio")
        self._attributes["run"] = name

    def tell(self, told: Told) -> None:
        for one in told.figures:
            self._tell(one)
        for name, value in told.values.items():
            known = f"plesio.{self._names(name)}"
            if known not in self._instruments:
                self._instruments[known] = self._meter.create_gauge(known)
            self._instruments[known].set(value, self._attributes)

    def _tell(self, one: Number) -> None:
        measure, label = one.measure, LABELS[one.measure.group]
        name = instrument_of(measure)
        if name not in self._instruments:
            create = self._meter.create_counter if measure.grows else self._meter.create_gauge
            self._instruments[name] = create(name, unit_of(measure), measure.help)
        attributes = {**self._attributes, label: one.label} if label else self._attributes
        if measure.grows:  # it takes what is new
            self._instruments[name].add(one.value - self._counted.get(one.path, 0), attributes)
            self._counted[one.path] = one.value
        else:
            self._instruments[name].set(one.value, attributes)

    def trace(self, settled: Iterable[Settled]) -> None:
        """Make spans of exchanges that were settled since the last time."""
        from opentelemetry.trace import Link

        for one in settled:
            links = []
            if one.version is not None:
                first_s = min(each.came_s for each in one.exchanges)
                fold = self._span("fold", first_s, {"version": one.version})
                fold.end(int(one.time_s * NS))
                links = [Link(fold.get_span_context())]
            for each in one.exchanges:
                known = {name: getattr(each, name) for name in ("worker", "number", "staleness", "samples", "outcome")}
                span = self._span("exchange", each.began_s, known, links)
                span.add_event("arrived", timestamp=int(each.came_s * NS))
                span.end(int(one.time_s * NS))

    def _span(self, name: str, start_s: float, about: Mapping[str, Any], links: Sequence[Any] = ()) -> Any:
        about = {**self._attributes, **about}
        return self._tracer.start_span(name, attributes=about, links=links, start_time=int(start_s * NS))


def instrument_of(measure: Measure) -> str:
    """The name of an instrument, where the unit is said by itself.

    >>> from plesio.observe.measures import MEASURES
    >>> [instrument_of(MEASURES["worker", name]) for name in ("steps", "wait_s", "steps_per_s")]
    ['plesio.worker.steps', 'plesio.worker.wait_time', 'plesio.worker.steps_per_s']
    """
    name = measure.name
    if unit_of(measure) == "s":
        name = f"{name.removesuffix('_s')}_time".replace("time_time", "time")
    return f"plesio.{measure.group}.{name}"


def unit_of(measure: Measure) -> str:
    """Its unit as in UCUM.

    >>> from plesio.observe.measures import MEASURES
    >>> [unit_of(MEASURES["worker", name]) for name in ("steps", "wait_s", "waiting_share", "steps_per_s")]
    ['{step}', 's', '1', '{step}/s']
    """
    name = measure.name
    if name.endswith("_per_s"):
        return f"{{{name.removesuffix('s_per_s')}}}/s"
    known = next((unit for ending, unit in (("_s", "s"), ("bytes", "By")) if name.endswith(ending)), "1")
    return f"{{{name.removesuffix('s')}}}" if measure.grows and known == "1" else known
