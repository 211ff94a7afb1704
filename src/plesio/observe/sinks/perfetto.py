"""Perfetto: the workers' lanes as a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from plesio.observe.sinks.feed import Sink
from plesio.observe.summary import Summary

MICROSECONDS = 1e6


class Perfetto(Sink):
    """Writes what each worker did when, and the run's incidents, as a trace that https://ui.perfetto.dev opens.

    Args:
        path: the file, such as trace.json.

    >>> sink = ps.sinks.Perfetto("trace.json")
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink])
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._name = ""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._name = name

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._path.write_bytes(msgspec.json.encode({"traceEvents": trace(summary, self._name)}))


def trace(summary: Summary, name: str) -> list[dict[str, Any]]:
    """The events of the trace: a complete one for each span, an instant one for each incident."""
    named = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}]
    for worker in sorted(summary.spans_by_worker):
        named.append({"ph": "M", "pid": 0, "tid": worker, "name": "thread_name", "args": {"name": f"worker {worker}"}})
    spans = [
        {
            "ph": "X", "pid": 0, "tid": one.worker, "name": one.kind,
            "ts": one.start_s * MICROSECONDS, "dur": (one.end_s - one.start_s) * MICROSECONDS,
        }
        for one in summary.timeline
    ]  # fmt: skip
    happened = [
        {"ph": "i", "pid": 0, "tid": one.worker or 0, "name": one.what, "ts": one.time_s * MICROSECONDS, "s": "g"}
        for one in summary.incidents
    ]
    return [*named, *spans, *happened]
