"""Without the extra, all else works, and the estimators name what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.long_forms import but_slow

WITHOUT = "import sys; sys.modules.update(numba=None, llvmlite=None, scipy=None, sklearn=None)\n"


def output(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_the_recipe_imports_without_extras() -> None:
    assert output("import plesio as ps, plesio.sparse; print(ps.hogwild().name)") == "hogwild"


@pytest.mark.parametrize(
    "name", but_slow(["HogwildClassifier", "Kernel", "MatrixFactorization", "SkipGram", "Report"], {"SkipGram"})
)
def test_estimators_name_the_missing_extra(name: str) -> None:
    told = output(f"try:\n    from plesio.sparse import {name}\nexcept ImportError as error:\n    print(error)")
    assert told.startswith(f"plesio.sparse.{name} needs ")
    assert told.endswith("pip install -e '.[hogwild]' in plesio's folder")
