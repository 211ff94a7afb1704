"""benchmarks/network.py and network_faults.py run, and their rows are about what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SLOW = ("raw,raw_ssl", "torch_rpc,ddp,local", "async_tcp", "sync_tcp", "async_tls", "sync_tls")


@pytest.mark.parametrize("only", [pytest.param(names, marks=pytest.mark.slow) for names in SLOW])
def test_network_benchmark_measures_every_contestant(only: str, tmp_path: Path) -> None:
    measured = rows_of("network.py", tmp_path, "--only", only)
    for name in only.split(","):
        assert measured[f"{name} P=1e4"]["value"] > 0
        assert measured[f"{name} P=1e4, all processes"]["unit"] == "CPU s/GB"


@pytest.mark.slow
def test_idle_connections_and_deaths_are_measured(tmp_path: Path) -> None:
    measured = rows_of("network_faults.py", tmp_path)
    assert measured["async_sgd among 100 idle connections"]["against_value"] > 0
    assert measured["100 idle connections, 3 times: told in"]["value"] == 1
    for name in ("async_sgd", "sync_sgd"):
        assert measured[f"{name}, the successor's first answer after its import"]["value"] > 0


def rows_of(benchmark: str, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """By measure."""
    rows = folder / "rows.json"
    command = [sys.executable, str(BENCHMARKS / benchmark), "--quick", *options, "--json", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return {row["measure"]: row for row in json.loads(rows.read_text())}
