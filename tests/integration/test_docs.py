"""The documentation site: it builds without a warning, and what it says holds."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from docs.measured import NOTHING, TABLE, measured
from docs.messages import messages, rules_in_markdown

import plesio as ps
from plesio.config import rules as of_runs
from plesio.strategy import rules as of_strategies
from support.programs import PYTHON

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks_of(page: Path) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_compiles(page: Path) -> None:
    for block in blocks_of(page):
        compile(block, page.name, "exec")


@pytest.mark.thorough
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [*PYTHON, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "start.html").exists()
    reference = (tmp_path / "reference.html").read_text()
    assert not [name for name in dir(ps.Worker) if name[0] != "_" and f'id="plesio.Worker.{name}"' not in reference]
    assert '"decisions/"' in (tmp_path / "_static" / "language_data.js").read_text()  # last in search


@pytest.mark.thorough
def test_start_trains_on_though_a_worker_is_killed(tmp_path: Path) -> None:
    code = blocks_of(DOCS / "start.md")[0]
    (tmp_path / "first.py").write_text(code)
    done = subprocess.run([*PYTHON, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "worker 1 died" in done.stdout
    assert "accuracy" in done.stdout


@pytest.mark.thorough
def test_the_table_of_two_days_is_what_its_code_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "failures.md"
    code = next(block for block in blocks_of(page) if "def day(" in block)
    code = code.replace("tempfile.mkdtemp()", repr(str(tmp_path)))
    exec(compile(code, page.name, "exec"), {"__name__": "two_days"})
    printed = capsys.readouterr().out.splitlines()
    assert len([row for row in printed if row.startswith("|") and row in page.read_text()]) == 3


def test_the_figures_of_tables_are_those_that_were_measured() -> None:
    measured = json.loads((DOCS.parent / "benchmarks" / "results" / "tables_auc.json").read_text())
    values = {one["value"] for one in measured} | {one["against_value"] for one in measured} - {None}
    shown = re.findall(r"-?0\.\d{4}\b", (DOCS / "tables.md").read_text())
    assert {float(one) for one in shown} == values


def test_the_page_on_gpus_has_a_row_for_each_that_was_measured(tmp_path: Path) -> None:
    assert TABLE in (DOCS / "gpu.md").read_text()
    path = tmp_path / "gpu.json"
    assert measured(path) == NOTHING
    rows = [
        {"measure": "a copy", "value": 51.2, "unit": "GB/s", "against": None, "against_value": None, "ratio": None}
        | {"target": None, "met": None},
        {"measure": "an exchange", "value": 30.0, "unit": "GB/s", "against": "the link", "against_value": 50.0}
        | {"ratio": 0.6, "target": ">= 0.9", "met": False},
    ]
    path.write_text(json.dumps(rows))
    assert measured(path).splitlines()[2:] == [
        "| a copy | 51.2 GB/s |  |  |  |  |",
        "| an exchange | 30 GB/s | the link | 50 | 0.6 | >= 0.9: **not met** |",
    ]


def test_every_public_error_has_a_cause_and_a_remedy() -> None:
    public = {
        name
        for name in ps.__all__
        if isinstance(one := getattr(ps, name), type)
        and issubclass(one, (ps.PlesioError, KeyboardInterrupt))
        and one is not ps.PlesioError
    }
    listed = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert public <= {*listed}


def test_the_page_of_errors_lists_each_rule() -> None:
    page = re.sub(r"[\\`]", "", rules_in_markdown())
    tables = [table for room in (of_runs, of_strategies) for table in vars(room).values() if isinstance(table, tuple)]
    assert len(tables) > 8
    for rule in chain(*tables):
        assert (
            f"| {', '.join(rule.settings.split())} | {re.sub('{.*?}', '…', rule.why)} |" in page or "Linux" in rule.why
        )


told = cache(messages)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ps.recipe("sink_sgd"),
        lambda: ps.Slow(worker=0, factor=0.5),
        lambda: ps.run(print, "sync_sgd", workers=0),
        lambda: ps.Until(accuracy=float("nan")),
        lambda: ps.replay("nowhere", print),
        lambda: ps.splits.shards([0, 1], 2, each=0),
    ],
)
def test_the_index_of_errors_has_a_message_that_is_raised(wrong: Callable[[], object]) -> None:
    with pytest.raises(ps.PlesioError) as raised:
        wrong()
    words = [re.findall(r"\w+", f"{one.cause} {one.remedy}") for one in told()[raised.type.__name__]]
    telling = [each for each in words if len(each) > 3]
    assert any(re.search(r"\b.*\b".join(each), str(raised.value)) for each in telling), str(raised.value)
