"""Clusters from TOML files. What is wrong with one is said with its line and its key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from plesio.cluster.description import Cluster
from plesio.errors import ConfigurationError

_TABLE = re.compile(r"\s*(\[\[?)\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def load(path: Path) -> Cluster:
    """See `Cluster.load`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"cluster file {path}: {error.strerror}; give a TOML file") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"cluster file {path}: not TOML: {error}") from error
    _find_traces(data, path.parent)
    try:
        return msgspec.convert(data, Cluster)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        keys = where.rstrip("`").lstrip(".") + _named(what)
        line = _line(text, keys)
        place = f", line {line}" if line else ""
        raise ConfigurationError(f"cluster file {path}{place}: {keys + ': ' if keys else ''}{what}") from error


def _find_traces(data: dict[str, Any], folder: Path) -> None:
    """A trace file's path is relative to the cluster file."""
    groups = data.get("groups")
    for group in groups if isinstance(groups, list) else ():
        step = group.get("step") if isinstance(group, dict) else None
        if isinstance(step, dict) and isinstance(step.get("file"), str) and step["file"]:
            step["file"] = str(folder / step["file"])


def _named(what: str) -> str:
    """The key that the message itself names: msgspec's path leads to the table around an unknown key only."""
    found = re.search(r"unknown field `(\w+)`", what) or re.match(r"\w+\((\w+)=", what)
    return f".{found[1]}" if found else ""


def _line(text: str, keys: str) -> int | None:
    """The line of `groups[1].step.sigma`, or of the nearest thing around it."""
    lines = _lines(text)
    while keys:
        if keys in lines:
            return lines[keys]
        keys = keys[: max(keys.rfind("."), keys.rfind("["), 0)]
    return None


def _lines(text: str) -> dict[str, int]:
    """Where each table and each key of the file stands. Keys inside an inline table are on its key's line."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.match(line)) is not None:
            name, _, inner = header[2].partition(".")
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
            table = (f"{name}[{counts[name]}]" if name in counts else name) + (f".{inner}" if inner else "")
            lines[table] = number
        elif (key := _KEY.match(line)) is not None:
            lines[f"{table}.{key[1]}".lstrip(".")] = number
    return lines
