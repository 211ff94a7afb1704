"""What `ps.Ray` says for itself; Ray need not be installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import plesio as ps

WITHOUT = "import sys; sys.modules['ray'] = None\nimport plesio as ps\n"


@pytest.mark.parametrize(
    "use", ["ps.ray.PlesioConfig('async_sgd')", "ps.run(print, 'bsp', workers=2, engine=ps.Ray())"]
)
def test_what_to_install_is_named(use: str) -> None:
    program = f"{WITHOUT}try:\n    {use.replace('bsp', 'sync_sgd')}\nexcept ImportError as error:\n    print(error)"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert told.startswith("plesio on Ray needs Ray Train")
    assert "pip install 'plesio[ray]'" in told


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
