"""The documents name the public API, and their links exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import plesio as ps

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


@pytest.mark.parametrize("name", ps.__all__)
def test_api_page_lists_every_public_name(name: str) -> None:
    assert re.search(rf"\bps\.{name}\b", (ROOT / "docs" / "api.md").read_text())


@pytest.mark.parametrize("keyword", list(inspect.signature(ps.run).parameters)[3:])
def test_api_page_lists_every_keyword_of_run(keyword: str) -> None:
    assert f"`{keyword}`" in (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ps.__all__)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(ps, name)) or "")
