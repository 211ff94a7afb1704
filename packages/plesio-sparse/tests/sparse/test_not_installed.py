"""Without plesio-sparse and what it needs all else works, and `import plesio.sparse` says what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
sys.modules.update(scipy=None, sklearn=None)
import plesio as ps
print(ps.hogwild().name)
try:
    import plesio.sparse
except ModuleNotFoundError as error:
    print(error.name, error)
"""


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_without_it_the_recipe_works_and_an_import_says_what_to_install(tmp_path: Path) -> None:
    package = tmp_path / "plesio"
    package.mkdir()
    for one in (ROOT / "src/plesio").iterdir():
        if one.name != "sparse":
            (package / one.name).symlink_to(one)
    (package / "sparse.py").symlink_to(ROOT / "packages/without_sparse.py")
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    recipe, told = child.stdout.splitlines()
    assert recipe == "hogwild"
    assert told.startswith("plesio.sparse plesio.sparse is in plesio-sparse, which is not installed")
    assert told.endswith("pip install plesio-sparse")


def test_both_distributions_have_one_version() -> None:
    whole, sparse = project(ROOT)["project"], project(ROOT / "packages/plesio-sparse")["project"]
    assert sparse["version"] == whole["version"]
    assert f"plesio=={whole['version']}" in sparse["dependencies"]
