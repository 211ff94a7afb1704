"""The table of what gpu.py measured. `docs/conf.py` puts it into gpu.md."""

from __future__ import annotations

import json
from pathlib import Path

ROWS = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu.json"
TABLE = "<!-- what was measured -->"
NOTHING = "Not measured on a GPU yet."


def measured(path: Path = ROWS) -> str:
    """A row for each measure, in Markdown; in words, where there are none."""
    if not path.exists():
        return NOTHING
    lines = ["| measure | value | against | its value | ratio | wanted |", "| --- | --- | --- | --- | --- | --- |"]
    for one in json.loads(path.read_text(encoding="utf-8")):
        wanted = f"{one['target']}: {'met' if one['met'] else '**not met**'}" if one["target"] else ""
        value = f"{_figure(one['value'])} {one['unit']}".rstrip()
        cells = (
            one["measure"],
            value,
            one["against"] or "",
            _figure(one["against_value"]),
            _figure(one["ratio"]),
            wanted,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
