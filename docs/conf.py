"""How the documentation site is built: `make docs`."""

from importlib.metadata import version as version_of

project = "plesio"
author = "the plesio developers"
version = release = version_of("plesio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = "plesio"
