"""The documents name the public API, and their links exist."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

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


def results(name: str) -> list[dict[str, Any]]:
    """What a benchmark measured."""
    found: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table of a page whose first row begins so."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(first))
    end = next(place for place in range(start, len(lines)) if not lines[place].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def nearly(shown: str, measured: float) -> bool:
    """Whether a figure is what was measured, rounded to as many digits; the results were rounded themselves."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown) - measured) <= 0.5 * 10.0**-digits + 0.0051


def chosen() -> dict[tuple[str, str], tuple[float, float]]:
    """How many times sooner, and what was foretold, by kind of machines and strategy."""
    form = re.compile(r"(.+?): (.+), ([\d.]+) times sooner \(foretold ([\d.]+)\)")
    found = [form.fullmatch(one["measure"]) for one in results("choose")]
    return {(one[1], one[2]): (float(one[3]), float(one[4])) for one in found if one is not None}


def test_the_choice_of_a_strategy_shows_what_was_measured() -> None:
    (_, *kinds), _, *rows = table("choose.md", "| | uniform |")
    measured, expected, shown = chosen(), {}, {}
    best = {kind: max(one for (where, _), (one, _) in measured.items() if where == kind) for kind in kinds}
    for name, *cells in rows:
        for kind, cell in zip(kinds, cells, strict=True):
            sooner, foretold = measured[kind, name.strip("`")]
            bold = "**" if sooner >= 0.9 * best[kind] else ""
            expected[kind, name], shown[kind, name] = f"{bold}{sooner:.1f}{bold} ({foretold:.1f})", cell
    assert shown == expected
    assert len(shown) == len(measured) - len(kinds), "all but sync_sgd"


@pytest.mark.parametrize(
    ("page", "words", "kind", "strategy"),
    [
        ("local-steps.md", r"`local_sgd\(16\)` is ([\d.]+) times sooner", "slow link", "local_sgd(16)"),
        ("local-steps.md", r"it is ([\d.]+) times as fast", "one-straggler", "local_sgd(16)"),
        ("strategies/lock-step.md", r"`local_sgd\(16\)` is ([\d.]+) times sooner", "slow link", "local_sgd(16)"),
        ("strategies/tolerant.md", r"`first_of` is ([\d.]+) times sooner", "heavy-tail", "first_of(7)"),
        ("strategies/tolerant.md", r"`first_of\(N - 1\)`, ([\d.]+) times", "one-straggler", "first_of(7)"),
        ("strategies/asynchronous.md", r"`async_sgd` is ([\d.]+) times sooner than", "one-straggler", "async_sgd"),
        ("strategies/asynchronous.md", r"`buffered\(2\)` ([\d.]+) times", "one-straggler", "buffered(2)"),
        ("strategies/asynchronous.md", r"both are ([\d.]+) times", "two-speeds", "async_sgd"),
        ("strategies/asynchronous.md", r"([\d.]+) times sooner under \"cross", "cross-region", "async_sgd"),
    ],
)
def test_other_pages_cite_that_table(page: str, words: str, kind: str, strategy: str) -> None:
    (cited,) = re.findall(words, (ROOT / "docs" / page).read_text())
    assert cited == f"{chosen()[kind, strategy][0]:.1f}"


def test_local_steps_show_what_going_on_costs() -> None:
    ratios = {one["measure"]: one["ratio"] for one in results("local")}
    _, _, *rows = table("local-steps.md", "| strategy | 1 step late |")
    for name, *cells in rows:
        recipe, steps = re.findall(r"\w+", name)
        strategy = getattr(ps, recipe)(int(steps)).name
        for late, cell in zip(("1 step", "a quarter of H", "half of H"), cells, strict=True):
            measured = 100 * (ratios[f"{strategy}, AdamW, answers {late} late"] - 1)
            assert nearly(f"{float(cell.strip('%')):.1f}", measured), (name, late, measured)


def test_local_steps_show_who_gains_by_going_on() -> None:
    _, _, *rows = table("local-steps.md", "| links | optimizer | strategy |")
    shown = {(links.strip('"'), optimizer, name.strip("`")): cells for links, optimizer, name, *cells in rows}
    measured = {one["measure"]: one for one in results("going_on")}
    assert len(measured) == 2 * len(shown)
    for (links, optimizer, name), (lock, *cells) in shown.items():
        for overlap, cell in zip((False, True), cells, strict=True):
            one = measured[f"{links}, {optimizer}: {name[:-1]}, overlap={overlap})"]
            assert nearly(lock, one["against_value"]), (name, lock, one)
            assert nearly(cell, one["value"]), (name, cell, one)
    lock, waits, goes = shown["slow link", "AdamW at 0.01", "local_sgd(16)"]
    assert (
        f"takes {goes} s, or {waits} s if workers wait, and {lock} s in lock step"
        in (ROOT / "docs" / "choose.md").read_text()
    )


def test_convergence_shows_how_far_adamw_is_behind() -> None:
    behind = {one["measure"]: one["value"] for one in results("transformer")}
    _, _, *rows = table("convergence.md", "| workers | rate ")
    assert len(rows) == len(behind)
    for workers, rate, good, late, each, mean in rows:
        words = {"warm-up over a tenth": "a warm-up over a tenth of the run"}.get(rate, rate)
        measured = behind[f"AdamW, {workers} workers, {words}: async_sgd() behind sync_sgd"]
        pairs = list(zip(good.split(", "), late.split(", "), strict=True))
        of_losses = [100 * (float(second) / float(first) - 1) for first, second in pairs]
        assert nearly(mean.strip("*%"), measured), (workers, rate, measured)
        assert abs(sum(of_losses) / len(of_losses) - measured) < 0.05
        for cell, one in zip(each.split(", "), of_losses, strict=True):
            assert abs(float(cell.strip("*%")) - one) < 0.1, (workers, rate, cell, one)


def test_convergence_shows_what_was_measured() -> None:
    values = {one["measure"].split(":")[0]: one for one in results("convergence")}
    _, _, *rows = table("convergence.md", "| optimizer        | N  | lr        | sync_sgd ")
    for optimizer, workers, rate, *cells in rows:
        times = rate[rate.index("x") :].strip(")")
        row = f"{optimizer.replace('0.9', '.9')}, N={workers}, lr {times}"
        measured = [values.get(f"{name}, {row}") for name in ("sync_sgd", "async_sgd", "async_sgd(plain)")]
        tuned = values[f"async_sgd, {row}"]["against_value"]
        expected = [tuned if one is None else one["value"] for one in measured]
        shown = [cells[0], cells[1], cells[3]]
        for cell, value in zip(shown, expected, strict=True):
            assert nearly(cell.split()[0], value), (row, cell, value)
