"""Modules of torch's own tests: a run computes what plain torch computes, bit for bit, or refuses."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.programs import PYTHON


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "workers"),
    [("sync_sgd", 1), ("sync_sgd", 2), ("async_sgd", 1), ("allreduce", 2), ("local_sgd", 2), ("hogwild", 1)],
)
def test_each_module_ends_with_the_bits_of_plain_torch(recipe: str, workers: int) -> None:
    pytest.importorskip("expecttest", reason="torch's own tests need it")
    command = [*PYTHON, "-m", "support.torch_modules", recipe, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["unlike"] == []
    assert len(found["equal"]) > 50
    for name, why in found["refused"].items():
        assert name.startswith("nn.Lazy")
        assert "run one batch through the model before prepare" in why
