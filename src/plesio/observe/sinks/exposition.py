"""Numbers of runs in the two text formats of Prometheus: its own, which files have, and OpenMetrics, which `/metrics` answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from typing import NamedTuple

from plesio.observe.measures import LABELS, MEASURES, Measure, Number
from plesio.observe.sinks.feed import Names

PREFIXES = {"run": "", "rows": "table_", "row_servers": "row_server_"}  # else the group's name
UNITS = {"_per_s": "_per_second", "_s": "_seconds", "_share": "_ratio"}
THEIRS = Measure("", "", "as evaluate returned it or workers logged it")
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@cache
def family_of(measure: Measure) -> str:
    """The name of a measure as Prometheus has it, but for the `_total` of a count.

    >>> [family_of(MEASURES["run", name]) for name in ("bytes", "waiting_share", "steps_per_s")]
    ['plesio_bytes', 'plesio_waiting_ratio', 'plesio_steps_per_second']
    """
    name = measure.name
    for unit, theirs in UNITS.items():
        if name.endswith(unit):
            name = name.removesuffix(unit) + theirs
            break
    return f"plesio_{PREFIXES.get(measure.group, f'{measure.group}_')}{name}"


@cache
def series_of(measure: Measure) -> str:
    """The name of its series.

    >>> series_of(MEASURES["worker", "steps"]), series_of(MEASURES["worker", "wait_s"])
    ('plesio_worker_steps_total', 'plesio_worker_wait_seconds_total')
    """
    return family_of(measure) + "_total" * measure.grows


class Shown(NamedTuple):
    """A run: its name, its numbers, and those of the user's by name."""

    name: str
    numbers: Sequence[Number]
    values: Mapping[str, float]


class Exposition:
    """Writes runs. `open_metrics`: in that format, where a count's family is named without `_total`, and `# EOF` ends it.

    >>> one = Shown("monday", [Number(MEASURES["worker", "steps"], 12, "3")], {"top-5": 0.5})
    >>> print(Exposition().text([one]), end="")
    # HELP plesio_worker_steps_total local steps
    # TYPE plesio_worker_steps_total counter
    plesio_worker_steps_total{run="monday",worker="3"} 12.0
    # HELP plesio_top_5 as evaluate returned it or workers logged it
    # TYPE plesio_top_5 gauge
    plesio_top_5{run="monday"} 0.5
    """

    def __init__(self, open_metrics: bool = False) -> None:
        self._open = open_metrics
        ours = {name for one in MEASURES.values() for name in (family_of(one), series_of(one))}
        self._names = Names(r"[^a-zA-Z0-9_]", taken=(name.removeprefix("plesio_") for name in ours))

    def text(self, runs: Iterable[Shown]) -> str:
        families: dict[str, list[str]] = {}
        for run in runs:
            own = f'run="{_escaped(run.name)}"'
            for one in run.numbers:
                series, label = series_of(one.measure), LABELS[one.measure.group]
                lines = _lines_of(families, family_of(one.measure) if self._open else series, one.measure)
                labels = f'{own},{label}="{_escaped(one.label)}"' if label else own
                lines.append(f"{series}{{{labels}}} {_digits(one.value)}")
            for name, value in run.values.items():
                series = f"plesio_{self._names(name)}"
                _lines_of(families, series, THEIRS).append(f"{series}{{{own}}} {_digits(value)}")
        return "".join(f"{line}\n" for lines in families.values() for line in lines) + "# EOF\n" * self._open


def _lines_of(families: dict[str, list[str]], family: str, measure: Measure) -> list[str]:
    if family not in families:
        kind = "counter" if measure.grows else "gauge"
        families[family] = [f"# HELP {family} {measure.help}", f"# TYPE {family} {kind}"]
    return families[family]


def _digits(value: float) -> str:
    if isfinite(value):
        return repr(float(value))
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
