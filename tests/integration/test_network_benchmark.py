"""benchmarks/network.py runs, and its rows are about what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NETWORK = Path(__file__).parents[2] / "benchmarks" / "network.py"
SLOW = ("raw,raw_ssl", "torch_rpc,ddp,local", "sync_tcp", "async_tls", "sync_tls")


@pytest.mark.parametrize("only", ["async_tcp", *(pytest.param(names, marks=pytest.mark.slow) for names in SLOW)])
def test_network_benchmark_measures_every_contestant(only: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    command = [sys.executable, str(NETWORK), "--quick", "--only", only, "--json", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    measured = {row["measure"]: row for row in json.loads(rows.read_text())}
    for name in only.split(","):
        assert measured[f"{name} P=1e4"]["value"] > 0
        assert measured[f"{name} P=1e4, all processes"]["unit"] == "CPU s/GB"
