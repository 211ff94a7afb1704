"""Prometheus: a text file for the node exporter's textfile collector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from plesio.observe.sinks.feed import Names, Sink, Told


class Prometheus(Sink):
    """Keeps a file in the text format of Prometheus: a gauge for each number, `plesio_run_steps` and the like.

    Args:
        path: the file, which ends in .prom for the textfile collector. It is replaced whole, so that no reader sees a half.

    >>> sink = ps.sinks.Prometheus("plesio.prom")
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink])
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._label = ""
        self._names = Names(r"[^a-zA-Z0-9_]")

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        escaped = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._label = f'{{run="{escaped}"}}'

    def tell(self, told: Told) -> None:
        lines = [line for name, value in told.numbers.items() for line in self._lines(name, value)]
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text("\n".join([*lines, ""]), encoding="utf-8")
        os.replace(new, self._path)

    def _lines(self, name: str, value: float) -> list[str]:
        known = f"plesio_{self._names(name)}"
        number = repr(float(value)) if isfinite(value) else "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
        return [f"# TYPE {known} gauge", f"{known}{self._label} {number}"]
