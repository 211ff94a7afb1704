"""The program as it is typed, in this process."""

from __future__ import annotations

import pytest

from plesio.cli.main import main


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What it prints; where it ends with code 2, why it refuses."""
    capsys.readouterr()
    assert main([*words]) == code
    told = capsys.readouterr()
    return told.err if code == 2 else told.out
