"""`plesio demo`: a comparison to look at, with a script and data that need no download."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import typer

from plesio.errors import ConfigurationError

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE, PACKAGE.parents[1])  # an installed wheel, and a clone
OPTIONS = (
    "--workers 4 --slow 0:10 --pace 0.02 --until accuracy=0.95 --evaluate-every-s 0.1 --budget-s 30 --report demo.html"
)


def demo(context: typer.Context) -> int:
    """Compare eight strategies on handwritten digits, with one of four workers ten times slower: about a minute.

    This is `plesio compare` with a script that comes with plesio, and takes its options. The report is demo.html.
    """
    if find_spec("sklearn") is None:
        raise ConfigurationError(
            "plesio demo trains on scikit-learn's digits: pip install scikit-learn, then try again"
        )
    typed = [str(script()), *shlex.split(OPTIONS), *context.args]
    print(shlex.join(["plesio", "compare", *typed]), flush=True)
    compare = context.find_root().command.commands["compare"]  # type: ignore[attr-defined]
    with compare.make_context("compare", typed, parent=context.parent) as asked:
        code: int = compare.invoke(asked)
        return code


def script() -> Path:
    """Where examples/digits.py lies, relative to the working directory if it is below it."""
    path = next(one for place in PLACES if (one := place / "examples" / "digits.py").is_file())
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
