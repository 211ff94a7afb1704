"""What a table says where Numba is missing, and that `import plesio` does without it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import plesio as ps
assert "torch" not in sys.modules and "numba" not in sys.modules
sys.modules.update(numba=None, llvmlite=None)
import torch
table = ps.Table(4, ps.RowAdagrad())
print(table)
try:
    table(torch.tensor([1]))
except ModuleNotFoundError as error:
    print(error)
"""


def test_a_table_without_numba_says_what_to_install() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    shown, told = child.stdout.splitlines()
    assert shown.startswith("Table(4, RowAdagrad(")
    assert told in [f"tables need {one}, which is not installed: pip install {one}" for one in ("numba", "llvmlite")]
