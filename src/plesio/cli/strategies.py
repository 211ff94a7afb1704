"""`plesio strategies`: what there is to choose from. It needs no torch, so it answers at once."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from plesio.cli.live import PLAIN_WIDTH, terminal
from plesio.cli.settings import strategy_of
from plesio.strategy.recipes import RECIPES, USUAL

EXAMPLE_WORKERS = 4
WIDEST = 1000
QUESTIONS = {
    "every": "goes alone",
    "send": "sends",
    "admit": "counts",
    "gather": "makes a version",
    "release": "goes on",
    "adopt": "takes back",
    "via": "folded by",
}
UNBROKEN = ("every", "send", "adopt")  # questions with short answers: where space is short, the others wrap


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe, as it is listed, and as JSON has it."""

    strategy: str
    idea: str
    settings: dict[str, Any]
    answers: dict[str, str]
    paper: str


def strategies(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with every answer.")] = False,
) -> None:
    """List the strategies: how each answers the six questions, who folds, its settings, and the paper it is from."""
    entries = [entry(name) for name in RECIPES]
    if as_json:
        print(json.dumps([asdict(one) for one in entries], indent=2, ensure_ascii=False))
        return
    console = terminal()
    table = _answers(entries, apart=console.width >= PLAIN_WIDTH)
    least = console.measure(table, options=console.options.update_width(WIDEST)).minimum
    console.print(table if least <= console.width else _answers_in_turn(entries))
    console.print()
    console.print(_ideas(entries))
    console.print()
    console.print(Text('plesio run SCRIPT --strategy "NAME(KEY=VALUE)" uses one; plesio compare SCRIPT, several.'))


def entry(name: str) -> Entry:
    """What there is to say about a recipe: from its signature, its docstring and the strategy it returns."""
    recipe = RECIPES[name]
    answers = strategy_of(name, EXAMPLE_WORKERS).answers()
    text = inspect.getdoc(recipe) or ""
    idea = text.split("\n\n")[0].replace("\n", " ").replace("`", "")
    settings = {one.name: one.default for one in inspect.signature(recipe).parameters.values()}
    if name in USUAL:
        setting, _, words = USUAL[name]
        settings[setting] = words  # it has no default: the number of workers sets it here
    source = re.search(r"^\s*Sources?: (.+?)(?:\n\s*\n|\Z)", text, re.DOTALL | re.MULTILINE)
    paper = re.sub(r"\s+", " ", source.group(1)).strip().rstrip(".") if source else ""
    return Entry(name, idea, settings, answers, paper)


def _answers(entries: list[Entry], apart: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, int(apart), 0, 0))
    table.add_column("strategy", no_wrap=True, style="bold")
    for question, heading in QUESTIONS.items():
        words = [word for one in entries for word in _answer(one, question).split()]
        table.add_column(
            f"{question}\n{heading}", no_wrap=question in UNBROKEN, min_width=max(len(word) for word in words)
        )
    for one in entries:
        table.add_row(one.strategy, *(_answer(one, question) for question in QUESTIONS))
    return table


def _answers_in_turn(entries: list[Entry]) -> Table:
    """A line an answer, for a terminal in which they do not go side by side."""
    table = Table("strategy", "", "", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for one in entries:
        table.add_section()
        for question, heading in QUESTIONS.items():
            table.add_row(one.strategy if question == "every" else "", f"{question}: {heading}", _answer(one, question))
    return table


def _answer(one: Entry, question: str) -> str:
    """The answer to a question; what corrects the contributions is told with what they make."""
    answer = one.answers[question]
    if question == "gather" and one.answers["correct"] != "none":
        answer += f", {one.answers['correct']}"
    return answer


def _ideas(entries: list[Entry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True, style="bold")
    for heading in ("idea", "settings", "paper"):
        table.add_column(heading)
    for one in entries:
        table.add_row(
            one.strategy, one.idea, "\n".join(f"{key}={value}" for key, value in one.settings.items()), one.paper
        )
    return table
