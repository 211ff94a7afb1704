"""The index of errors: every message in the source, by its class, with its remedy. `docs/conf.py` puts it into errors.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "plesio"
PAGE = Path(__file__).with_name("errors.md")
PLACE = "<!-- every message -->"
RULES = "<!-- what cannot be together -->"
VALUE = "…"
CHECKED = ("StrategyError", "ConfigurationError")


class Message(NamedTuple):
    """`cause` says what happened, `remedy` what is allowed or what to do; empty where the class's remedy is all there is."""

    cause: str
    remedy: str


def remedies() -> dict[str, str]:
    """The remedy of each class, from the table in errors.md."""
    return dict(re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def messages() -> dict[str, list[Message]]:
    """Each class's messages in alphabetical order."""
    found: dict[str, set[Message]] = defaultdict(set)
    for path in (*SOURCE.rglob("*.py"), *(SOURCE / "sparse").rglob("*.py")):  # that is a link
        for name, text in _raised(ast.parse(path.read_text(encoding="utf-8"))):
            found[name].add(_parted(text))
    return {name: sorted(found[name]) for name in remedies() if name in found}


def _raised(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        if node.func.id == "Allowed":  # what a field may be: of a strategy, or of a setting
            for text in _texts(node.args[0]):
                yield from ((name, f"{VALUE} must be {text}") for name in CHECKED if text != VALUE)
        if node.func.id.endswith("Error"):
            for text in _texts(node.args[0]):
                text = re.sub(rf"{VALUE}(?:\s*{VALUE})+", VALUE, " ".join(text.split()))
                if re.search(r"\w", text):  # else another error's, passed on
                    yield node.func.id, text


def rules() -> list[tuple[str, str, str]]:
    """Each table of rules with what it is for, the settings of each row, and its message."""
    found = []
    for path in sorted(SOURCE.rglob("rules.py")):
        tree = ast.parse(path.read_text(encoding="utf-8")).body
        for table, about in pairwise(tree):
            if isinstance(table, ast.Assign) and isinstance(about, ast.Expr):
                rows = [one.args for one in ast.walk(table) if isinstance(one, ast.Call) and len(one.args) == 3]
                for settings, _, why in rows:
                    text = re.sub(r"\{.*?\}", VALUE, _texts(why)[0])
                    found.append((ast.literal_eval(about.value), ast.literal_eval(settings), text))
    return found


def _texts(node: ast.expr) -> list[str]:
    """A message as it can read, with `VALUE` for what is known only when it is raised."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(one) for one in product(*map(_texts, parts))]
        case ast.BinOp(left=left, right=right):
            return [one + other for one in _texts(left) for other in _texts(right)]
        case ast.IfExp(body=body, orelse=other):
            return _texts(body) + _texts(other)
        case ast.Call(func=ast.Name(id="unknown_name"), args=[kind, *_]):
            return [f"unknown {one} {VALUE}; known: {VALUE}; did you mean {VALUE}?" for one in _texts(kind)]
        case _:
            return [VALUE]


def _parted(text: str) -> Message:
    """
    >>> _parted("… cannot be written: …; give another folder")
    Message(cause='… cannot be written: …', remedy='give another folder')
    >>> _parted("workers=…: a whole number of at least 1")
    Message(cause='workers=…', remedy='a whole number of at least 1')
    """
    for mark in ("; ", ": "):
        cause, _, remedy = text.partition(mark)
        if re.search(r"\w", cause) and re.search(r"\w", remedy):
            return Message(cause, remedy)
    return Message(text, "")


def in_markdown() -> str:
    """A table for each class."""
    whole = remedies()
    lines = []
    for name, entries in messages().items():
        lines += ["", f"### {name}", "", "| message | what to do |", "| --- | --- |"]
        lines += [f"| {_escaped(one.cause)} | {_escaped(one.remedy) or whole[name]} |" for one in entries]
    return "\n".join(lines)


def rules_in_markdown() -> str:
    """A table for each of what cannot be together."""
    lines: list[str] = []
    for about, rows in groupby(rules(), lambda one: one[0]):
        lines += ["", about, "", "| of | why not, and what to do |", "| --- | --- |"]
        lines += [f"| {', '.join(f'`{one}`' for one in of.split())} | {_escaped(why)} |" for _, of, why in rows]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)
    return re.sub(r"(?<!\w)--[\w-]*", lambda option: f"`{option[0]}`", text)  # else it becomes one long dash
