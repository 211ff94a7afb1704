"""The core imports nothing that reads a clock, draws a number or touches a tensor."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import plesio
import plesio.core
import plesio.strategy
from plesio.memory.folder import CORRECTIONS
from plesio.strategy import answers, recipes
from plesio.strategy.strategy import ANSWERS

ALLOWED = {"__future__", "bisect", "collections", "dataclasses", "enum", "functools", "math", "msgspec", "typing"}
ALLOWED_OF_OURS = ("plesio.core", "plesio.strategy", "plesio.errors")
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
FILES = [
    path
    for room in (plesio.core, plesio.strategy)
    for path in sorted(Path(inspect.getfile(room)).parent.glob("**/*.py"))
    if path.parent.name != "recipes"
]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}"


def is_allowed(module: str) -> bool:
    ours = any(module == one or module.startswith(f"{one}.") for one in ALLOWED_OF_OURS)
    return ours or module.split(".")[0] in ALLOWED


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_pure_imports_and_no_builtin_that_reaches_outside(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = [*imports(tree)]
    assert [module for module in imported if not is_allowed(module)] == []
    assert path.parent.name != "core" or not any(one.startswith("plesio.strategy.answers") for one in imported)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not FORBIDDEN_CALLS & {call.id for call in calls if isinstance(call, ast.Name)}


# Answers carry their behaviour

OTHERS = [path for path in sorted(Path(inspect.getfile(plesio)).parent.glob("**/*.py")) if "strategy" not in path.parts]


def classes_asked_for(tree: ast.AST) -> set[str]:
    """The names that `isinstance`, a comparison or a `case` asks for."""
    asked: list[ast.AST] = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked.append(node.args[1])
        elif isinstance(node, ast.Compare):
            asked.extend(node.comparators)
        elif isinstance(node, ast.MatchClass):
            asked.append(node.cls)
    return {one.id for top in asked for one in ast.walk(top) if isinstance(one, ast.Name)}


def answers_imported(tree: ast.AST) -> set[str]:
    """The names under which a module knows answers."""
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name
        for line in lines
        if (line.module or "").startswith("plesio.strategy.answers")
        for alias in line.names
    }


def test_nobody_asks_isinstance_of_an_answer() -> None:
    trees = {path: ast.parse(text) for path in OTHERS if "strategy.answers" in (text := path.read_text())}
    assert [path for path, tree in trees.items() if answers_imported(tree) & classes_asked_for(tree)] == []
    planted = ast.parse("from plesio.strategy.answers import Server\nisinstance(via, (int, Server))")
    assert answers_imported(planted) & classes_asked_for(planted)


def test_every_correction_has_an_implementation() -> None:
    assert set(CORRECTIONS) == set(get_args(answers.Correct))


# What the core asks, strategies answer


@pytest.mark.parametrize("question", ANSWERS)
def test_all_answers_to_a_question_take_the_same_arguments(question: str) -> None:
    asked = [
        {key: inspect.signature(one) for key, one in vars(answer).items() if inspect.isfunction(one) and key[0] != "_"}
        for answer in get_args(ANSWERS[question])
    ]
    assert all(one == asked[0] for one in asked)


def test_answers_are_frozen_and_hold_no_state() -> None:
    strategy = recipes.bounded_staleness(2)
    with pytest.raises(AttributeError):
        strategy.release.clocks = 3  # type: ignore[union-attr, misc]
    with pytest.raises(AttributeError):
        strategy.name = "other"  # type: ignore[misc]
    assert hash(strategy) == hash(recipes.bounded_staleness(2))
