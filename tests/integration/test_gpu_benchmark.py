"""benchmarks/gpu.py measures all that it says; here on the CPU, to see that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ("link", ("copy to the GPU, pinned", "sync_sgd, 0.384 MB: an exchange")),
        ("waits", ("local_sgd(every 4 steps): synchronisations in a local step",)),
        ("training", ("transformer: FSDP2", "transformer: allreduce", "transformer: async_sgd, 2 workers on 1 GPU")),
        ("images", ("images: local_sgd(every 16 steps)",)),
    ],
)
def test_every_part_is_measured(only: str, wanted: tuple[str, ...], tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    options = ["--device", "cpu", "--quick", "--only", only, "--limit-s", "600", "--json", str(rows)]
    done = subprocess.run(
        [sys.executable, str(GPU), *options], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = {row["measure"] for row in json.loads(rows.read_text())}
    assert measured >= set(wanted)
