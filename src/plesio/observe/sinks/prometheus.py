"""Prometheus: a text file for the node exporter's textfile collector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plesio.observe.sinks.exposition import Exposition, Shown
from plesio.observe.sinks.feed import Sink, Told


class Prometheus(Sink):
    """Keeps a file in the text format of Prometheus, written once a second: `plesio_worker_steps_total` and the like.

    Args:
        path: the file, which ends in .prom for the textfile collector. It is replaced whole, so that no reader sees a half.

    >>> sink = ps.sinks.Prometheus("plesio.prom")
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink])
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._run = ""
        self._exposition = Exposition()

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._run = name

    def tell(self, told: Told) -> None:
        if not told.figures:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(self._exposition.text([Shown(self._run, told.figures, told.values)]), encoding="utf-8")
        os.replace(new, self._path)
