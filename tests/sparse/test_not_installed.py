"""Without the extra, all else works, and the estimators name what to install."""

from __future__ import annotations

import subprocess
import sys

ESTIMATORS = ["HogwildClassifier", "Kernel", "MatrixFactorization", "SkipGram", "Report"]
PROGRAM = f"""
import sys
sys.modules.update(numba=None, llvmlite=None, scipy=None, sklearn=None)
import plesio as ps, plesio.sparse
print(ps.hogwild().name)
for name in {ESTIMATORS}:
    try:
        getattr(plesio.sparse, name)
    except ImportError as error:
        print(error)
"""


def test_the_recipe_imports_without_the_extra_and_estimators_name_it() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    recipe, *told = child.stdout.splitlines()
    assert recipe == "hogwild"
    assert len(told) == len(ESTIMATORS)
    for name, line in zip(ESTIMATORS, told, strict=True):
        assert line.startswith(f"plesio.sparse.{name} needs ")
        assert line.endswith("pip install -e '.[hogwild]' in plesio's folder")
