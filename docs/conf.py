"""How the documentation site is built: `make docs`."""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measured import TABLE, measured
from messages import PLACE, RULES, in_markdown, rules_in_markdown

project = "plesio"
author = "the plesio developers"
version = release = version_of("plesio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "literal"  # docstrings have single backticks

html_theme = "furo"
html_title = "plesio"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "search.js")


def _escaped(line):
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(one if one.startswith("`") else re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", one) for one in parts)


def _as_rst(app, what, name, object_, options, lines):
    """Docstrings are plain text: what is indented without a section's name is code, and `_`, `*` and `|` mean nothing."""
    result, before, example = [], "", False
    for line in lines:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        line = line if example else _escaped(line)
        begins_code = line.startswith(" ") and result and not result[-1] and before and not before.startswith(" ")
        if line.strip() == "Example:":
            result += ["Example::", ""]  # no section of napoleon's
            before = "::"
            continue
        if begins_code and before != "::":
            result += ["::", ""]
        result.append(line)
        before = line if line.strip() else before
    lines[:] = result


def _of_others(app, what, name, object_, skip, options):
    """Whether a member is of another package, such as what scikit-learn adds to its estimators."""
    return skip or not (getattr(object_, "__module__", None) or "plesio").startswith("plesio")


def _with_tables(app, page, text):
    if page == "errors":
        text[0] = text[0].replace(PLACE, in_markdown()).replace(RULES, rules_in_markdown())
    if page == "gpu":
        text[0] = text[0].replace(TABLE, measured())


def setup(app):
    app.connect("source-read", _with_tables)
    app.connect("autodoc-skip-member", _of_others)
    app.connect("autodoc-process-docstring", _as_rst, priority=100)  # before napoleon
