"""The examples of each strategy's page print what the page shows: time is virtual, so the figures are those of any machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.test_docs import DOCS

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "page",
    [DOCS / "local-steps.md", DOCS / "tables.md", *sorted(DOCS.glob("strategies/*.md"))],
    ids=lambda page: page.stem,
)
@pytest.mark.filterwarnings("ignore")
def test_the_example_prints_what_the_page_shows(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert shown
    for code, printed in shown:
        exec(compile(code, page.name, "exec"), {"__name__": "page"})
        assert capsys.readouterr().out == printed
