"""What `ps.Ray` says for itself; Ray need not be installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import plesio as ps

WITHOUT = "import sys; sys.modules['ray'] = None\nimport plesio as ps\n"


@pytest.mark.thorough
def test_what_to_install_is_named() -> None:
    uses = "ps.ray.PlesioConfig('async_sgd')", "ps.run(print, 'sync_sgd', workers=2, engine=ps.Ray())"
    program = WITHOUT + "".join(f"try:\n    {use}\nexcept ImportError as error:\n    print(error)\n" for use in uses)
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    first, second = told.splitlines()
    for line in (first, second):
        assert line.startswith("plesio on Ray needs Ray Train")
        assert "pip install 'plesio[ray]'" in line


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"resources": {}}, "names and amounts"),
        ({"resources": {"CPU": -1}}, "names and amounts"),
        ({"placement": "NEAR"}, "PACK, SPREAD"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=told):
        ps.Ray(**setting)


def test_faults_on_ray_are_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="on Ray"):
        ps.run(print, "async_sgd", workers=2, engine=ps.Ray(), faults=[ps.Kill(worker=0, after_s=1)])
