"""What every benchmark here shares: arguments, interleaved runs, medians, the table and the JSON file.

A benchmark makes `Row`s. Each states one measure, the rival or limit it is held against, and the target it must meet;
`--json FILE` writes the rows as a list of objects with exactly the fields of `Row`.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt}

# Progress goes to stderr, so that the table alone is what a pipe receives.
progress = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One measure. `target` reads ">= 12" and speaks of `ratio`, or of `value` where nothing is held against it.

    `value` and `against_value` are in `unit` and are medians of `runs` runs; `ratio` is the median of the runs' own
    ratios, since neighbouring runs share the machine's mood.
    """

    measure: str
    value: float
    unit: str
    against: str | None
    against_value: float | None
    ratio: float | None
    target: str | None
    met: bool | None
    runs: int


def row(
    measure: str,
    values: Sequence[float],
    unit: str,
    *,
    against: str | None = None,
    against_values: Sequence[float] = (),
    target: str | None = None,
) -> Row:
    """A `Row` from the runs of one measure and, run by run beside them, of what it is held against."""
    value = statistics.median(values)
    against_value = statistics.median(against_values) if against_values else None
    ratio = None
    if against_values:
        ratio = statistics.median(a / b for a, b in zip(values, against_values, strict=True))
    judged = value if against is None else ratio
    met = None if target is None or judged is None else meets(judged, target)
    return Row(measure, value, unit, against, against_value, ratio, target, met, len(values))


def meets(value: float, target: str) -> bool:
    """Whether `value` is as `target` ("< 100", ">= 12") says."""
    sign, _, bound = target.partition(" ")
    return COMPARE[sign](value, float(bound))


def interleave(tasks: Mapping[str, Callable[[], float]], runs: int, title: str = "") -> dict[str, list[float]]:
    """Run all tasks in turn, `runs` times over: A B A B, so that a change of the machine's load meets both sides."""
    results: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(1, runs + 1):
        for name, task in tasks.items():
            start_s = time.perf_counter()
            results[name].append(task())
            took_s = time.perf_counter() - start_s
            progress.print(f"{title} run {number}/{runs} {name}: {figure(results[name][-1])} ({took_s:.0f} s)")
    return results


def parser(description: str, *, runs: int = 3) -> argparse.ArgumentParser:
    """The arguments every benchmark takes; `runs` is the default of `--runs`."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    result.add_argument("--quick", action="store_true", help="a smoke run: small, short, once; judge nothing by it")
    result.add_argument("--runs", type=whole, default=runs, metavar="N", help="runs whose median is quoted")
    return result


def whole(text: str) -> int:
    """An argument that is a whole number of at least 1; `1e6` is one."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not number.is_integer() or number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(number)


def wholes(text: str) -> tuple[int, ...]:
    """An argument that is a list of whole numbers: `1e4,1e6`."""
    return tuple(whole(part) for part in text.split(","))


def report(title: str, rows: Sequence[Row], path: Path | None, *, threads: str = "1 a process") -> None:
    """Print the rows as a table under the machine's description and, with a path, write them as JSON."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150  # a file has no width, and rich would fold the table into 80 columns
    console.print(f"[bold]{title}[/bold]\n{machine()}; threads: {threads}", soft_wrap=True)
    console.print(table(rows))
    if path is not None:
        path.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")


def machine() -> str:
    """What the figures were taken on, in one line."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores ({processor()}), {platform.system()} {platform.machine()}; {versions}"


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    result = Table()
    for heading in ("measure", "value", "unit", "against", "its value", "ratio", "target", "met", "runs"):
        numeric = heading in {"value", "its value", "ratio", "runs"}
        result.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != "measure")
    for each in rows:
        result.add_row(
            each.measure,
            figure(each.value),
            each.unit,
            each.against or "",
            figure(each.against_value),
            figure(each.ratio),
            each.target or "",
            verdict(each.met),
            str(each.runs),
        )
    return result


def verdict(met: bool | None) -> Text:
    """Yes, no, or nothing where there is no target."""
    if met is None:
        return Text("")
    return Text("yes", "green") if met else Text("no", "bold red")


def figure(value: float | None) -> str:
    """Three significant digits, whole numbers with separators: 1,234, 21.7, 0.581."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
